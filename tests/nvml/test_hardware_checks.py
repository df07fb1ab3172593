"""The checks of ``tests/hardware`` on the stub: they hold, and they can fail."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.hardware import checks
from tests.hardware.checks import CHECKS, Subject, answering
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import SWITCHED, Host, Mig, gpu

Check = Callable[[Subject], None]
GPUS = (
    gpu(0, links=(SWITCHED,)),
    gpu(1, links=(SWITCHED,)),
    gpu(2, mig=True, migs=(Mig(uuid="MIG-a", gi=1),)),
)


def subject(host: Host) -> Subject:
    @contextlib.contextmanager
    def occupy(device_id: str) -> Iterator[None]:
        before = host.state.gpus
        host.set(
            gpus=tuple(
                replace(gpu, procs=(os.getpid(),)) if gpu.uuid == device_id else gpu
                for gpu in before
            )
        )
        yield
        host.set(gpus=before)

    return Subject(host.make(), host.root, occupy)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_holds_on_a_host_that_is_well(host: MakeHost, check: Check) -> None:
    well = subject(host(gpus=GPUS))
    with answering(well.gpus):
        check(well)


@pytest.mark.parametrize(
    ("check", "ill"),
    [
        (checks.check_inventory, {"driver": "535.1.1"}),
        (checks.check_inventory, {"init": 9}),
        (checks.check_preparation, {"rules": ("fail 3 nvmlDeviceGetMinorNumber",)}),
        (checks.check_busy, {"gpus": (gpu(0, procs=(1,)),)}),
    ],
)
def test_a_check_fails_on_a_host_that_is_not(
    host: MakeHost, check: Check, ill: dict[str, object]
) -> None:
    made = subject(host(**({"gpus": GPUS} | ill)))
    with answering(made.gpus), pytest.raises(AssertionError):
        check(made)

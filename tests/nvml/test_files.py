"""Driver files on a mount that hangs: said, waited for no longer than a deadline, and over."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bcd.model.device import HealthState
from bcd.model.report import Failed, FailureReason
from bcd.node.edits import DeviceEdits
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import PERIODS, Host, eventually, gpu

SHORT = replace(PERIODS, deadline=0.5)


class Mount:
    """The driver's files behind a mount that hangs while ``held``."""

    def __init__(self, host: Host) -> None:
        self._free = threading.Event()
        self._free.set()
        self._fingerprint = host.driver.fingerprint
        self._problem = host.driver.problem
        host.driver.fingerprint = self._look  # type: ignore[method-assign]
        host.driver.problem = self._check  # type: ignore[method-assign]

    def hang(self, *, held: bool) -> None:
        self._free.clear() if held else self._free.set()

    def _look(self) -> object:
        self._free.wait()
        return self._fingerprint()

    def _check(self, edits: DeviceEdits) -> Failed | None:
        self._free.wait()
        return self._problem(edits)


@pytest.fixture
def made(host: MakeHost) -> Host:
    return host()


@pytest.fixture
def mount(made: Host) -> Iterator[Mount]:
    """Let go at the end, so that no thread stays."""
    mount = Mount(made)
    yield mount
    mount.hang(held=False)


def test_a_first_look_that_does_not_end_is_said(made: Host, mount: Mount) -> None:
    mount.hang(held=True)
    with made.running(SHORT) as running:
        assert "a mount below cdi.driver_root" in running.conditions()["DriverFilesUnresponsive"]
        found = running.gpus.snapshot()
        assert {device.health.state for device in found.devices} == {HealthState.UNKNOWN}
        assert running.gpus.prepare((gpu(0).uuid,)) == found.unavailable
        mount.hang(held=False)
        running.until(lambda: running.gpus.snapshot().unavailable is None)
        assert set(running.health().values()) == {"healthy"}
        assert running.gpus.prepare((gpu(0).uuid,)) is None


def test_a_mount_that_hangs_later_is_said_and_over_when_it_is_back(
    made: Host, mount: Mount
) -> None:
    with made.running(SHORT) as running:
        before = running.gpus.snapshot()
        mount.hang(held=True)
        running.until(lambda: "DriverFilesUnresponsive" in running.conditions())
        assert running.gpus.snapshot().edits == before.edits
        mount.hang(held=False)
        running.until(lambda: running.gpus.snapshot() == before)


def test_a_handover_waits_for_files_no_longer_than_a_deadline(made: Host, mount: Mount) -> None:
    with made.running(replace(SHORT, ping=60.0)) as running:
        mount.hang(held=True)
        began = time.monotonic()
        for _ in range(3):
            failed = running.gpus.prepare((gpu(0).uuid,))
            assert failed is not None
            assert failed.reason == FailureReason.DRIVER_UNAVAILABLE
        assert time.monotonic() - began < 100 * SHORT.deadline
        mount.hang(held=False)
        eventually(lambda: running.gpus.prepare((gpu(0).uuid,)) is None)

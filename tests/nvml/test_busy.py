"""Whether somebody computes on a device now: the count only, and never at the daemon's cost."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bcd.model.report import FailureReason
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import PERIODS, QUICK, Mig, eventually, gpu

BOTH = (gpu(0).uuid, gpu(1).uuid)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """The pid of a process that is named as an MPS server."""
    with subprocess.Popen(["nvidia-cuda-mps-server", "60"], executable="/bin/sleep") as process:
        yield process.pid
        process.kill()


def test_a_device_with_a_process_is_busy_and_another_is_not(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, procs=(os.getpid(),)), gpu(1)))
    with made.running() as running:
        assert running.gpus.snapshot().in_use == {BOTH[0]}
        assert running.gpus.busy(BOTH) == {BOTH[0]}
        made.set(gpus=(gpu(0), gpu(1, procs=(os.getpid(), 1))))
        assert running.gpus.busy(BOTH) == {BOTH[1]}
        assert running.gpus.busy((BOTH[0],)) == frozenset()


def test_an_instance_is_busy_by_itself(host: MakeHost) -> None:
    migs = (Mig(uuid="MIG-a", gi=1), Mig(uuid="MIG-b", gi=2, procs=(1,)))
    with host(gpus=(gpu(0, mig=True, migs=migs),)).running() as running:
        assert running.gpus.busy(("MIG-a", "MIG-b")) == {"MIG-b"}


def test_an_mps_server_does_not_count(host: MakeHost, server: int) -> None:
    with host(gpus=(gpu(0, procs=(server,)), gpu(1, procs=(server, 1)))).running() as running:
        assert running.gpus.busy(BOTH) == {BOTH[1]}
        assert running.gpus.snapshot().in_use == {BOTH[1]}


def test_a_program_that_the_settings_name_does_not_count(host: MakeHost) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        made = host(gpus=(gpu(0, procs=(process.pid,)), gpu(1)))
        with made.running() as running:
            assert running.gpus.busy(BOTH) == {BOTH[0]}
        with made.running(ignored_processes=("sleep",)) as running:
            assert running.gpus.busy(BOTH) == frozenset()
        process.kill()


def test_a_process_that_cannot_be_named_counts(host: MakeHost) -> None:
    with host(gpus=(gpu(0, procs=(4_194_999,)), gpu(1))).running() as running:
        assert running.gpus.busy(BOTH) == {BOTH[0]}


def test_what_is_no_device_or_cannot_be_asked_is_not_busy(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, procs=(1,)), gpu(1)))
    with made.running() as running:
        assert running.gpus.busy((f"{BOTH[0]}::0", "GPU-unknown", "")) == frozenset()
        made.set(rules=("fail 999 nvmlDeviceGetComputeRunningProcesses_v3",))
        assert running.gpus.busy(BOTH) == frozenset()


def test_a_setting_turns_the_check_off(host: MakeHost) -> None:
    with host(gpus=(gpu(0, procs=(1,)), gpu(1))).running(busy_check=False) as running:
        assert running.gpus.busy(BOTH) == frozenset()


def test_a_hang_answers_not_busy_within_a_deadline(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, procs=(1,)), gpu(1)))
    with made.running(QUICK) as running:
        made.set(rules=("hang nvmlDeviceGetComputeRunningProcesses_v3",))
        assert running.gpus.busy(BOTH) == frozenset()
        running.until(lambda: running.gpus.snapshot().unavailable is not None)
        began = time.monotonic()
        for _ in range(100):
            assert running.gpus.busy(BOTH) == frozenset()
        assert (
            time.monotonic() - began < 100 * QUICK.deadline
        )  # a hundred deadlines: each came at once


def test_what_a_hang_left_unanswered_is_not_handed_over(host: MakeHost) -> None:
    made = host(gpus=(gpu(0, procs=(1,)), gpu(1)))
    # The next ping lies far ahead: nobody but the question itself can know of the hang.
    with made.running(replace(PERIODS, deadline=0.3, ping=60.0)) as running:
        assert running.gpus.prepare(BOTH) is None
        made.set(rules=("hang nvmlDeviceGetComputeRunningProcesses_v3",))
        assert running.gpus.busy(BOTH) == frozenset()
        failed = running.gpus.prepare(BOTH)
        assert failed is not None
        assert failed.reason == FailureReason.DRIVER_UNAVAILABLE
        made.set(rules=())
        eventually(lambda: running.gpus.prepare(BOTH) is None)


def test_a_question_that_is_never_answered_keeps_devices_back(host: MakeHost) -> None:
    made = host()
    with made.running(replace(PERIODS, deadline=2.0)) as running:
        made.set(rules=("hang nvmlDeviceGetPersistenceMode",))
        eventually(lambda: running.gpus.prepare(BOTH) is not None)
        failed = running.gpus.prepare(BOTH)
        assert failed is not None
        assert failed.reason == FailureReason.DRIVER_UNAVAILABLE
        made.set(rules=())
        eventually(lambda: running.gpus.prepare(BOTH) is None)


def test_calls_that_are_slow_keep_nothing_back(host: MakeHost) -> None:
    made = host(rules=("slow 1300 nvmlDeviceGetPersistenceMode",))
    with made.running(replace(PERIODS, deadline=20.0)) as running:
        looked = running.gpus.fingerprint()
        made.event(0)
        while running.gpus.fingerprint() == looked:  # through a whole reading
            assert running.gpus.prepare(BOTH) is None


def test_an_error_that_says_nothing_of_processes_hands_over(host: MakeHost) -> None:
    made = host(rules=("fail 999 nvmlDeviceGetComputeRunningProcesses_v3",))
    with made.running() as running:
        assert running.gpus.busy(BOTH) == frozenset()
        assert running.gpus.prepare(BOTH) is None


def test_before_the_first_answer_nothing_is_busy(host: MakeHost) -> None:
    gpus = host(gpus=(gpu(0, procs=(1,)),)).make()
    assert gpus.busy(BOTH) == frozenset()
    gpus.close()

"""Slices while somebody else acts: a workload that starts, grows or nests, a person above them."""

import os
import subprocess
import time
from pathlib import Path

from bcd.node.host.standing import cgroup_slices
from tests.vm.guest.host import MIB, PYTHON, Hold, made, run, shown, wait_for

_GROWS = """
import time
with open("/sys/fs/cgroup/bcd.slice/bcd-alloc.slice/{slice}/memory.max") as file:
    first, held = file.read(), []
    while not file.seek(0) and file.read() == first and len(held) < 500:
        held.append(bytearray(b"x") * (1 << 20))
        time.sleep(0.003)
time.sleep(1000)
"""


def memory_that_is_lowered_under_a_growing_workload_ends_nobody(hold: Hold) -> None:
    hold.publish()
    for _ in range(3):
        hold.ensure(memory_bytes=700 * MIB)
        hold.start(PYTHON, "-I", "-S", "-c", _GROWS.format(slice=hold.slice))
        wait_for("its memory", lambda: int(hold.file("memory.current")) > 40 * MIB)
        target = (int(hold.file("memory.current")) // MIB + 10) * MIB
        failed = hold.slices.ensure(hold.id, made(memory_bytes=target))
        print(failed, hold.file("memory.current"), target)
        assert hold.file("memory.max") == str(700 * MIB if failed else target)
        assert hold.state().surprise == ""
        assert "oom_kill 0" in hold.file("memory.events").splitlines()
        assert not hold.state().empty
        hold.end()


def a_workload_that_just_started_is_not_taken_along_by_a_stop(hold: Hold) -> None:
    for number in range(12):
        hold.ensure()
        ran, unit = Path(f"/run/race-{number}"), f"race-{number}.service"
        start = subprocess.Popen(
            ["systemd-run", "-q", "--no-block", f"--slice={hold.slice}", f"--unit={unit}",
             "sh", "-c", f"echo ran > {ran}; exec sleep 1000"],
        )  # fmt: skip
        time.sleep(0.02 * number)  # no event tells of the moment before a process is there
        stopped = hold.slices.stop(hold.id)
        start.wait(60)
        wait_for("its start, or its failure", lambda: _over(unit))  # noqa: B023
        print(number, stopped, ran.exists(), _active(unit))
        # One that comes after the stop makes the slice anew, and is held down there.
        assert not ran.exists() or _active(unit) == "active"
        hold.end(unit)
        assert hold.slices.stop(hold.id)


def _active(unit: str) -> str:
    return shown("ActiveState", unit)


def _over(unit: str) -> bool:
    """Whether a start came to its end; a unit that has yet to wait is inactive as well."""
    return not shown("Job", unit) and _active(unit) not in ("activating", "")


def control_groups_nested_by_the_thousand_do_not_keep_a_slice(hold: Hold) -> None:
    hold.ensure()
    descriptor = os.open(hold.folder, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("a", dir_fd=descriptor)
        below = os.open("a", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    assert cgroup_slices(Path("/"))[hold.id].empty
    began = time.monotonic()
    assert hold.slices.stop(hold.id)
    print(f"stopped in {time.monotonic() - began:.2f} s")
    assert hold.slices.read() == {}


def what_the_slices_above_withhold_is_told_with_the_remedy(hold: Hold) -> None:
    assert hold.slices.read() == {}
    other = Hold(hold.number + 1000)
    other.ensure(cpus="2-3", memory_bytes=256 * MIB)
    other.publish()
    try:
        for setting, file in (
            ("AllowedCPUs=0-1", "bcd.slice/cpuset.cpus"),
            ("AllowedMemoryNodes=1", "bcd.slice/cpuset.mems"),
            ("MemoryMax=100M", "bcd.slice/memory.max"),
            ("CPUQuota=10%", "bcd.slice/cpu.max"),
        ):
            run("systemctl", "set-property", "--runtime", "bcd.slice", setting)
            failed = hold.slices.ensure(hold.id, made(cpus="2-3", mems="0"))
            assert failed is not None, setting
            assert file in failed.message, failed.message
            assert list(hold.slices.read()) == [other.id]
            if "mems" not in file:
                assert file in other.state().narrowed
                other.ensure(cpus="2-3", memory_bytes=256 * MIB)
            run(*failed.message.rpartition("; ")[2].split())
            hold.ensure(cpus="2-3", mems="0")
            assert other.state().narrowed == ""
            assert hold.slices.stop(hold.id)
    finally:
        run("systemctl", "revert", "bcd.slice")
        other.clean()


UNDER_WAY = (
    memory_that_is_lowered_under_a_growing_workload_ends_nobody,
    a_workload_that_just_started_is_not_taken_along_by_a_stop,
    control_groups_nested_by_the_thousand_do_not_keep_a_slice,
    what_the_slices_above_withhold_is_told_with_the_remedy,
)

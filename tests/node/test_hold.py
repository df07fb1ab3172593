"""Holds as variables: written for strict readers, read back without a guess."""

import subprocess
from pathlib import Path

import pytest

from bcd.model.assignment import AssignedDevice, Assignment, Sharing, SharingMode
from bcd.model.device import DeviceClass
from bcd.node.hold import Hold, MalformedHold, env_file, hold_of, read_hold, variables
from tests.node.memory import MIG, SLOTS, WHOLE
from tests.node.world import alloc_id, assignment, limits, node_id


def entries(hold: Hold) -> list[str]:
    return [f"{key}={value}" for key, value in variables(hold, node_id()).items()]


@pytest.mark.parametrize(
    "wanted",
    [
        assignment(1, *WHOLE),
        assignment(2, MIG[0], WHOLE[0], MIG[1], limits=limits(cpus="0-3,8", mems="0")),
        assignment(3, SLOTS[1]),
        assignment(4, SLOTS[1], sharing=Sharing(SharingMode.MPS, 10)),
    ],
)
def test_variables_turn_back_into_the_same_hold(wanted: Assignment) -> None:
    hold = hold_of(wanted)
    assert read_hold(entries(hold)) == hold


def test_an_extension_changes_nothing_of_the_hold() -> None:
    sooner, later = (assignment(1, *WHOLE, until_ms=until) for until in (1, 2))
    assert hold_of(sooner) == hold_of(later)


def test_cpulists_become_canonical() -> None:
    hold = hold_of(assignment(1, WHOLE[0], limits=limits(cpus="3,0-2", mems=" 1 ")))
    assert hold.limits is not None
    assert (hold.limits.cpus, hold.limits.mems) == ("0-3", "1")


def test_env_file_is_read_by_bash_as_it_stands(tmp_path: Path) -> None:
    hold = hold_of(assignment(1, WHOLE[1], WHOLE[0], limits=limits(cpus="0-3")))
    path = tmp_path / "hold.env"
    path.write_bytes(env_file(hold, node_id()))
    shown = subprocess.run(
        ["bash", "-euc", f". {path}; echo $BCD_ALLOCATION_ID $CUDA_VISIBLE_DEVICES $BCD_CPUS"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"{alloc_id(1)} GPU-1,GPU-0 0-3\n"


def test_slots_of_one_gpu_show_cuda_that_gpu_once() -> None:
    lines = env_file(hold_of(assignment(1, *SLOTS)), node_id()).decode().splitlines()
    assert "CUDA_VISIBLE_DEVICES=GPU-9" in lines


@pytest.mark.parametrize("name", ["GPU 1", "GPU-1\nX=1", "GPU-1;rm", "$(id)", "GPU-1\0"])
def test_a_value_that_needs_quoting_is_refused(name: str) -> None:
    hold = Hold(alloc_id(1), (AssignedDevice(name, DeviceClass.GPU),))
    with pytest.raises(MalformedHold):
        env_file(hold, node_id())


@pytest.mark.parametrize(
    "changed",
    [
        "BCD_ALLOCATION_ID=../../etc",
        "BCD_DEVICES=",
        "BCD_DEVICES=nvidia.com/gpu=GPU-0",
        "BCD_DEVICES=bcd.dev/disk=GPU-0",
        "BCD_DEVICES=bcd.dev/gpu=GPU-0,bcd.dev/gpu=GPU-0",
        "BCD_MEMORY_BYTES=-1",
        "BCD_CPU_MILLIS=",
        "BCD_CPUS=0-3;1",
    ],
)
def test_variables_that_do_not_fit_are_refused(changed: str) -> None:
    key = changed.partition("=")[0]
    hold = hold_of(assignment(1, WHOLE[0], limits=limits()))
    kept = [entry for entry in entries(hold) if not entry.startswith(f"{key}=")]
    with pytest.raises(MalformedHold):
        read_hold([*kept, changed])

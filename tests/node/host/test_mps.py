"""MPS daemons as systemd units, with a control program and a systemd that the test makes."""

import shutil
import stat
import time
from pathlib import Path

import pytest

from bcd.model.report import FailureReason
from bcd.node.host.mps import MpsDaemons, unit_name
from bcd.node.ports import MpsState
from bcd.node.sharing import UNKNOWN_SHARE, MpsShare
from tests.node.host.made_mps import GPU, QUICK, SHARE, Clock, FakeUnits, daemons

OTHER = MpsShare(10, 8 << 30)


@pytest.fixture
def made(tmp_path: Path) -> tuple[MpsDaemons, FakeUnits]:
    return daemons(tmp_path)


@pytest.fixture
def mps(made: tuple[MpsDaemons, FakeUnits]) -> MpsDaemons:
    return made[0]


@pytest.fixture
def units(made: tuple[MpsDaemons, FakeUnits]) -> FakeUnits:
    return made[1]


def variables(units: FakeUnits) -> dict[str, str]:
    lines = (units.folder / f"{GPU}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_daemon_is_told_its_gpu_and_each_clients_share(mps: MpsDaemons, units: FakeUnits) -> None:
    assert mps.read() == {}
    assert mps.ensure(GPU, SHARE) is None
    assert units.active == [unit_name(GPU)] == [f"bcd-mps@{GPU}.service"]
    said = variables(units)
    assert said["CUDA_VISIBLE_DEVICES"] == GPU
    assert said["CUDA_MPS_PIPE_DIRECTORY"] == str(units.folder / GPU / "pipe")
    assert said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"
    assert stat.S_IMODE((units.folder / GPU / "shm").stat().st_mode) == 0o1777
    assert mps.read() == {GPU: MpsState(SHARE, ready=True)}


def test_a_daemon_that_died_is_not_ready_and_can_be_started_again(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    units.die()
    assert mps.read() == {GPU: MpsState(SHARE, ready=False)}
    assert mps.ensure(GPU, SHARE) is None
    assert mps.read() == {GPU: MpsState(SHARE, ready=True)}
    assert units.starts == 2


def test_a_daemon_that_gives_what_it_should_is_not_started_again(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    assert mps.ensure(GPU, SHARE) is None
    assert units.starts == 1
    assert mps.ensure(GPU, OTHER) is None
    assert (units.starts, variables(units)["BCD_MPS_REPLICAS"]) == (2, "10")


def test_a_daemon_with_clients_keeps_its_variables_and_its_process(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    units.occupy(True)
    failed = mps.ensure(GPU, OTHER)
    assert failed is not None
    assert "other shares" in failed.message
    assert (units.starts, variables(units)["BCD_MPS_REPLICAS"]) == (1, "4")
    assert mps.read() == {GPU: MpsState(SHARE, ready=True, busy=True)}


def test_a_daemon_that_runs_and_does_not_answer_is_neither_started_again_nor_stopped(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    (units.folder / GPU / "pipe/control").unlink()
    states = [mps.read()[GPU] for _ in range(3)]
    assert [state.ready for state in states] == [True, True, False]
    assert all(state.busy for state in states)
    for share in (SHARE, OTHER):
        failed = mps.ensure(GPU, share)
        assert failed is not None
        assert f"journalctl -u {unit_name(GPU)}" in failed.message
    assert not mps.stop(GPU)
    assert (units.starts, units.active) == (1, [unit_name(GPU)])
    assert variables(units)["BCD_MPS_REPLICAS"] == "4"
    (units.folder / GPU / "pipe/control").touch()
    assert mps.read() == {GPU: MpsState(SHARE, ready=True)}


def test_a_running_daemon_whose_shared_memory_was_removed_is_not_ready(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    (units.folder / GPU / "shm").rmdir()
    assert not mps.read()[GPU].ready
    assert mps.ensure(GPU, SHARE) is None
    assert mps.read() == {GPU: MpsState(SHARE, ready=True)}
    assert (units.folder / GPU / "shm").is_dir()
    assert units.starts == 2


def test_silent_daemons_are_asked_together_and_then_left_alone_for_a_while(tmp_path: Path) -> None:
    clock = Clock()
    mps, units = daemons(tmp_path, clock)
    mps.ensure(GPU, SHARE)
    units.hang(True)
    for number in range(2, 9):
        gpu = f"GPU-{number}{GPU[5:]}"
        shutil.copytree(units.folder / GPU, units.folder / gpu, dirs_exist_ok=True)
        shutil.copy(units.folder / f"{GPU}.env", units.folder / f"{gpu}.env")
        units.active.append(unit_name(gpu))
    began = time.monotonic()
    assert all(state.busy for state in mps.read().values())
    once = time.monotonic() - began
    assert QUICK.answer_s <= once < 4 * QUICK.answer_s, "one after the other takes 8 times as long"
    began = time.monotonic()
    mps.read()
    assert mps.ensure(GPU, SHARE) is not None
    assert not mps.stop(GPU)
    assert time.monotonic() - began < once
    units.hang(False)
    assert mps.read()[GPU].busy
    clock.slept += QUICK.avoid_s
    assert not mps.read()[GPU].busy


def test_a_daemon_that_hangs_from_its_start_costs_one_deadline(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    units.die()
    units.listens = False
    units.hang(True)
    began = time.monotonic()
    assert mps.ensure(GPU, SHARE) is not None
    assert time.monotonic() - began < 4 * QUICK.start_s, "thirty questions take ten times as long"


def test_a_daemon_with_a_server_is_not_stopped(mps: MpsDaemons, units: FakeUnits) -> None:
    mps.ensure(GPU, SHARE)
    units.occupy(True)
    assert not mps.stop(GPU)
    assert units.active
    units.occupy(False)
    assert mps.stop(GPU)
    assert (units.active, mps.read()) == ([], {})


def test_nothing_that_clients_left_is_there_for_those_of_the_next_daemon(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    mps.ensure(GPU, SHARE)
    (units.folder / GPU / "shm/secret").write_text("of a client")
    units.problem = "job failed"
    assert not mps.stop(GPU)
    assert (units.folder / GPU / "shm/secret").exists()
    units.problem = ""
    assert mps.stop(GPU)
    assert list(units.folder.iterdir()) == []


def test_a_unit_that_does_not_start_or_stop_is_told_and_stays_known(
    mps: MpsDaemons, units: FakeUnits
) -> None:
    units.problem = "job failed"
    failed = mps.ensure(GPU, SHARE)
    assert failed is not None
    assert failed.reason == FailureReason.SHARING_FAILED
    assert "job failed" in failed.message
    assert not mps.stop(GPU)
    assert list(mps.read()) == [GPU]


def test_a_daemon_that_never_answers_fails_its_bind(mps: MpsDaemons, units: FakeUnits) -> None:
    units.listens = False
    failed = mps.ensure(GPU, SHARE)
    assert failed is not None
    assert f"journalctl -u {unit_name(GPU)}" in failed.message
    assert (units.starts, units.active) == (1, []), "no container saw its pipe, and it is stopped"
    assert mps.read() == {}


@pytest.mark.parametrize("name", ["../x", "GPU-1", f"{GPU}\n", "MIG-" + GPU[4:], ""])
def test_a_name_that_is_no_gpus_starts_nothing(
    mps: MpsDaemons, units: FakeUnits, name: str
) -> None:
    assert mps.ensure(name, SHARE) is not None
    assert units.starts == 0
    assert not units.folder.exists()


def test_files_that_are_not_ours_are_no_daemons(mps: MpsDaemons, units: FakeUnits) -> None:
    units.folder.mkdir()
    (units.folder / "notes.env").write_text("x")
    (units.folder / f"{GPU}.env").write_bytes(b"\xff" * 9000)
    assert mps.read() == {GPU: MpsState(UNKNOWN_SHARE, ready=False)}


def test_a_host_without_the_control_program_has_no_daemon_that_answers(
    units: FakeUnits, tmp_path: Path
) -> None:
    clock = Clock()
    bare = MpsDaemons(
        units.folder,
        units,
        sleep=clock.sleep,
        environment={"PATH": str(tmp_path)},
        clock=clock.now,
    )
    assert bare.ensure(GPU, SHARE) is not None

"""MPS daemons as systemd units, with a control program and a systemd that the test makes."""

import stat
from pathlib import Path

import pytest

from bcd.model.report import FailureReason
from bcd.node.host.mps import MpsDaemons, unit_name
from bcd.node.ports import MpsState
from bcd.node.sharing import MpsShare
from tests.node.host.made_mps import GPU, SHARE, FakeUnits, daemons


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
    (units.folder / GPU / "pipe/control").unlink()
    assert mps.read() == {GPU: MpsState(SHARE, ready=False)}
    assert mps.ensure(GPU, SHARE) is None
    assert mps.read() == {GPU: MpsState(SHARE, ready=True)}


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
    assert mps.read() == {GPU: MpsState(MpsShare(1, 0), ready=False)}


def test_a_host_without_the_control_program_has_no_daemon_that_answers(
    units: FakeUnits, tmp_path: Path
) -> None:
    bare = MpsDaemons(
        units.folder, units, sleep=lambda _: None, environment={"PATH": str(tmp_path)}
    )
    assert bare.ensure(GPU, SHARE) is not None

"""MPS control daemons as units of a real systemd, with programs that play NVIDIA's."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bcd.model.report import FailureReason
from bcd.node.host.mps import MpsDaemons, unit_name
from bcd.node.ports import MpsState
from bcd.node.sharing import MpsShare
from tests.vm.guest.host import UNITS, Hold, run, wait_for

GPU = "GPU-11111111-2222-3333-4444-555555555555"
_SHARE, _OTHER = MpsShare(4, 20 << 30), MpsShare(10, 8 << 30)
_FOLDER = Path("/run/bcd/mps")
_OF_GPU = _FOLDER / GPU
_LOG, _REFUSE = _FOLDER / "nvidia-smi.log", _FOLDER / "refuse"
_UNIT = unit_name(GPU)
_PROGRAMS = Path(__file__).parent / "programs"
_EXCLUSIVE, _DEFAULT = (
    f"--id={GPU} --compute-mode={mode}" for mode in ("EXCLUSIVE_PROCESS", "DEFAULT")
)


def _scenario(case: Callable[[MpsDaemons], None]) -> Callable[[Hold], None]:
    """With the programs installed, and nothing left of the GPU's daemon at the end."""

    def scenario(hold: Hold) -> None:
        with _programs():
            case(MpsDaemons(_FOLDER, UNITS))

    scenario.__name__ = case.__name__
    return scenario


@contextlib.contextmanager
def _programs() -> Iterator[None]:
    for program in _PROGRAMS.iterdir():
        shutil.copy(program, Path("/usr/local/bin", program.name))
    _FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        run("systemctl", "stop", _UNIT, check=False)
        shutil.rmtree(_FOLDER)


def _modes() -> list[str]:
    """How the compute mode was set, in order."""
    return _LOG.read_text().splitlines() if _LOG.exists() else []


def _shown(name: str) -> str:
    return run("systemctl", "show", "--value", f"--property={name}", _UNIT).strip()


def _variables() -> dict[str, str]:
    """Those of the daemon that runs."""
    lines = (_OF_GPU / "log/variables").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def _start(mps: MpsDaemons) -> None:
    failed = mps.ensure(GPU, _SHARE)
    assert failed is None, failed
    assert mps.read() == {GPU: MpsState(_SHARE, ready=True)}


def an_mps_daemon_runs_with_its_gpus_share_and_shared_memory(mps: MpsDaemons) -> None:
    _start(mps)
    assert _modes() == [_EXCLUSIVE]
    said = _variables()
    assert said["CUDA_VISIBLE_DEVICES"] == GPU
    assert said["CUDA_MPS_PIPE_DIRECTORY"] == str(_OF_GPU / "pipe")
    assert said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"
    assert (_OF_GPU / "shm/server").read_text() == "a server was here\n"
    assert not Path("/dev/shm/server").exists()
    assert _shown("StartLimitIntervalUSec") == "0", "it would not be started again for ever"


def an_mps_daemon_that_is_killed_comes_back_in_exclusive_mode(mps: MpsDaemons) -> None:
    _start(mps)
    run("systemctl", "kill", "--kill-who=main", "--signal=KILL", _UNIT)
    wait_for("a restart", lambda: _shown("NRestarts") == "1")
    wait_for("the mode", lambda: _modes() == [_EXCLUSIVE, _DEFAULT, _EXCLUSIVE])
    wait_for("the daemon", lambda: mps.read() == {GPU: MpsState(_SHARE, ready=True)})


def an_mps_daemon_with_another_share_is_another_process(mps: MpsDaemons) -> None:
    _start(mps)
    before = _shown("MainPID")
    failed = mps.ensure(GPU, _OTHER)
    assert failed is None, failed
    assert mps.read() == {GPU: MpsState(_OTHER, ready=True)}
    assert _shown("MainPID") not in ("0", before)
    assert _variables()["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
    assert _modes() == [_EXCLUSIVE, _DEFAULT, _EXCLUSIVE]


def an_mps_daemon_with_clients_goes_on_whatever_is_asked(mps: MpsDaemons) -> None:
    _start(mps)
    before = _shown("MainPID")
    servers = _OF_GPU / "pipe/servers"
    servers.write_text("4711\n")
    failed = mps.ensure(GPU, _OTHER)
    assert failed is not None
    assert failed.reason == FailureReason.SHARING_FAILED
    assert mps.read() == {GPU: MpsState(_SHARE, ready=True, busy=True)}
    servers.unlink()
    assert UNITS.start(_UNIT) == "", "an active unit is started already"
    control = _OF_GPU / "pipe/control"
    pid = control.read_text()
    control.unlink()  # it answers no more, and runs
    assert mps.read() == {GPU: MpsState(_SHARE, ready=True, busy=True)}
    failed = mps.ensure(GPU, _SHARE)
    assert failed is not None
    assert f"{_UNIT} is active" in failed.message
    assert not mps.stop(GPU)
    control.write_text(pid)
    assert mps.ensure(GPU, _SHARE) is None
    assert _shown("MainPID") == before
    assert _modes() == [_EXCLUSIVE]


def an_mps_daemon_that_stops_leaves_the_default_mode_and_no_files(mps: MpsDaemons) -> None:
    _start(mps)
    (_OF_GPU / "pipe/servers").write_text("4711\n")
    assert not mps.stop(GPU)
    assert _modes() == [_EXCLUSIVE]
    (_OF_GPU / "pipe/servers").unlink()
    assert mps.stop(GPU)
    assert _modes() == [_EXCLUSIVE, _DEFAULT]
    assert _shown("ActiveState") == "inactive"
    assert [path.name for path in _FOLDER.iterdir()] == [_LOG.name]
    assert mps.stop(GPU), "it is gone already"


def an_mps_daemon_that_cannot_start_is_named_and_tried_no_more(mps: MpsDaemons) -> None:
    _REFUSE.touch()
    failed = mps.ensure(GPU, _SHARE)
    assert failed is not None
    assert failed.reason == FailureReason.SHARING_FAILED
    assert f"journalctl -u {_UNIT}" in failed.message
    assert _modes() == [_EXCLUSIVE, _DEFAULT]
    time.sleep(3)  # longer than the unit's RestartSec
    assert _modes() == [_EXCLUSIVE, _DEFAULT]
    _REFUSE.unlink()
    _start(mps)


def an_mps_daemon_whose_program_is_missing_is_named(mps: MpsDaemons) -> None:
    for program in _PROGRAMS.iterdir():
        Path("/usr/local/bin", program.name).unlink()
    failed = mps.ensure(GPU, _SHARE)
    assert failed is not None
    assert _UNIT in failed.message
    assert _shown("ActiveState") in ("inactive", "failed")


_IN_SANDBOX = """
from pathlib import Path
from bcd.node.host.mps import MpsDaemons
from bcd.node.host.systemd.conversation import SystemdUnits
from bcd.node.sharing import MpsShare
mps = MpsDaemons(Path("/run/bcd/mps"), SystemdUnits(Path("/")))
gpu = "{gpu}"
print(mps.ensure(gpu, MpsShare(4, 20 << 30)), mps.read()[gpu].ready)
print(mps.stop(gpu), mps.read())
"""


def the_daemons_own_sandbox_lets_it_make_and_stop_mps_daemons(hold: Hold) -> None:
    with _programs():
        code, said = hold.daemon(_IN_SANDBOX.format(gpu=GPU))
        assert (code, said.splitlines()) == (0, ["None True", "True {}"]), said
        assert _modes() == [_EXCLUSIVE, _DEFAULT]


MPS = (
    *(
        _scenario(case)
        for case in (
            an_mps_daemon_runs_with_its_gpus_share_and_shared_memory,
            an_mps_daemon_that_is_killed_comes_back_in_exclusive_mode,
            an_mps_daemon_with_another_share_is_another_process,
            an_mps_daemon_with_clients_goes_on_whatever_is_asked,
            an_mps_daemon_that_stops_leaves_the_default_mode_and_no_files,
            an_mps_daemon_that_cannot_start_is_named_and_tried_no_more,
            an_mps_daemon_whose_program_is_missing_is_named,
        )
    ),
    the_daemons_own_sandbox_lets_it_make_and_stop_mps_daemons,
)

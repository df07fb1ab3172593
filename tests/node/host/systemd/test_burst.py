"""One child for a burst of operations, whatever becomes of it in between."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import bcd
from bcd.node.host.systemd.conversation import SystemdUnits
from bcd.node.host.systemd.process import Launch

_WAIT_S = 30.0


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """A process that ended and that nobody reaped runs no more."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Burst:
    """Units whose child is the fake one."""

    def __init__(self, folder: Path) -> None:
        self._root, self._log = folder, folder / "log"
        self._opened: list[SystemdUnits] = []

    def units(self, *, deadline_s: float = _WAIT_S, idle_s: float = _WAIT_S) -> SystemdUnits:
        command = (sys.executable, "-P", "-m", "tests.node.host.systemd.fake_child")
        launch = Launch((*command, str(self._log)))
        self._opened.append(SystemdUnits(self._root, deadline_s, idle_s=idle_s, launch=launch))
        return self._opened[-1]

    def pids(self) -> list[int]:
        """The child that did each operation."""
        return [int(line.split()[0]) for line in self._log.read_text().splitlines()]

    def close(self) -> None:
        for units in self._opened:
            units.close()


@pytest.fixture
def burst(tmp_path: Path) -> Iterator[Burst]:
    made = Burst(tmp_path)
    yield made
    made.close()


def test_operations_share_a_child(burst: Burst) -> None:
    units = burst.units()
    assert [units.start("a"), units.stop("b"), units.apply("c", ())] == ["", "", ""]
    assert len(burst.pids()) == 3
    assert len(set(burst.pids())) == 1


def test_a_child_that_somebody_killed_is_replaced_unheard(burst: Burst) -> None:
    units = burst.units()
    for _ in range(10):
        assert units.start("a") == ""
        os.kill(burst.pids()[-1], signal.SIGKILL)
        assert units.start("a") == ""
    assert len(set(burst.pids())) == 11


def test_an_operation_that_failed_was_the_last_of_its_child(burst: Burst) -> None:
    units = burst.units()
    assert units.start("fail.slice") == "systemd says: no fail.slice"
    assert units.start("a") == ""
    first, second = burst.pids()
    assert first != second
    wait_for("its end", lambda: not runs(first))


def test_a_child_that_hangs_costs_the_deadline_and_is_killed(burst: Burst) -> None:
    units = burst.units(deadline_s=3)
    assert units.start("a") == ""
    assert units.start("hang").startswith("systemd did not answer within 3 s")
    pid = burst.pids()[-1]
    wait_for("its end", lambda: not runs(pid))
    before = burst.pids()
    assert units.start("a").startswith("systemd did not answer")
    assert burst.pids() == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("garbage", "it sent what is no answer"),
        ("megabytes", "it sent more than 65536 bytes"),
        ("earlier", "it sent what is no answer"),
        ("list", "it sent what is no answer"),
        ("exit", "it ended by itself"),
        ("crash", "RuntimeError: out of luck"),
    ],
)
def test_a_child_that_talks_nonsense_is_told_and_replaced(
    burst: Burst, name: str, words: str
) -> None:
    units = burst.units()
    said = units.start(name)
    assert said.startswith(f"the program that speaks to systemd failed: {words}")
    wait_for("its end", lambda: not runs(burst.pids()[0]))
    assert units.start("a") == ""


def test_a_child_of_another_version_does_nothing_for_a_daemon_that_is_older(
    burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = burst.units()
    assert units.start("a") == ""
    monkeypatch.setattr(bcd, "__version__", "0.0.1")
    assert units.start("b").startswith("systemd was not asked: bcd is being upgraded")
    assert units.stop("c").startswith("systemd was not asked: bcd is being upgraded")
    assert len(burst.pids()) == 1
    monkeypatch.undo()
    assert units.start("d") == ""


def test_what_a_library_prints_is_no_answer(burst: Burst) -> None:
    units = burst.units()
    assert [units.start("chatty"), units.start("chatty")] == ["", ""]
    assert len(set(burst.pids())) == 1


def test_a_child_gets_none_of_the_daemons_secrets(
    burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BCD_SECRET", "x")
    assert "BCD_SECRET" in os.environ
    names = burst.units().start("variables").split(",")
    assert "PYTHONPATH" in names
    assert "BCD_SECRET" not in names


def test_a_child_that_is_not_needed_ends_and_leaves_no_zombie(burst: Burst) -> None:
    units = burst.units(idle_s=0.1)
    assert units.start("a") == ""
    [pid] = burst.pids()
    wait_for("its end", lambda: not psutil.pid_exists(pid))
    assert units.start("a") == ""
    assert units.start("fail") != ""
    for pid in burst.pids():
        wait_for(f"the end of {pid}", lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]


def test_hundreds_of_operations_leave_no_descriptor_and_no_zombie(burst: Burst) -> None:
    this = psutil.Process()
    descriptors, children = this.num_fds(), {child.pid for child in this.children()}
    units = burst.units()
    for number in range(200):
        units.start("a")
        if number % 20 == 0:
            os.kill(burst.pids()[-1], signal.SIGKILL)
        if number % 20 == 10:
            assert units.start("garbage") != ""
    assert len(burst.pids()) >= 210
    units.close()
    wait_for("the last", lambda: units.close() or _own_children(this) <= children)  # type: ignore[func-returns-value]
    assert this.num_fds() <= descriptors


def _own_children(this: psutil.Process) -> set[int]:
    return {child.pid for child in this.children()}


def test_threads_take_turns(burst: Burst) -> None:
    units = burst.units()
    assert units.start("a") == ""
    with ThreadPoolExecutor(8) as pool:
        names = [f"echo.{number}" for number in range(16)]
        said = list(pool.map(units.start, names))
    assert said == [f"systemd says: no {name}" for name in names]


_PARENT = """
import sys
from pathlib import Path
from bcd.node.host.systemd.conversation import SystemdUnits
from bcd.node.host.systemd.process import Launch
command = (sys.executable, "-P", "-m", "tests.node.host.systemd.fake_child", *sys.argv[2:])
units = SystemdUnits(Path("/nowhere"), launch=Launch(command))
units.start("a")
print("ready", flush=True)
units.start(sys.argv[1])
sys.stdin.read()
"""


@pytest.mark.parametrize(("last", "alarm_s"), [("a", ()), ("hang", ("0.5",))])
def test_a_child_does_not_outlive_the_daemon_however_that_ends(
    tmp_path: Path, last: str, alarm_s: tuple[str, ...]
) -> None:
    log = tmp_path / "log"
    path = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _PARENT, last, str(log), *alarm_s],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        wait_for("the last operation", lambda: log.read_text().count("\n") == 2)
        child = int(log.read_text().split()[-2])
        parent.kill()
    wait_for("the end of the child", lambda: not runs(child))


def test_a_host_without_pystemd_is_told_so(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pystemd'] = None\n"
        "from bcd.node.host.systemd.child import main; main()"
    )
    units = SystemdUnits(tmp_path, launch=Launch((sys.executable, "-P", "-c", program)))
    said = units.stop("bcd-alloc-x.slice")
    assert said.startswith("the program that speaks to systemd failed: ModuleNotFoundError")
    assert "pystemd" in said
    units.close()


def test_a_child_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    units = SystemdUnits(tmp_path, launch=Launch((str(tmp_path / "nothing"),)))
    assert units.start("a").startswith("the program that speaks to systemd cannot be started")
    units.close()

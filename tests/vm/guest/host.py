"""The emulated host from inside: its slices, workloads in them, and systemd's own commands."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bcd.model.assignment import Limits, slice_name
from bcd.model.ids import AllocationId, type_id
from bcd.node.cdi import file_name
from bcd.node.host.systemd.conversation import SystemdUnits
from bcd.node.host.systemd.slices import SystemdSlices
from bcd.node.ports import SliceState

MIB = 1 << 20
PYTHON = "/usr/bin/python3"  # the host's own, for workloads
CDI = Path("/etc/cdi")
_ALLOC = Path("/sys/fs/cgroup/bcd.slice/bcd-alloc.slice")
_WAIT_S = 30.0
UNITS = SystemdUnits(Path("/"))  # as in a daemon, one for all
UNIT_FILES = Path("/payload/tree/systemd")
_SANDBOX = (
    "CapabilityBoundingSet", "LockPersonality", "MemoryDenyWriteExecute", "NoNewPrivileges",
    "PrivateIPC", "PrivateTmp", "ReadWritePaths", "RuntimeDirectory", "RuntimeDirectoryPreserve",
    "SystemCallArchitectures", "SystemCallErrorNumber", "SystemCallFilter", "UMask",
)  # fmt: skip


def alloc_id(number: int) -> AllocationId:
    """Ids ascend with their numbers."""
    return AllocationId(type_id("alloc", 1_700_000_000_000 + number, number.to_bytes(10, "big")))


def run(*command: str, check: bool = True) -> str:
    """Run a command and return what it printed; its failure ends the scenario."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def shown(name: str, unit: str) -> str:
    """A property of a unit, as systemctl prints it; ``Job`` is empty when none is under way."""
    return run("systemctl", "show", "-P", name, unit).strip()


def wait_for(what: str, holds: Callable[[], bool], wait_s: float = _WAIT_S) -> None:
    """Wait for something that no event tells of; fails after half a minute."""
    deadline = time.monotonic() + wait_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.05)


def journal(since: float) -> str:
    """Units that failed, and the last that any unit, systemd and the kernel said since a time.

    In seconds since 1970. Who waits in vain reads here how what it waited for came to its end.
    """
    failed = run("systemctl", "--failed", "--plain", "--no-legend", check=False)
    words = ("-b", f"--since=@{int(since)}", "-n", "80", "-o", "short-monotonic")
    return f"failed units:\n{failed}the journal:\n{run('journalctl', *words, check=False)}"


class Hold:
    """An allocation on this host, with the slice that limits it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.id = alloc_id(number)
        self.slice = slice_name(self.id)
        self.folder = _ALLOC / self.slice
        # Emulated, an answer of systemd takes its time.
        self.slices = SystemdSlices(Path("/"), units=UNITS, settle_s=4.0)

    def ensure(self, **limits: int | str) -> None:
        """Give it limits; a failure ends the scenario."""
        failed = self.slices.ensure(self.id, made(**limits))
        assert failed is None, failed

    def publish(self) -> None:
        """Its CDI spec, as far as slices care."""
        CDI.mkdir(exist_ok=True)
        (CDI / file_name(self.id)).write_text("{}")

    def state(self) -> SliceState:
        """What the port reads."""
        found = self.slices.read().get(self.id)
        assert found is not None, f"no {self.slice}"
        return found

    def file(self, name: str) -> str:
        """A control file's content."""
        return (self.folder / name).read_text().strip()

    def start(self, *command: str, unit: str = "") -> None:
        """Start a workload in the slice, which stays until ``end``."""
        run(
            "systemd-run", "-q", "--collect", f"--slice={self.slice}",
            f"--unit={unit or self.unit}", *(command or ("sleep", "1000")),
        )  # fmt: skip
        wait_for("the workload", lambda: not self.state().empty)

    @property
    def unit(self) -> str:
        """The workload's unit."""
        return f"workload-{self.id[-4:]}.service"

    def end(self, unit: str = "") -> None:
        """End the workload, and wait until nothing of it is left."""
        unit = unit or self.unit
        run("systemctl", "kill", "--signal=KILL", unit, check=False)
        run("systemctl", "stop", unit, check=False)
        wait_for("an empty slice", lambda: not self.folder.exists() or self.state().empty)

    def execute(self, program: str) -> tuple[int, str]:
        """Run a Python program in the slice: its exit code, and what it printed."""
        done = subprocess.run(
            ["systemd-run", "-q", "--collect", "--wait", "--pipe", f"--slice={self.slice}",
             PYTHON, "-I", "-S", "-c", program],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout.strip()

    def daemon(self, program: str) -> tuple[int, str]:
        """Run a Python program, given this hold's number, in the sandbox of ``bcd.service``."""
        sandbox = [
            f"--property={line}"
            for line in (UNIT_FILES / "bcd.service").read_text().splitlines()
            if line.partition("=")[0] in _SANDBOX or line.startswith(("Protect", "Restrict"))
        ]
        assert len(sandbox) > len(_SANDBOX)
        CDI.mkdir(exist_ok=True)  # without it the sandbox is not made
        path = f"PYTHONPATH={os.environ['PYTHONPATH']}"
        done = subprocess.run(
            ["systemd-run", "-q", "--collect", "--wait", "--pipe", *sandbox, f"--setenv={path}",
             sys.executable, "-P", "-c", program, str(self.number)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def clean(self) -> None:
        """Leave nothing behind, whatever the scenario did."""
        self.end()
        with contextlib.suppress(FileNotFoundError):
            (CDI / file_name(self.id)).unlink()
        assert self.slices.stop(self.id), f"{self.slice} does not stop"
        assert not self.slices.read()


def made(
    *,
    cpu_millis: int | str = 0,
    memory_bytes: int | str = 256 * MIB,
    hugepages_1gi: int | str = 0,
    cpus: int | str = "",
    mems: int | str = "",
) -> Limits:
    """Limits that fit the emulated host."""
    return Limits(
        cpu_millis=int(cpu_millis),
        memory_bytes=int(memory_bytes),
        hugepages_1gi=int(hugepages_1gi),
        cpus=str(cpus),
        mems=str(mems),
    )

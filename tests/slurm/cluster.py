"""A Slurm of one node in a folder: munged, slurmctld and slurmd of Debian, without systemd.

Its GPUs are device nodes that answer nothing; proctrack and task plugins are those that need no
control groups. Needs root, for the nodes and for slurmd.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol")
_WAIT_S = 30.0
_CONF = """
ClusterName=made
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
{recipe}
NodeName=made NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:h100:4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Slurm:
    """The running cluster."""

    folder: Path

    @property
    def _environment(self) -> Mapping[str, str]:
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of Slurm to its end."""
        return subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=False, env=self._environment
        )

    def node_state(self) -> str:
        """Such as ``IDLE``, or ``IDLE+DRAIN``."""
        said = self.run("scontrol", "--oneliner", "show", "node", "made").stdout
        return next((w[6:] for w in said.split() if w.startswith("State=")), "")

    def until_idle(self) -> None:
        """The node takes jobs."""
        deadline = time.monotonic() + _WAIT_S
        while self.node_state() != "IDLE":
            if time.monotonic() > deadline:
                raise RuntimeError((self.folder / "slurmd.log").read_text()[-2000:])
            time.sleep(0.1)


@contextlib.contextmanager
def running(folder: Path, recipe: str) -> Iterator[Slurm]:
    """Start all three for the length of a block; ``recipe`` are lines for slurm.conf."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing or os.geteuid() != 0:
        raise RuntimeError(
            f"missing: {' '.join(missing) or 'root'}; run as root apt-get install -y"
            " --no-install-recommends slurmd slurmctld slurm-client munge"
        )
    _prepare(folder, recipe)
    slurm = Slurm(folder)
    conf = str(folder / "slurm.conf")
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
         f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid",
         f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D", "-c", "-f", conf],
        ["slurmd", "-D", "-N", "made", "-f", conf],
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        for words in commands:
            stack.enter_context(_process(words, folder / f"{words[0]}.out"))
        slurm.until_idle()
        yield slurm


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


@contextlib.contextmanager
def _process(words: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=os.environ | {"PATH": _path()},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _prepare(folder: Path, recipe: str) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    for number in range(4):
        os.mknod(folder / f"gpu{number}", 0o020666, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"Name=gpu Type=h100 File={folder}/gpu[0-3]\n")
    (folder / "slurm.conf").write_text(
        _CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            ports=[_free_port(), _free_port()],
            recipe=recipe,
        )
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])

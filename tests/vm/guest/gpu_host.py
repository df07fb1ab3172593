"""A GPU host from inside: the package, made-up hardware, a gateway, and containers.

Nothing of the daemon runs in this process: it is the installed service. The gateway is the tests'
own, in a thread, and says what a control plane would.
"""

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bcd.model.assignment import AssignedDevice, Assignment, Limits, slice_name
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, NodeId, type_id
from bcd.model.report import Bound, Report
from tests.node.fake_gateway import FakeGateway
from tests.vm.guest.host import alloc_id, run, wait_for

T = TypeVar("T")
PAYLOAD = Path("/payload")
CDI = Path("/etc/cdi")
ENV = Path("/run/bcd/allocations")
STATE = Path("/var/lib/bcd")
MADE = Path("/opt/made")
IMAGE = "busybox:1"
NODE = NodeId(type_id("node", 1_700_000_000_000, (7).to_bytes(10, "big")))
# Emulated, importing gRPC alone takes seconds.
WAIT_S = 120.0
SETTINGS = """\
[gateway]
address = "{address}"
enroll_address = "{enroll}"
spread_seconds = 0.1

[cdi]
annotations = "{annotations}"

[passes]
every_seconds = 5
watch_seconds = 0.5
"""


def gpu_uuid(number: int) -> str:
    """The UUID of a GPU of the made-up hardware."""
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def hold(number: int, *gpus: int, limits: Limits | None = None) -> Assignment:
    """An assignment of whole GPUs."""
    devices = tuple(AssignedDevice(gpu_uuid(gpu), DeviceClass.GPU) for gpu in gpus)
    return Assignment(
        allocation_id=alloc_id(number), devices=devices, until_ms=4 * 10**12, limits=limits
    )


@dataclass
class Gateway:
    """A gateway in a thread of its own."""

    fake: FakeGateway = field(default_factory=FakeGateway)
    wanted: tuple[Assignment, ...] = ()
    generation: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.do(self.fake.start())

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine over there."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(WAIT_S)

    def want(self, *assignments: Assignment) -> None:
        """The host shall have these, and nothing else."""
        self.generation += 1
        self.wanted = assignments

        async def send() -> None:
            self.fake.want(NODE, *assignments, generation=self.generation)

        self.do(send())

    def heard(self, kind: type[Any], id_: AllocationId) -> list[Report]:
        """Reports of one kind about one allocation; each one's signature held."""
        return [report for report in self.fake.said(kind) if report.allocation_id == id_]

    def bind(self, *assignments: Assignment) -> None:
        """Want these beside what is wanted, and wait for their reports."""
        kept = {entry.allocation_id: entry for entry in (*self.wanted, *assignments)}
        self.want(*kept.values())
        new = {entry.allocation_id for entry in assignments}
        eventually("the bind", lambda: all(self.heard(Bound, id_) for id_ in new))


def make_hardware() -> None:
    """Lay the made-up driver's files and nodes where a real one has them.

    /proc cannot be written, so that its files are mounted: here, and for the service in its own
    view of /proc.
    """
    shutil.copytree(PAYLOAD / "driver", "/", symlinks=True, dirs_exist_ok=True)
    shutil.copy(PAYLOAD / "nvml/state", "/var/lib/nvml.state")
    shutil.copytree(PAYLOAD / "proc", MADE, dirs_exist_ok=True)
    places = {"driver": "/proc/driver", "devices": "/proc/devices"}
    drop_in = Path("/etc/systemd/system/bcd.service.d/made-hardware.conf")
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    mounts = " ".join(f"{MADE / name}:{place}" for name, place in places.items())
    drop_in.write_text(f"[Service]\nBindReadOnlyPaths={mounts}\n")
    appear()


def appear() -> None:
    """What a boot takes away again: mounts and device nodes."""
    for name, place in {"driver": "/proc/driver", "devices": "/proc/devices"}.items():
        run("mount", "--bind", str(MADE / name), place)
    for name, major, minor in json.loads((PAYLOAD / "nodes.json").read_text()):
        path = Path("/dev", name)
        if not path.exists():
            os.mknod(path, 0o020666, os.makedev(major, minor))
            os.chmod(path, 0o666)
        link = Path("/dev/char", f"{major}:{minor}")
        link.parent.mkdir(exist_ok=True)  # udev makes it elsewhere
        if not link.is_symlink():
            link.symlink_to(f"../{name}")


def configure(gateway: Gateway, annotations: str) -> None:
    """The operator's settings."""
    fake = gateway.fake
    Path("/etc/bcd").mkdir(exist_ok=True)
    Path("/etc/bcd/bcd.toml").write_text(
        SETTINGS.format(address=fake.address, enroll=fake.enroll_address, annotations=annotations)
    )


def doctor() -> dict[str, dict[str, str]]:
    """Every check's finding, by its name."""
    done = subprocess.run(
        ["bcd", "doctor", "-o", "json"], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.stdout, done.stderr
    return {entry["name"]: entry for entry in json.loads(done.stdout)["findings"]}


def wrong() -> set[str]:
    """Checks that a person should act on: those that failed, and warnings."""
    return {name for name, entry in doctor().items() if entry["level"] in ("failed", "warning")}


def red() -> dict[str, str]:
    """What the checks that failed found."""
    return {name: e["found"] for name, e in doctor().items() if e["level"] == "failed"}


def status() -> Any:
    """What the daemon says of itself."""
    return json.loads(run("bcd", "status", "-o", "json"))


def podman(id_: AllocationId, *command: str, detached: str = "") -> tuple[int, str]:
    """A container in the hold's slice with the hold's devices; (exit code, all its words)."""
    names = [f"bcd.dev/gpu={entry}" for entry in names_in(id_)]
    devices = [word for name in names for word in ("--device", name)]
    how = ["-d", "--name", detached] if detached else ["--rm"]
    done = subprocess.run(
        ["podman", "run", *how, "--network=none", f"--cgroup-parent={slice_name(id_)}",
         *devices, IMAGE, *command],
        capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def names_in(id_: AllocationId) -> list[str]:
    """The device names of a hold's spec."""
    document = json.loads((CDI / f"bcd-{id_}.json").read_text())
    return [device["name"] for device in document["devices"]]


def control(id_: AllocationId, name: str) -> str:
    """A control file of the hold's slice."""
    folder = Path("/sys/fs/cgroup/bcd.slice/bcd-alloc.slice", slice_name(id_))
    return (folder / name).read_text().strip()


def limits_of(id_: AllocationId) -> dict[str, str]:
    """Every limit of the hold's slice, as the kernel has it."""
    names = ("cpu.max", "memory.max", "memory.swap.max", "cpuset.cpus", "cpuset.mems",
             "hugetlb.1GB.max", "hugetlb.1GB.rsvd.max", "hugetlb.2MB.max")  # fmt: skip
    return {name: control(id_, name) for name in names}


def on_disk(id_: AllocationId) -> dict[str, str]:
    """The hold: its spec and its env file."""
    return {
        "spec": (CDI / f"bcd-{id_}.json").read_text(),
        "env": (ENV / f"{id_}.env").read_text(),
    }


def main_pid() -> str:
    """The daemon's process."""
    return run("systemctl", "show", "-P", "MainPID", "bcd.service").strip()


def eventually(what: str, holds: Callable[[], bool]) -> None:
    """Wait as long as an emulated host may need."""
    wait_for(what, holds, WAIT_S)

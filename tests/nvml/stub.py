"""Hosts whose NVML is the stub: a state file drives a real library in the real child.

``build`` compiles ``stub.c``; a ``Host`` is a folder with the state, a small /sys and /proc, and a
driver in memory. Nothing here is patched: the child loads the library because it lies first.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bcd.model.report import Failed, FailureReason
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.host.nvml.gpus import Driver, NvmlGpus
from bcd.node.host.nvml.process import Launch
from bcd.node.host.nvml.supervisor import Periods
from bcd.node.settings import NvmlSettings

SOURCE = Path(__file__).with_name("stub.c")
SWITCHED = "switch@00000000:FF:00.0"
XID = 0x8
DRIVER = "550.54.15"

# Nothing waits for these but a hang, and a busy machine must answer within the deadline.
PERIODS = Periods(
    deadline=5.0,
    init=20.0,
    probe=30.0,
    first_backoff=0.05,
    max_backoff=0.2,
    ping=0.1,
    gap=0.01,
)
# For hangs, which last until the deadline.
QUICK = replace(PERIODS, deadline=0.6)


def build(
    folder: Path, *, old: bool = False, state_file: Path | None = None, source: Path = SOURCE
) -> Path:
    """Compile the stub; the old one lacks what old drivers lack. Returns the library's folder.

    With ``state_file`` it answers from there in any process that is not told of another file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = ("-DOLD",) if old else ()
    if state_file is not None:
        options = (*options, f'-DSTATE_FILE="{state_file}"')
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libnvidia-ml.so.1", *options, "-o",
         str(folder / "libnvidia-ml.so.1"), str(source)],
        check=True,
    )  # fmt: skip
    return folder


@dataclass(frozen=True, kw_only=True)
class Mig:
    """An instance in the state file."""

    uuid: str
    gi: int
    ci: int = 0
    name: str = "NVIDIA A100-SXM4-80GB MIG 1g.20gb"
    mem: int = 19_968
    slices: int = 1
    cslices: int = 1
    procs: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU in the state file; see ``stub.c``. ``sysfs`` False: the kernel does not see it."""

    uuid: str
    bus: str
    minor: int
    numa: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    mem: int = 81_559
    mig: bool = False
    migs: tuple[Mig, ...] = ()
    gone: bool = False
    lost: bool = False
    persistence: bool = True
    remap: tuple[int, int] = (0, 0)
    recovery: int = 0
    ecc: int = 0
    procs: tuple[int, ...] = ()
    fabric: tuple[int, int, int, int] | None = None
    links: tuple[str, ...] = ()
    p2p: str = "all"
    sysfs: bool = True

    @property
    def address(self) -> str:
        """As sysfs writes it."""
        domain, rest = self.bus.split(":", 1)
        return f"{int(domain, 16):04x}:{rest}".lower()


def gpu(number: int, **how: object) -> Gpu:
    """A plain GPU; the same number gives the same one."""
    plain = Gpu(
        uuid=f"GPU-{number:08x}-0000-4000-8000-000000000000",
        bus=f"00000000:{16 + number:02X}:00.0",
        minor=number,
    )
    return replace(plain, **how)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that the stub answers from."""

    gpus: tuple[Gpu, ...] = (gpu(0), gpu(1))
    driver: str = DRIVER
    nvml: str = f"12.{DRIVER}"
    cuda: int = 12_040
    init: int = 0
    rules: tuple[str, ...] = ()

    def text(self) -> str:
        """The state file."""
        lines = [
            f"driver {self.driver}",
            f"nvml {self.nvml}",
            f"cuda {self.cuda}",
            f"init {self.init}",
            *self.rules,
        ]
        for index, one in enumerate(self.gpus):
            lines.append(
                f"gpu uuid={one.uuid} bus={one.bus} minor={one.minor}"
                f" name={one.name.replace(' ', '_')} mem={one.mem} mig={int(one.mig)}"
                f" gone={int(one.gone)} lost={int(one.lost)} persistence={int(one.persistence)}"
                f" remap={_list(one.remap)} recovery={one.recovery} ecc={one.ecc}"
                f" procs={_list(one.procs)} links={','.join(one.links)} p2p={one.p2p}"
                + (f" fabric={_list(one.fabric)}" if one.fabric else "")
            )
            lines += [
                f"mig gpu={index} uuid={mig.uuid} gi={mig.gi} ci={mig.ci} mem={mig.mem}"
                f" name={mig.name.replace(' ', '_')} slices={mig.slices} cslices={mig.cslices}"
                f" procs={_list(mig.procs)}"
                for mig in one.migs
            ]
        return "\n".join(lines) + "\n"


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in numbers)


@dataclass
class MemoryDriver:
    """A driver whose nodes are all there but those in ``missing``."""

    missing: set[str] = field(default_factory=set)
    version: int = 0

    def common(self, driver_version: str) -> DeviceEdits:
        return DeviceEdits(
            nodes=(DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),),
            env=(f"DRIVER={driver_version}",),
        )

    def gpu(self, minor: int, pci_address: str) -> DeviceEdits:
        return DeviceEdits(nodes=(DeviceNode(f"/dev/nvidia{minor}", f"/dev/nvidia{minor}"),))

    def mig(self, minor: int, pci_address: str, gi: int, ci: int, *, graphics: bool) -> DeviceEdits:
        caps = tuple(f"/dev/nvidia-caps/gpu{minor}-gi{gi}{end}" for end in ("", f"-ci{ci}"))
        nodes = self.gpu(minor, pci_address).nodes
        return DeviceEdits(nodes=(*nodes, *(DeviceNode(cap, cap) for cap in caps)))

    def problem(self, edits: DeviceEdits) -> Failed | None:
        for node in edits.nodes:
            if node.host_path in self.missing:
                return Failed(FailureReason.DEVICE_NODE_MISSING, f"{node.host_path} is missing")
        return None

    def fingerprint(self) -> object:
        return frozenset(self.missing), self.version


class Host:
    """A host on the stub, with a driver in memory unless a real one's files are given."""

    def __init__(
        self,
        root: Path,
        library: Path,
        state: State | None = None,
        real_driver: Driver | None = None,
    ) -> None:
        self.root = root
        self.driver = MemoryDriver()
        self.real_driver = real_driver
        self.file = root / "nvml.state"
        self.launch = Launch(
            variables=(("LD_LIBRARY_PATH", str(library)), ("NVML_STUB_STATE", str(self.file)))
        )
        if real_driver is None:
            self.kernel_version(DRIVER)
        self.state = state or State()
        self.set(self.state)

    def set(self, state: State | None = None, **changes: object) -> None:
        """Change what NVML answers from now on, and the bus with it."""
        self.state = replace(state or self.state, **changes)  # type: ignore[arg-type]
        for one in self.state.gpus:
            folder = self.root / "sys/bus/pci/devices" / one.address
            if one.sysfs:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "vendor").write_text("0x10de\n")
                (folder / "class").write_text("0x030200\n")
                (folder / "numa_node").write_text(f"{one.numa}\n")
                node = self.root / f"sys/devices/system/node/node{max(one.numa, 0)}"
                node.mkdir(parents=True, exist_ok=True)
                (node / "cpulist").write_text("0-3\n")
        self._replace(self.file, self.state.text())

    def event(self, index: int, data: int = 79, kind: int = XID, instance: str = "") -> None:
        """Something happens to a GPU."""
        self._replace(Path(f"{self.file}.event"), f"{index} {kind} {data} {instance}\n")

    def taken(self) -> None:
        """Wait until NVML has handed the last event over."""
        end = time.monotonic() + 20
        while Path(f"{self.file}.event").exists():
            assert time.monotonic() < end
            time.sleep(0.005)

    def kernel_version(self, version: str) -> None:
        """Load another kernel module; empty: none."""
        path = self.root / "proc/driver/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not version:
            path.unlink(missing_ok=True)
            return
        self._replace(path, f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu\n")

    def _replace(self, path: Path, text: str) -> None:
        fresh = path.with_name(f".{path.name}.{time.monotonic_ns()}")
        fresh.write_text(text)
        os.replace(fresh, path)

    def make(self, periods: Periods = PERIODS, **settings: object) -> NvmlGpus:
        """The port, not started."""
        made = NvmlSettings(**settings)  # type: ignore[arg-type]
        return NvmlGpus(self.root, self.real_driver or self.driver, made, self.launch, periods)

    @contextlib.contextmanager
    def running(self, periods: Periods = PERIODS, **settings: object) -> Iterator["Running"]:
        """The port, started, after its first answer."""
        gpus = self.make(periods, **settings)
        running = Running(gpus)
        gpus.start(running.woken)
        try:
            running.until(lambda: not gpus.snapshot().waiting)
            yield running
        finally:
            gpus.close()


class Running:
    """A port that runs, and the waiting for its changes."""

    def __init__(self, gpus: NvmlGpus) -> None:
        self.gpus = gpus
        self.wakes = 0
        self._changed = threading.Condition()

    def woken(self) -> None:
        with self._changed:
            self.wakes += 1
            self._changed.notify_all()

    def until(self, predicate: Callable[[], bool], wait_s: float = 30.0) -> None:
        """Wait for wakes until something is true."""
        with self._changed:
            assert self._changed.wait_for(predicate, wait_s), self.gpus.snapshot()

    def conditions(self) -> dict[str, str]:
        """Messages by type."""
        return {c.type: f"{c.subject}: {c.message}" for c in self.gpus.snapshot().conditions}

    def health(self) -> dict[str, str]:
        """State and reason by device."""
        return {
            device.id: f"{device.health.state} {device.health.reason}".strip()
            for device in self.gpus.snapshot().devices
        }


def eventually(predicate: Callable[[], bool], wait_s: float = 20.0) -> None:
    """Wait for something that wakes nobody."""
    end = time.monotonic() + wait_s
    while not predicate():
        assert time.monotonic() < end
        time.sleep(0.01)

"""What the daemon's tests share: ids, assignments, hosts, and daemons on simulated machines."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bcd.model.assignment import AssignedDevice, Assignment, Binding, Limits, Sharing
from bcd.model.device import Device, DeviceClass
from bcd.model.ids import AllocationId, NodeId, type_id
from bcd.node.daemon import Daemon
from bcd.node.execute import AfterStep, no_observer
from bcd.node.identity import save_identity
from bcd.node.opening import open_daemon
from bcd.node.ports import Clock
from bcd.node.settings import GatewaySettings, PassSettings, PathSettings, Settings
from bcd.sim.ports import simulated_ports
from tests.node.clock import HandClock
from tests.node.fake_gateway import FakeGateway


def node_id(number: int = 1) -> NodeId:
    """The same number gives the same id."""
    return NodeId(type_id("node", 1_700_000_000_000 + number, number.to_bytes(10, "big")))


def alloc_id(number: int) -> AllocationId:
    """Ids ascend with their numbers."""
    return AllocationId(type_id("alloc", 1_700_000_000_000 + number, number.to_bytes(10, "big")))


def assignment(
    number: int,
    *devices: Device | AssignedDevice,
    limits: Limits | None = None,
    binding: Binding = Binding.HOLD,
    until_ms: int = 1_900_000_000_000,
    sharing: Sharing | None = None,
) -> Assignment:
    """An assignment of devices."""
    return Assignment(
        allocation_id=alloc_id(number),
        devices=tuple(AssignedDevice(d.id, d.device_class) for d in devices),
        until_ms=until_ms,
        limits=limits,
        binding=binding,
        sharing=sharing,
    )


def limits(
    cpu_millis: int = 8_000, memory_gib: int = 64, pages: int = 0, cpus: str = "", mems: str = ""
) -> Limits:
    """Limits of a hold."""
    return Limits(
        cpu_millis=cpu_millis,
        memory_bytes=memory_gib << 30,
        hugepages_1gi=pages,
        cpus=cpus,
        mems=mems,
    )


def of_class(devices: tuple[Device, ...], device_class: DeviceClass) -> list[Device]:
    """The devices of a class that may be booked."""
    return [d for d in devices if d.device_class is device_class and not d.mig_enabled]


@dataclass
class Site:
    """A simulated host with its daemon's settings; ``open`` it as often as a test restarts it."""

    root: Path
    gateway: FakeGateway
    node_id: NodeId = field(default_factory=node_id)
    profile: str = "dgx-h100"
    clock: Clock | None = None
    enrolled: bool = True

    def __post_init__(self) -> None:
        self.settings = Settings(
            gateway=GatewaySettings(
                address=self.gateway.address,
                enroll_address=self.gateway.enroll_address,
                spread_seconds=0.05,
                max_backoff_seconds=0.5,
            ),
            paths=PathSettings(root=str(self.root), socket="/nowhere/bcd.sock"),
            passes=PassSettings(every_seconds=30, watch_seconds=0.2),
        )
        if self.enrolled:
            save_identity(self.state, self.gateway.node_credentials(self.node_id))

    @property
    def state(self) -> Path:
        return self.root / "var/lib/bcd"

    @property
    def cdi(self) -> Path:
        return self.root / "etc/cdi"

    @property
    def env(self) -> Path:
        return self.root / "run/bcd/allocations"

    def open(self, after_step: AfterStep = no_observer) -> Daemon:
        """Make the daemon; nothing runs yet. On a hand-moved clock it looks at files rarely."""
        settings = self.settings
        if isinstance(self.clock, HandClock):
            passes = PassSettings(every_seconds=600, watch_seconds=300)
            settings = msgspec.structs.replace(settings, passes=passes)
        return open_daemon(
            settings,
            simulated_ports(self.profile, clock=self.clock),
            after_step=after_step,
            serve_status=False,
        )

    def devices(self, device_class: DeviceClass = DeviceClass.GPU) -> list[Device]:
        """The machine's devices of a class, without opening a daemon."""
        from bcd.sim.gpus import SimulatedGpus
        from bcd.sim.machine import build_machine

        machine = build_machine(self.root, self.profile, seed=self.node_id, hostname="host")
        return of_class(SimulatedGpus(machine).snapshot().devices, device_class)

    def specs(self) -> list[str]:
        """Names of all spec files."""
        return sorted(os.listdir(self.cdi)) if self.cdi.exists() else []

    def envs(self) -> list[str]:
        """Names of all env files."""
        return sorted(os.listdir(self.env)) if self.env.exists() else []

    def slices(self) -> list[str]:
        """Names of all slices."""
        folder = self.root / "run/bcd-sim/slices"
        return sorted(os.listdir(folder)) if folder.exists() else []


@contextlib.asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator["asyncio.Task[int]"]:
    """Run a daemon for the length of a block, and stop it in good order."""
    task = asyncio.create_task(daemon.run())
    try:
        yield task
    finally:
        daemon.stop()
        async with asyncio.timeout(20):
            await asyncio.gather(task, return_exceptions=True)


async def eventually(predicate: Callable[[], bool], wait_s: float = 20.0) -> None:
    """Wait for something on disk that no message tells of."""
    async with asyncio.timeout(wait_s):
        while not predicate():  # noqa: ASYNC110 - disks send no events here
            await asyncio.sleep(0.01)

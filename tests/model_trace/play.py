"""The service and the reference side by side: one operation after the other, compared."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bcd.model.device import Device, Health, HealthState
from bcd.model.pool import SharingMode
from tests.model_trace.fits import Host
from tests.model_trace.moves import must
from tests.model_trace.recording import Crashed
from tests.model_trace.reference import Reference
from tests.model_trace.service import Seen, Service
from tests.model_trace.settled import any_waits_although_it_fits, check_grants, check_settled
from tests.model_trace.shapes import SPARE, key_of, part_of, slots_of
from tests.placer.world import FakeNode

LEASE_MS = 31_000
Check = Callable[[], None]


@dataclass(slots=True)
class Machine:
    """A host: the node that speaks for it, its devices, and whether it answers."""

    node: FakeNode
    devices: tuple[Device, ...]
    alive: bool = True
    seen: int = 0
    gone: frozenset[str] = frozenset()
    sick: frozenset[str] = frozenset()


@dataclass
class Play:
    """The service and the reference side by side."""

    service: Service
    reference: Reference
    machines: list[Machine] = field(default_factory=list)
    seen: Seen | None = None
    changed: bool = True

    async def begin(self, hosts: Sequence[Sequence[Device]], quotas: Mapping[str, int]) -> None:
        """An empty control plane with these hosts and quotas."""
        await self.service.start()
        for resource, ceiling in quotas.items():
            await self.service.world.grant(resource, ceiling)
        for devices in hosts:
            self._pass(1)
            node = await self.service.world.add_node(devices)
            self.machines.append(Machine(node, tuple(devices), seen=self.reference.now))
            self.reference.hosts[node.id] = Host(node.id, SPARE)
            await self._note_devices(self.machines[-1])
        await self._replay()

    async def step(
        self,
        act: Callable[[], Awaitable[Check]],
        *,
        left: int | None = None,
        cause: str = "",
        ending: str = "",
        idle: bool = False,
    ) -> None:
        """One operation and all that is due after it, compared; a crash at ``left`` statements.

        With ``idle`` the workers do not come round: what is due stays due.
        """
        self._pass(1)
        reference = self.reference
        reference.cause, reference.ending = cause, ending
        try:
            await self.service.crashing(left, lambda: self._act(act, idle))
        except Crashed:
            await self.service.restart()
            await self._replay()
            self._pass(LEASE_MS)
            reference.cause = ""
            await self._settle()

    async def _act(self, act: Callable[[], Awaitable[Check]], idle: bool) -> None:
        check = await act()
        await self._replay()
        check()
        self.reference.cause = ""
        if not idle:
            await self._settle()

    async def _settle(self) -> None:
        await self._work()
        if any_waits_although_it_fits(self.reference):
            self._pass(LEASE_MS)
            await self._work()
            must(not any_waits_although_it_fits(self.reference), "it waits although it fits")

    async def _work(self) -> None:
        """All that is due, and then nothing is left undone."""
        await self.service.world.work()
        await self._replay()
        if self.changed:
            self.seen, self.changed = await self.service.seen(), False
        complaints = self.service.complaints.heard
        must(not complaints, "the program complained", complaints)
        assert self.seen is not None
        check_settled(self.reference, self.seen.reservations)
        check_grants(self.reference, self.seen.allocations, self.seen.assigned)

    async def _replay(self) -> None:
        commits = await self.service.changes()
        self.changed |= bool(commits)
        self.reference.replay(commits)

    def _pass(self, ms: int) -> None:
        self.service.stage.advance(ms)
        self.reference.now = self.service.stage.now

    @property
    def pool_id(self) -> str:
        """The pool of everything here."""
        return self.service.world.pool_id

    async def _note_devices(self, machine: Machine) -> None:
        host = self.reference.hosts[machine.node.id]
        devices = shown(machine)
        self.reference.gpus[host.id] = len({device.gpu for device in devices})
        parts = {key_of(d): part_of(d) for d in machine.devices}
        well = {
            key_of(device)
            for device in devices
            if device.health.state is HealthState.HEALTHY and not device.mig_enabled
        }
        if self.service.policy.sharing.mode is not SharingMode.NONE:
            whole = [d for d in machine.devices if key_of(d)[0] == "gpu" and not d.mig_enabled]
            slots = {slot.key: slot for device in whole for slot in slots_of(part_of(device))}
            well |= {key for key, slot in slots.items() if ("gpu", slot.gpu) in well}
            parts |= slots
        host.parts |= parts
        host.well = well
        for row in (await self.service.seen()).atoms:
            known = self.reference.hosts.get(row["node_id"])
            if known is not None:
                self.reference.atoms[row["id"]] = (
                    row["node_id"], known.parts[row["class"], row["uuid"]],
                )  # fmt: skip


async def nothing() -> Check:
    """Only what is due."""
    return lambda: None


def shown(machine: Machine) -> Sequence[Device]:
    """The devices as the host reports them now."""
    ill = Health(HealthState.UNHEALTHY, "ill")
    return [
        replace(device, health=ill) if device.id in machine.sick else device
        for device in machine.devices
        if device.id not in machine.gone
    ]

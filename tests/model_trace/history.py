"""One history: what tenants do, and what happens to the hosts meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome, Released
from bcd.placer.capacity.reachability import ReachabilityKeeper
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keys import generate_key
from bcd.store import allocations, sessions
from bcd.wire.report import encode_report
from tests.model_trace.claims import Grant
from tests.model_trace.moves import must
from tests.model_trace.play import Check, nothing, shown
from tests.model_trace.tenants import Tenants

SILENCE_MS = 90_000


@dataclass
class History(Tenants):
    """Time, hosts that go and come back, devices, quotas, reports."""

    async def wait(self, ms: int, left: int | None = None) -> None:
        """Time passes; hosts that are alive go on speaking."""
        self._pass(ms)
        await self._round()
        await self.step(nothing, left=left)

    async def power(self, position: int, on: bool) -> None:
        """A host goes silent, or comes back with a new session."""
        machine = self.machines[position % len(self.machines)]
        self._pass(1)
        machine.alive = on
        if on:
            await self.service.world.connect(machine.node)
        await self._round()
        await self.step(nothing)

    async def _round(self) -> None:
        now = self.reference.now
        beats = [(m.node.id, m.node.epoch) for m in self.machines if m.alive]
        await self.service.database.write(sessions.touch_all, beats)
        await ReachabilityKeeper(self.service.database).judge_pass()
        for machine in self.machines:
            machine.seen = now if machine.alive else machine.seen
            host = self.reference.hosts[machine.node.id]
            host.reachable = now < machine.seen + SILENCE_MS

    async def stand(self, position: int, change: str) -> None:
        """An administrator cordons or drains a host, takes its trust, or gives all of it back."""
        machine = self.machines[position % len(self.machines)]
        host = self.reference.hosts[machine.node.id]

        async def act() -> Check:
            await self.service.stand(machine.node.id, change)
            host.trusted = host.trusted if change in ("cordon", "drain") else change != "distrust"
            if change in ("cordon", "drain", "open"):
                host.cordoned = change != "open"
                host.draining = change == "drain" or (change == "cordon" and host.draining)
            return lambda: None

        await self.step(act)

    async def device(self, position: int, which: int, change: str) -> None:
        """A device falls ill, goes, or is well again."""
        machine = self.machines[position % len(self.machines)]
        chosen = machine.devices[which % len(machine.devices)].id
        machine.gone -= {chosen}
        machine.sick -= {chosen}
        if change == "gone":
            machine.gone |= {chosen}
        if change == "sick":
            machine.sick |= {chosen}

        async def act() -> Check:
            await self.service.world.send_inventory(machine.node, list(shown(machine)))
            await self._note_devices(machine)
            return lambda: None

        await self.step(act)

    async def quota(self, resource: str, ceiling: int) -> None:
        """An administrator sets a quota."""

        async def act() -> Check:
            await self.service.world.grant(resource, ceiling)
            return lambda: None

        await self.step(act)

    async def report(self, position: int, kind: str, left: int | None = None) -> None:
        """A host reports on one of its allocations, or somebody forges that."""
        grants = [g for g in self.reference.grants.values() if g.state != "booked"]
        if grants:
            await self._report(grants[position % len(grants)], kind, left)

    async def bind(self, left: int | None = None) -> None:
        """Every host reports what it is told to hold as bound."""
        handed = [g for g in self.reference.grants.values() if g.state in ("assigned", "lost")]
        for grant in handed:
            await self._send(grant, "bound")
        await self.step(nothing, left=left)

    async def _report(self, grant: Grant, kind: str, left: int | None) -> None:
        await self._send(grant, kind)
        await self.step(nothing, left=left)

    async def _send(self, grant: Grant, kind: str) -> None:
        machine = next(m for m in self.machines if m.node.id == grant.host)
        database, world = self.service.database, self.service.world
        allocation = await database.read(allocations.get, AllocationId(grant.id))
        assert allocation is not None
        outcomes: Mapping[str, Outcome] = {
            "failed": Failed("device-busy"),
            "released": Released(slice_empty=True),
            "devices": Bound(("bcd.dev/gpu=other",), f"/run/bcd/allocations/{grant.id}.env"),
        }
        report = machine.node.report(allocation, outcomes.get(kind))
        envelope = machine.node.seal(report)
        if kind == "foreign":
            envelope = seal(generate_key(), PayloadType.ATTESTED_REPORT, encode_report(report))
        if kind == "other":
            other = replace(report, allocation_id=AllocationId("alloc_" + "0" * 26))
            envelope = machine.node.seal(other)
        stored = await world.send(machine.node, envelope, grant.id)
        must(stored == "stored", "the report was not stored", stored)
        genuine = kind in ("bound", "failed", "released")
        self.reference.rejected += not genuine
        if grant.state != "ended":
            grant.reports.append(kind if genuine else "rejected")

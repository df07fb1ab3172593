"""One history: operations on the real service, each told to the reference and compared with it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bcd.model.caller import Caller
from bcd.model.device import Device, Health, HealthState
from bcd.model.errors import BcdError, Reason
from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome, Released
from bcd.model.reservation import Reservation
from bcd.placer.capacity.reachability import ReachabilityKeeper
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keys import generate_key
from bcd.store import allocations, sessions
from bcd.wire.report import encode_report
from tests.model_trace.claims import LIVE, Claim, Grant, Wish
from tests.model_trace.fits import Host
from tests.model_trace.recording import Crashed
from tests.model_trace.reference import Reference, must
from tests.model_trace.service import Service
from tests.model_trace.settled import check_grants, check_settled
from tests.model_trace.shapes import CALLERS, document, key_of, part_of
from tests.placer.world import FakeNode

SILENCE_MS = 90_000
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
class History:
    """The service and the reference side by side."""

    service: Service
    reference: Reference
    machines: list[Machine] = field(default_factory=list)

    async def begin(self, hosts: Sequence[Sequence[Device]], quotas: Mapping[str, int]) -> None:
        """An empty control plane with these hosts and quotas."""
        await self.service.start()
        for resource, ceiling in quotas.items():
            await self.service.world.grant(resource, ceiling)
        for devices in hosts:
            self._pass(1)
            node = await self.service.world.add_node(devices)
            self.machines.append(Machine(node, tuple(devices), seen=self.reference.now))
            self.reference.hosts[node.id] = Host(node.id)
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
        reference.cause, reference.ending = cause, frozenset({ending})
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
        await self.service.world.work()
        await self._replay()
        complaints = self.service.complaints.heard
        must(not complaints, "the program complained", complaints)
        seen = await self.service.seen()
        check_settled(self.reference, seen.reservations)
        check_grants(self.reference, seen.allocations, seen.assigned)

    async def _replay(self) -> None:
        self.reference.replay(await self.service.changes())

    def _pass(self, ms: int) -> None:
        self.service.stage.advance(ms)
        self.reference.now = self.service.stage.now

    # --- tenants -------------------------------------------------------------------------

    async def create(
        self, caller: Caller, key: str, wish: Wish, *, deny: bool = False, dry: bool = False,
        left: int | None = None, idle: bool = False,
    ) -> None:  # fmt: skip
        """Create, or ask again with a key that was used before."""
        reference = self.reference

        async def act() -> Check:
            known = reference.find(caller.owner, key)
            expected = self._expected(known, wish, deny)
            if known is None and not dry:
                self._ask(caller, key, wish)
            answer = await self._answer(caller, document(wish, key, self.pool_id, dry), deny)
            return lambda: self._check_answer(answer, expected, caller, key, dry)

        await self.step(act, left=left, cause="deny" if deny else "create", idle=idle)

    def _ask(self, caller: Caller, key: str, wish: Wish) -> None:
        if self.reference.find(caller.owner, key) is None:
            claim = Claim("", caller.owner, key, wish)
            self.reference.asked.setdefault((caller.owner, key), []).append(claim)

    @property
    def pool_id(self) -> str:
        """The pool of everything here."""
        return self.service.world.pool_id

    def _expected(self, known: Claim | None, wish: Wish, deny: bool) -> tuple[str, dict[str, str]]:
        """A state or the reason of a refusal, with details."""
        if known is not None:
            if known.wish != wish:
                return Reason.CONFLICT, {"reservationId": known.id}
            if known.state == "denied":
                return Reason.ACCESS_DENIED, {"reservationId": known.id}
            if known.state != "draft":
                return known.state, {}
        if deny:
            return Reason.ACCESS_DENIED, {}
        over = self.reference.over_quota(wish)
        if over is not None:
            names = ("resource", "limit", "used", "asked")
            return Reason.QUOTA_EXCEEDED, dict(zip(names, map(str, over), strict=True))
        return ("placed" if self.reference.fits(wish) else "pending"), {}

    async def _answer(
        self, caller: Caller, asked: Mapping[str, Any], deny: bool
    ) -> Reservation | BcdError:
        try:
            return await self.service.create(caller, asked, deny)
        except BcdError as error:
            return error

    def _check_answer(
        self, answer: Reservation | BcdError, expected: tuple[str, dict[str, str]],
        caller: Caller, key: str, dry: bool,
    ) -> None:  # fmt: skip
        word, details = expected
        known = self.reference.find(caller.owner, key)
        if isinstance(answer, BcdError):
            must(answer.reason == word, "another answer was due", answer, expected)
            must(details.items() <= answer.details.items(), "details", answer.details, details)
            return
        must(answer.state == word, "another answer was due", answer, expected)
        if dry and (known is None or known.state == "draft"):
            return
        must(known is not None and known.id == answer.id, "same key, same id", answer, known)
        assert known is not None
        must(known.version == answer.version, "answered is what is stored", answer, known)

    async def race(self, asks: Sequence[tuple[Caller, str, Wish]]) -> None:
        """Creates at once, by two placers in turn."""

        async def act() -> Check:
            for asked in asks:
                self._ask(*asked)
            placers = (self.service.world, self.service.other)
            answers = await asyncio.gather(
                *(
                    placers[i % 2].admission.create(caller, document(wish, key, self.pool_id))
                    for i, (caller, key, wish) in enumerate(asks)
                ),
                return_exceptions=True,
            )
            return lambda: self._check_race(asks, answers)

        await self.step(act, cause="create")

    def _check_race(self, asks: Sequence[tuple[Caller, str, Wish]], answers: Sequence[Any]) -> None:
        for (caller, key, wish), answer in zip(asks, answers, strict=True):
            known = self.reference.find(caller.owner, key)
            assert known is not None
            if isinstance(answer, BcdError):
                allowed = {Reason.QUOTA_EXCEEDED} if known.state == "draft" else set()
                allowed |= {Reason.CONFLICT} if known.wish != wish else set()
                allowed |= {Reason.ACCESS_DENIED} if known.state == "denied" else set()
                must(answer.reason in allowed, "no reason to refuse", answer, known)
                continue
            must(not isinstance(answer, BaseException), "an error", answer)
            made = answer[1]
            must((made.id, made.state) == (known.id, known.state), "answer", made, known)

    async def end(self, name: str, position: int, left: int | None = None) -> None:
        """Release or cancel one of the reservations."""
        claims = [c for c in self.reference.claims.values() if c.state != "draft"]
        if not claims:
            return
        claim = claims[position % len(claims)]

        async def act() -> Check:
            before = claim.state
            try:
                answer = await self.service.end(CALLERS[claim.who], name, claim.id)
            except BcdError as error:
                answer = error.reason
            return lambda: must(answer == ended(name, before), "answer", name, before, answer)

        await self.step(act, left=left, cause=name, ending=claim.id)

    async def release_oldest(self) -> None:
        """Release the oldest of those that have devices."""
        claims = [c for c in self.reference.claims.values() if c.state != "draft"]
        for position, claim in enumerate(claims):
            if claim.state in LIVE:
                await self.end("release", position)
                return

    # --- the world -----------------------------------------------------------------------

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
            await self.service.world.send_inventory(machine.node, list(_shown(machine)))
            await self._note_devices(machine)
            return lambda: None

        await self.step(act)

    async def _note_devices(self, machine: Machine) -> None:
        host = self.reference.hosts[machine.node.id]
        shown = _shown(machine)
        host.parts |= {key_of(d): part_of(d) for d in machine.devices}
        host.well = {
            key_of(d) for d in shown if d.health.state is HealthState.HEALTHY and not d.mig_enabled
        }
        for row in (await self.service.seen()).atoms:
            known = self.reference.hosts.get(row["node_id"])
            if known is not None:
                self.reference.atoms[row["id"]] = (
                    row["node_id"], known.parts[row["class"], row["uuid"]],
                )  # fmt: skip

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


def ended(name: str, before: str) -> str:
    """What a release or cancel of a reservation in a state comes to (spec 14.4)."""
    if before == "pending":
        return "cancelled"
    if name == "cancel":
        return "cancelled" if before == "placed" else Reason.INVALID_STATE
    return "released" if before in ("placed", "binding", "active") else before


async def nothing() -> Check:
    """Only what is due."""
    return lambda: None


def _shown(machine: Machine) -> Sequence[Device]:
    """The devices as the host reports them now."""
    ill = Health(HealthState.UNHEALTHY, "ill")
    return [
        replace(device, health=ill) if device.id in machine.sick else device
        for device in machine.devices
        if device.id not in machine.gone
    ]

"""Reservations placed without admission: whatever is asked for goes to placement as it is."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import DeviceAsk, Gang, Request, Resources
from bcd.placer.lifecycle import apply
from bcd.placer.lifecycle.apply import Hand
from bcd.placer.lifecycle.transitions import Trigger
from bcd.placer.placement.booking import AvailableUntil, Extended, Placed
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.store import allocations, hosts, nodes, pools, quotas, reservations
from bcd.store.allocations import Allocation
from bcd.store.database import Transaction
from bcd.store.hosts import HostCapacity
from bcd.store.reservations import Draft, StoredReservation
from tests.placer.placement.machines import ask
from tests.placer.world import TENANT, FakeNode, World

HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a reservation asks for; ``start`` is in milliseconds from now."""

    devices: tuple[DeviceAsk, ...] = (ask(1),)
    gang: int = 1
    resources: Resources = field(default_factory=Resources)
    start: int | None = None
    duration_ms: int = HOUR_MS

    def request(self, world: World, now_ms: int) -> Request:
        return Request(
            pool_id=world.pool_id,
            devices=self.devices,
            duration=f"{self.duration_ms}ms",
            start=None if self.start is None else now_ms + self.start,
            gang=None if self.gang == 1 else Gang(size=self.gang),
        )


async def reserve(world: World, wish: Wish) -> tuple[ReservationId, Placed | Unschedulable]:
    """Write a draft, charge its devices as GPUs, place it, and take in what came of it."""

    def work(tx: Transaction) -> tuple[ReservationId, Placed | Unschedulable]:
        held = pools.lock(tx, world.pool_id)
        key = secrets.token_hex(8)
        row = reservations.add_draft(
            tx,
            Draft(
                id=ReservationId(f"rsv_{key}"),
                tenant_id=TENANT,
                pool_id=world.pool_id,
                owner="iss|ann",
                identity="iss|ann|",
                idempotency_key=key,
                request_hash="hash",
                request=wish.request(world, held.now_ms),
                host_share=Resources(),
                resources=wish.resources,
            ),
        )
        assert row is not None
        devices = sum(ask.count for ask in wish.devices) * wish.gang
        assert quotas.charge(tx, row.id, TENANT, {"gpu": devices}) is None
        outcome = world.placements.place(tx, held, row)
        apply.place(Hand(tx, held, world.signer), row, outcome)
        return row.id, outcome

    return await world.database.write(work)


async def placed(world: World, **wish: Any) -> tuple[ReservationId, Sequence[Allocation]]:
    """A reservation that must fit, and its allocations."""
    reservation_id, outcome = await reserve(world, Wish(**wish))
    assert isinstance(outcome, Placed), outcome
    return reservation_id, outcome.allocations


async def refused(world: World, **wish: Any) -> Unschedulable:
    """Why a reservation that must not fit does not; it does not stay to wait."""
    reservation_id, outcome = await reserve(world, Wish(**wish))
    assert isinstance(outcome, Unschedulable)
    await world.end(reservation_id, Trigger.CANCELLED)
    return outcome


def locked(tx: Transaction, world: World, reservation_id: ReservationId) -> StoredReservation:
    row = reservations.lock(tx, reservation_id)
    assert row is not None
    return row


async def repair(
    world: World, reservation_id: ReservationId, *lost: NodeId
) -> Placed | Unschedulable:
    """Repair the members on these nodes."""

    def work(tx: Transaction) -> Placed | Unschedulable:
        held = pools.lock(tx, world.pool_id)
        row = locked(tx, world, reservation_id)
        gone = [a for a in allocations.live(tx, row.id) if a.node_id in lost]
        return world.placements.repair(tx, held, row, gone)

    return await world.database.write(work)


async def extend(
    world: World, reservation_id: ReservationId, by_ms: int
) -> Extended | AvailableUntil:
    """Extend by so much, and keep the window in step."""

    def work(tx: Transaction) -> Extended | AvailableUntil:
        held = pools.lock(tx, world.pool_id)
        row = locked(tx, world, reservation_id)
        assert row.during is not None
        outcome = world.placements.extend(tx, held, row, row.during.end_ms + by_ms)
        if isinstance(outcome, Extended):
            reservations.save(tx, row, during=outcome.window)
        return outcome

    return await world.database.write(work)


async def give_capacity(world: World, node: FakeNode, vcpu: int, memory_gib: int = 1024) -> None:
    """What a host gives beside its devices, noted as a change of the node."""
    capacity = HostCapacity(
        vcpu=vcpu, memory_gib=memory_gib, hugepages_2mi=0, hugepages_1gi=0, gpus=8
    )

    def work(tx: Transaction) -> None:
        held = pools.lock(tx, world.pool_id)
        hosts.set_capacity(tx, node.id, capacity)
        pools.note_changes(tx, held, [node.id], "node")

    await world.database.write(work)


async def learn(world: World, node: FakeNode, *capabilities: str) -> None:
    """What a gateway writes of a daemon's Hello: no lock, and no change is noted."""
    await world.database.write(nodes.replace_capabilities, node.id, capabilities)


async def stand(world: World, node: FakeNode, **labels: str) -> None:
    """Operator's labels, noted as a change of the node."""

    def work(tx: Transaction) -> None:
        held = pools.lock(tx, world.pool_id)
        for key, value in labels.items():
            tx.run(
                "INSERT INTO node_labels (node_id, key, value, source)"
                " VALUES (:id, :key, :value, 'operator')",
                id=node.id,
                key=key,
                value=value,
            )
        pools.note_changes(tx, held, [node.id], "node")

    await world.database.write(work)


def by_node(made: Sequence[Allocation]) -> Mapping[NodeId, tuple[str, ...]]:
    """Device ids by node."""
    return {a.node_id: tuple(device.id for device in a.devices) for a in made}

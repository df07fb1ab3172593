"""Rows that the store's tests start from: a pool, nodes with GPUs, reservations, allocations."""

import secrets
from dataclasses import dataclass

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, NodeId, PoolId, ReservationId, type_id
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import DeviceAsk, Request, Resources
from bcd.store import allocations, atoms, bookings, nodes, pools, reservations
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.atoms import Atom, AtomFacts
from bcd.store.bookings import NewBooking
from bcd.store.database import Transaction
from bcd.store.reservations import Draft

TENANT = "acme"


def new_id(prefix: str) -> str:
    """A TypeID."""
    return type_id(prefix, 1_700_000_000_000, secrets.token_bytes(10))


def facts(uuid: str, device_class: DeviceClass = DeviceClass.GPU, gpu: str = "") -> AtomFacts:
    """A healthy device; ``gpu`` is its physical GPU, itself by default."""
    return AtomFacts(
        device_class=device_class,
        uuid=uuid,
        gpu_uuid=gpu or uuid,
        model="H100",
        profile="",
        memory_bytes=80 << 30,
        numa_node=0,
        nvlink_domain="",
        nvlink_peers=(),
        bookable=True,
        health="healthy",
        health_reason="",
    )


@dataclass(frozen=True, slots=True)
class World:
    """A pool with one node of ``gpus`` whole GPUs."""

    pool_id: PoolId
    node_id: NodeId
    gpus: tuple[Atom, ...]


def make_pool(tx: Transaction, name: str = "pool") -> PoolId:
    """A pool of TENANT."""
    return pools.create(tx, name, TENANT, "eu-1", PoolPolicy()).id


def make_node(tx: Transaction, pool_id: PoolId) -> NodeId:
    """A trusted node without devices."""
    node_id = NodeId(new_id("node"))
    nodes.enrol(tx, node_id, pool_id, "node", trusted=True)
    return node_id


def make_world(tx: Transaction, gpus: int = 8) -> World:
    """See World."""
    pool_id = make_pool(tx)
    node_id = make_node(tx, pool_id)
    pools.lock(tx, pool_id)
    atoms.sync(tx, node_id, [facts(f"GPU-{number}") for number in range(gpus)])
    return World(pool_id, node_id, tuple(atoms.on_node(tx, node_id)))


def draft_of(pool_id: PoolId, key: str = "", owner: str = "iss|ann") -> Draft:
    """A draft for one GPU for an hour, under an idempotency key of its own."""
    key = key or secrets.token_hex(8)
    return Draft(
        id=ReservationId(f"rsv_{secrets.token_hex(8)}"),
        tenant_id=TENANT,
        pool_id=pool_id,
        owner=owner,
        identity=f"{owner}|",
        idempotency_key=key,
        request_hash="hash",
        request=Request(
            pool_id=pool_id,
            devices=(DeviceAsk(device_class=DeviceClass.GPU, count=1),),
            duration="3600000ms",
        ),
        host_share=Resources(),
        resources=Resources(),
    )


def make_draft(tx: Transaction, pool_id: PoolId, owner: str = "iss|ann") -> ReservationId:
    """A reservation that is still a draft."""
    draft = draft_of(pool_id, owner=owner)
    assert reservations.add_draft(tx, draft)
    return draft.id


def make_allocation(
    tx: Transaction,
    reservation_id: ReservationId,
    node_id: NodeId,
    state: AllocationState = AllocationState.ASSIGNED,
) -> AllocationId:
    """An allocation of one device."""
    allocation_id = AllocationId(new_id("alloc"))
    allocations.add(
        tx,
        Allocation(
            id=allocation_id,
            reservation_id=reservation_id,
            node_id=node_id,
            state=state,
            until_ms=1_800_000_000_000,
            devices=(AssignedDevice("GPU-0", DeviceClass.GPU),),
        ),
    )
    return allocation_id


def make_booking(
    tx: Transaction, world: World, chosen: tuple[Atom, ...], start_ms: int, end_ms: int
) -> ReservationId | None:
    """Book devices for a new reservation; its id, or None when one of them is taken."""
    reservation_id = make_draft(tx, world.pool_id)
    booking = NewBooking(
        allocation_id=make_allocation(tx, reservation_id, world.node_id),
        reservation_id=reservation_id,
        node_id=world.node_id,
        atoms=chosen,
        start_ms=start_ms,
        end_ms=end_ms,
    )
    return reservation_id if bookings.book(tx, booking) else None

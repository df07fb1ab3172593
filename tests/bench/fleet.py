"""Large pools and full calendars, written in bulk: what thousands of nodes and creates leave.

The first node comes by the inventory path; the others are copies of its rows under other names.
"""

import random
from base64 import b32encode
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId, PoolId, type_id
from bcd.model.reservation import DeviceAsk, Request, Resources, State, Window
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.placer.lifecycle.transitions import Moments, next_wake_ms
from bcd.store import shares
from bcd.store.database import Database, Transaction
from bcd.wire.inventory import encode_inventory
from tests.placer.world import ALICE, TENANT, World, dgx, host_of, inventory_of, new_authority

LENGTH_MS = 8 * HOUR_MS
CALENDAR_MS = 90 * DAY_MS
GPUS = 8
_HOST = host_of(128, 2048)
_TTL_MS = DAY_MS
_TABLES = ("nodes", "sessions", "node_labels", "gpus", "atoms", "host_capacity", "inventories")
_AT_ONCE = 500


# The id of its row, which is that of its atom too, and its UUID.
Gpu = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A pool and its nodes with their GPUs."""

    pool_id: PoolId
    nodes: tuple[tuple[NodeId, tuple[Gpu, ...]], ...]


async def add_fleet(database: Database, nodes: int) -> Fleet:
    """A pool of equal nodes of eight linked GPUs, in sessions that stay, and a large quota."""
    world = World(database, new_authority(await database.read(lambda tx: tx.now_ms())))
    await world.add_pool()
    await world.grant("gpu", 10**8)
    first = await world.add_node(dgx("n0"), host=_HOST)
    await database.write(lambda tx: tx.run("UPDATE sessions SET ttl_ms = :ttl_ms", ttl_ms=_TTL_MS))
    rows = await database.read(_rows_of, first.id)
    for start in range(1, nodes, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, nodes))
        await database.write(_add_copies, first.id, rows, numbers)
    await database.write(shares.keep, world.pool_id)
    return await database.read(_fleet, world.pool_id)


def _rows_of(tx: Transaction, node_id: NodeId) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    own = {table: "id" if table == "nodes" else "node_id" for table in _TABLES}
    return {
        table: [dict(r) for r in tx.all(f"SELECT * FROM {table} WHERE {key} = :id", id=node_id)]
        for table, key in own.items()
    }


def _add_copies(
    tx: Transaction,
    node_id: NodeId,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    numbers: Sequence[int],
) -> None:
    names = {number: tx.new_id("node") for number in numbers}
    sent = {n: encode_inventory(inventory_of(dgx(f"n{n}"), host=_HOST)) for n in numbers}
    for table in _TABLES:
        copies = []
        for number, name in names.items():
            more: dict[str, object] = {}
            if table == "nodes":
                more = {"inventory_hash": sent[number].hash}
            elif table == "inventories":
                more = {"hash": sent[number].hash, "body": sent[number].SerializeToString()}
            copies += [_copy(row, node_id, number, name) | more for row in rows[table]]
        tx.many(_insertion(table, list(copies[0])), copies)


def _copy(row: Mapping[str, Any], node_id: str, number: int, name: str) -> dict[str, Any]:
    """The row as that of the node with a number; rows of GPUs are numbered in step."""

    def renamed(column: str, value: Any) -> Any:
        if isinstance(value, str):
            return name if value == node_id else value.replace("-n0", f"-n{number}")
        if column in ("id", "gpu_id"):
            return value + number * GPUS
        return value

    return {column: renamed(column, value) for column, value in row.items()}


def _insertion(table: str, columns: Sequence[str]) -> str:
    values = ", ".join(f":{column}" for column in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


def _fleet(tx: Transaction, pool_id: PoolId) -> Fleet:
    found: defaultdict[NodeId, list[Gpu]] = defaultdict(list)
    for row in tx.all("SELECT node_id, id, uuid FROM atoms ORDER BY id"):
        found[row["node_id"]].append((row["id"], row["uuid"]))
    return Fleet(pool_id, tuple((node_id, tuple(gpus)) for node_id, gpus in found.items()))


@dataclass(frozen=True, slots=True)
class Live:
    """One placed reservation: where, on which GPUs, when."""

    node_id: NodeId
    gpus: tuple[Gpu, ...]
    start_ms: int
    end_ms: int


def calendar(fleet: Fleet, bookings: int, from_ms: int) -> Iterator[Live]:
    """Device bookings of eight hours at random moments of 90 days, four linked GPUs at a time."""
    chance = random.Random(7)
    halves = [(node, gpus[at : at + 4]) for node, gpus in fleet.nodes for at in (0, 4)]
    each, more = divmod(bookings // 4, len(halves))
    for place, (node_id, gpus) in enumerate(halves):
        for offset in _apart(chance, each + (place < more)):
            start_ms = from_ms + offset
            yield Live(node_id, gpus, start_ms, start_ms + LENGTH_MS)


def _apart(chance: random.Random, count: int) -> Sequence[int]:
    """So many random moments of which no two windows overlap."""
    slack = CALENDAR_MS - count * LENGTH_MS
    offsets = sorted(chance.randrange(slack) for _ in range(count))
    return [offset + place * LENGTH_MS for place, offset in enumerate(offsets)]


async def fill(database: Database, fleet: Fleet, live: Iterator[Live]) -> int:
    """Write placed reservations as creates would have left them; returns how many."""
    written = 0
    while batch := list(islice(live, _AT_ONCE)):
        await database.write(_write, fleet.pool_id, written, batch)
        written += len(batch)
    await database.write(_count)
    return written


def _count(tx: Transaction) -> None:
    tx.run("UPDATE quotas SET used = (SELECT coalesce(sum(amount), 0) FROM quota_charges)")
    if tx.for_update:  # the other engine's plans need no statistics of so plain tables
        tx.run("ANALYZE")


def _write(tx: Transaction, pool_id: PoolId, first: int, batch: Sequence[Live]) -> None:
    now_ms = tx.now_ms()
    by_table: defaultdict[str, list[Mapping[str, object]]] = defaultdict(list)
    for number, one in enumerate(batch, start=first):
        reservation_id = f"rsv_{b32encode(number.to_bytes(32, 'big')).decode().lower()[:52]}"
        allocation_id = type_id("alloc", now_ms, number.to_bytes(10, "big"))
        by_table["reservations"].append(_reservation(reservation_id, pool_id, one, now_ms))
        by_table["allocations"].append(_allocation(allocation_id, reservation_id, one, now_ms))
        whose = {
            "allocation_id": allocation_id,
            "reservation_id": reservation_id,
            "node_id": one.node_id,
            "start_ms": one.start_ms,
            "end_ms": one.end_ms,
        }
        for gpu_id, _ in one.gpus:
            by_table["bookings"].append({"atom_id": gpu_id, "gpu_id": gpu_id, "mode": 0, **whose})
        amounts = msgspec.structs.asdict(_share(one))
        by_table["host_bookings"].append({**amounts, **whose})
        charge = {"resource": "gpu", "tenant_id": TENANT, "amount": len(one.gpus)}
        by_table["quota_charges"].append({"reservation_id": reservation_id, **charge})
        moment = Moments(during=Window(one.start_ms, one.end_ms))
        wake_ms = next_wake_ms(State.PLACED, moment, one.start_ms - HOUR_MS)
        by_table["work"].append({"key": reservation_id, "wake_ms": wake_ms})
    for table, rows in by_table.items():
        tx.many(_insertion(table, list(rows[0])), rows)


def _share(one: Live) -> Resources:
    return Resources(vcpu=15 * len(one.gpus), memory_gib=250 * len(one.gpus))


def _reservation(
    reservation_id: str, pool_id: PoolId, one: Live, now_ms: int
) -> Mapping[str, object]:
    ask = DeviceAsk(device_class=DeviceClass.GPU, count=len(one.gpus))
    duration = f"{one.end_ms - one.start_ms}ms"
    request = Request(pool_id=pool_id, devices=(ask,), duration=duration, start=one.start_ms)
    share = msgspec.json.encode(_share(one)).decode()
    return {
        "id": reservation_id,
        "tenant_id": TENANT,
        "pool_id": pool_id,
        "owner": ALICE.owner,
        "identity": ALICE.identity,
        "idempotency_key": reservation_id,
        "request_hash": "",
        "request": msgspec.json.encode(request).decode(),
        "host_share": share,
        "resources": share,
        "state": "placed",
        "operation": "succeeded",
        "start_ms": one.start_ms,
        "end_ms": one.end_ms,
        "version": 2,
        "created_ms": now_ms,
    }


def _allocation(
    allocation_id: str, reservation_id: str, one: Live, now_ms: int
) -> Mapping[str, object]:
    return {
        "id": allocation_id,
        "reservation_id": reservation_id,
        "node_id": one.node_id,
        "state": "booked",
        "until_ms": one.end_ms,
        "devices": msgspec.json.encode([(uuid, "gpu") for _, uuid in one.gpus]).decode(),
        "created_ms": now_ms,
    }

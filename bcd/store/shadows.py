"""Shadow bookings: what a pool keeps for its oldest reservation that does not fit yet.

Read and written under the pool's lock, and no rule of the database: bookings go over them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.store.database import Transaction

_MEMBERS = msgspec.json.Decoder(dict[str, tuple[int, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A window, half-open and with the turnaround, and the atoms' ids by node."""

    reservation_id: ReservationId
    start_ms: int
    end_ms: int
    members: Mapping[NodeId, tuple[int, ...]]


def get(tx: Transaction, pool_id: PoolId) -> Shadow | None:
    """A pool's shadow, also one whose reservation has got its place since."""
    row = tx.one("SELECT * FROM shadows WHERE pool_id = :pool_id", pool_id=pool_id)
    if row is None:
        return None
    members = _MEMBERS.decode(row["members"])
    return Shadow(
        reservation_id=row["reservation_id"],
        start_ms=row["start_ms"],
        end_ms=row["end_ms"],
        members={NodeId(node_id): atom_ids for node_id, atom_ids in members.items()},
    )


def put(tx: Transaction, pool_id: PoolId, shadow: Shadow) -> None:
    """Replace a pool's shadow."""
    tx.run(
        "INSERT INTO shadows (pool_id, reservation_id, start_ms, end_ms, members)"
        " VALUES (:pool_id, :reservation_id, :start_ms, :end_ms, :members)"
        " ON CONFLICT (pool_id) DO UPDATE SET reservation_id = excluded.reservation_id,"
        " start_ms = excluded.start_ms, end_ms = excluded.end_ms, members = excluded.members",
        pool_id=pool_id,
        reservation_id=shadow.reservation_id,
        start_ms=shadow.start_ms,
        end_ms=shadow.end_ms,
        members=msgspec.json.encode(shadow.members).decode(),
    )

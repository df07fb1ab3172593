"""Reservations, their drafts included: one row each, changed only at the version that was read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from bcd.model.errors import InvalidInput
from bcd.model.ids import PoolId, ReservationId
from bcd.model.reservation import (
    TERMINAL,
    Condition,
    HoldBinding,
    OperationState,
    Request,
    Reservation,
    Resources,
    State,
    Window,
)
from bcd.store.database import Row, Transaction

_CONDITIONS = msgspec.json.Decoder(tuple[Condition, ...])
_REQUEST = msgspec.json.Decoder(Request)
_RESOURCES = msgspec.json.Decoder(Resources)
_BINDING = msgspec.json.Decoder(HoldBinding)
_ENCODER = msgspec.json.Encoder(order="sorted")
_MAX_AHEAD = 1000
_UNBOUND = frozenset({State.DRAFT, State.PENDING, State.PLACED})


class Kind(StrEnum):
    """Whether a row is somebody's reservation or a node's maintenance window."""

    RESERVATION = "reservation"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReservation:
    """A row as read. ``attempts`` counts the placements that failed to bind.

    ``resources`` are the host resources that each of its nodes gives, ``host_share`` the part of
    them without a charge. ``lease_until_ms`` is set from the first placement on where the request
    has a lease; ``extended_ms`` is the window's whole length where it was extended. ``models`` are
    the pool's models that its admission saw, None where that is not on record.
    """

    seq: int
    id: ReservationId
    tenant_id: str
    pool_id: PoolId
    owner: str
    identity: str
    idempotency_key: str
    request_hash: str
    request: Request
    host_share: Resources
    resources: Resources
    state: State
    operation: OperationState
    conditions: tuple[Condition, ...]
    during: Window | None
    attempts: int
    bind_deadline_ms: int | None
    lease_until_ms: int | None
    extended_ms: int | None
    version: int
    created_ms: int
    kind: Kind = Kind.RESERVATION
    models: frozenset[str] | None = None

    @property
    def duration_ms(self) -> int:
        """The window's length, extensions included."""
        return self.request.duration_ms if self.extended_ms is None else self.extended_ms

    def asking_ms(self, duration_ms: int) -> Request:
        """The request with another duration, itself where that is its own."""
        if duration_ms == self.request.duration_ms:
            return self.request
        return msgspec.structs.replace(self.request, duration=f"{duration_ms}ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What transaction 1 of a create writes."""

    id: ReservationId
    tenant_id: str
    pool_id: PoolId
    owner: str
    identity: str
    idempotency_key: str
    request_hash: str
    request: Request
    host_share: Resources
    resources: Resources


def stored(row: Row) -> StoredReservation:
    """A row of the table, read."""
    start_ms, end_ms = row["start_ms"], row["end_ms"]
    return StoredReservation(
        seq=row["seq"],
        id=row["id"],
        tenant_id=row["tenant_id"],
        pool_id=row["pool_id"],
        owner=row["owner"],
        identity=row["identity"],
        idempotency_key=row["idempotency_key"],
        request_hash=row["request_hash"],
        request=_REQUEST.decode(row["request"]),
        host_share=_RESOURCES.decode(row["host_share"]),
        resources=_RESOURCES.decode(row["resources"]),
        state=State(row["state"]),
        operation=OperationState(row["operation"]),
        conditions=_CONDITIONS.decode(row["conditions"]),
        during=None if start_ms is None else Window(start_ms, end_ms),
        attempts=row["attempts"],
        bind_deadline_ms=row["bind_deadline_ms"],
        lease_until_ms=row["lease_until_ms"],
        extended_ms=row["duration_ms"],
        version=row["version"],
        created_ms=row["created_ms"],
        kind=Kind(row["kind"]),
        models=None if row["models"] is None else _models(row["models"]),
    )


@lru_cache(maxsize=1024)
def _models(text: str) -> frozenset[str]:
    return msgspec.json.decode(text, type=frozenset[str])


def add_draft(
    tx: Transaction, draft: Draft, kind: Kind = Kind.RESERVATION
) -> StoredReservation | None:
    """Write a draft; None when its id is there already, whatever became of it, or was refused."""
    row = tx.one(
        "INSERT INTO reservations (id, tenant_id, pool_id, owner, identity, idempotency_key,"
        " request_hash, request, host_share, resources, spot, state, operation, created_ms, kind)"
        " SELECT :id, :tenant_id, :pool_id, :owner, :identity, :idempotency_key,"
        " :request_hash, :request, :host_share, :resources, :spot, 'draft', 'running',"
        " compute_now(), :kind WHERE NOT EXISTS (SELECT 1 FROM refused_keys WHERE id = :id)"
        " ON CONFLICT (id) DO NOTHING RETURNING *",
        id=draft.id,
        tenant_id=draft.tenant_id,
        pool_id=draft.pool_id,
        owner=draft.owner,
        identity=draft.identity,
        idempotency_key=draft.idempotency_key,
        request_hash=draft.request_hash,
        request=_ENCODER.encode(draft.request).decode(),
        host_share=_ENCODER.encode(draft.host_share).decode(),
        resources=_ENCODER.encode(draft.resources).decode(),
        kind=kind.value,
        spot=int(draft.request.spot),
    )
    return None if row is None else stored(row)


def get(tx: Transaction, reservation_id: ReservationId) -> StoredReservation | None:
    """Read one row, drafts included."""
    row = tx.one("SELECT * FROM reservations WHERE id = :id", id=reservation_id)
    return None if row is None else stored(row)


def lock(tx: Transaction, reservation_id: ReservationId) -> StoredReservation | None:
    """Read one row and keep others from changing it before the commit."""
    row = tx.one(f"SELECT * FROM reservations WHERE id = :id{tx.for_update}", id=reservation_id)
    return None if row is None else stored(row)


def save(tx: Transaction, before: StoredReservation, **changes: Any) -> StoredReservation:
    """Write a locked row's changed fields and raise its version; returns the row as it is now.

    Only ``placer.lifecycle.apply`` calls this, with what the transition table allows.
    """
    after = replace(before, version=before.version + 1, **changes)
    window = after.during
    changed = tx.run(
        "UPDATE reservations SET state = :state, operation = :operation,"
        " conditions = :conditions, start_ms = :start_ms, end_ms = :end_ms, attempts = :attempts,"
        " bind_deadline_ms = :bind_deadline_ms, lease_until_ms = :lease_until_ms,"
        " duration_ms = :extended_ms, owner = :owner, models = :models, version = :version"
        " WHERE id = :id AND version = :before",
        id=after.id,
        state=after.state.value,
        operation=after.operation.value,
        conditions=msgspec.json.encode(after.conditions).decode(),
        start_ms=None if window is None else window.start_ms,
        end_ms=None if window is None else window.end_ms,
        attempts=after.attempts,
        bind_deadline_ms=after.bind_deadline_ms,
        lease_until_ms=after.lease_until_ms,
        extended_ms=after.extended_ms,
        owner=after.owner,
        models=None if after.models is None else _ENCODER.encode(sorted(after.models)).decode(),
        version=after.version,
        before=before.version,
    )
    if changed != 1:
        raise AssertionError(f"{before.id} changed while its row was locked")
    tx.wake("reservation", after.id)
    return after


def view(tx: Transaction, row: StoredReservation) -> Reservation:
    """The row with its bindings, as the API shows it."""
    return Reservation(
        id=row.id,
        tenant_id=row.tenant_id,
        pool_id=row.pool_id,
        state=row.state,
        operation=row.operation,
        request=row.request,
        during=row.during,
        owner=row.owner,
        idempotency_key=row.idempotency_key,
        conditions=_placed_in_queue(tx, row) if row.state is State.PENDING else row.conditions,
        bindings=() if row.state in _UNBOUND else _bindings(tx, row.id),
        host_share=row.host_share,
        lease_until_ms=None if row.state in TERMINAL else row.lease_until_ms,
        version=row.version,
    )


def _placed_in_queue(tx: Transaction, row: StoredReservation) -> tuple[Condition, ...]:
    """The conditions of a pending one, with how many of its pool are older (spec 7.6).

    Counted when it is read: written down, every step forward of the queue would change it all.
    """
    ahead = len(
        tx.all(
            "SELECT seq FROM reservations WHERE pool_id = :pool_id AND state = 'pending'"
            " AND seq < :seq LIMIT :limit",
            pool_id=row.pool_id,
            seq=row.seq,
            limit=_MAX_AHEAD + 1,
        )
    )
    number = f"more than {_MAX_AHEAD}" if ahead > _MAX_AHEAD else str(ahead)
    words = f"{number} ahead of it in the pool's queue" if ahead else "first in the pool's queue"
    return tuple(
        msgspec.structs.replace(condition, message=f"{condition.message}; {words}")
        for condition in row.conditions
    )


def _bindings(tx: Transaction, reservation_id: ReservationId) -> tuple[HoldBinding, ...]:
    rows = tx.all(
        "SELECT binding FROM allocations WHERE reservation_id = :id AND binding IS NOT NULL"
        " AND state IN ('bound', 'lost') ORDER BY id",
        id=reservation_id,
    )
    return tuple(_BINDING.decode(row["binding"]) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which reservations a list shows; empty strings filter nothing."""

    tenant_id: str
    owner: str = ""
    state: str = ""
    pool_id: str = ""


def page(
    tx: Transaction, wanted: Filter, after: ReservationId | None, limit: int
) -> Sequence[StoredReservation]:
    """Newest first, drafts and maintenance left out, at most ``limit`` rows older than ``after``.

    Raises InvalidInput when the tenant has no such reservation: an empty page would look like
    the last one.
    """
    before_seq = 1 << 62
    if after is not None:
        row = tx.one(
            "SELECT seq FROM reservations WHERE id = :id AND tenant_id = :tenant_id"
            " AND state <> 'draft' AND kind = 'reservation'",
            id=after,
            tenant_id=wanted.tenant_id,
        )
        if row is None:
            raise InvalidInput("cursor", "names no reservation of this tenant; list without one")
        before_seq = row["seq"]
    rows = tx.all(
        "SELECT * FROM reservations WHERE tenant_id = :tenant_id AND state <> 'draft'"
        " AND kind = 'reservation' AND seq < :before_seq AND (:owner = '' OR owner = :owner)"
        " AND (:state = '' OR state = :state) AND (:pool_id = '' OR pool_id = :pool_id)"
        " ORDER BY seq DESC LIMIT :limit",
        tenant_id=wanted.tenant_id,
        owner=wanted.owner,
        state=wanted.state,
        pool_id=wanted.pool_id,
        before_seq=before_seq,
        limit=limit,
    )
    return [stored(row) for row in rows]


def owned(
    tx: Transaction, tenant_id: str, owner: str, states: Sequence[State], limit: int
) -> Sequence[StoredReservation]:
    """A tenant's reservations of one owner that are in one of these states, oldest first."""
    names = ", ".join(f"'{state.value}'" for state in states)
    rows = tx.all(
        "SELECT * FROM reservations WHERE tenant_id = :tenant_id AND owner = :owner"
        f" AND kind = 'reservation' AND state IN ({names}) ORDER BY seq LIMIT :limit",
        tenant_id=tenant_id,
        owner=owner,
        limit=limit,
    )
    return [stored(row) for row in rows]


def spot_in(
    tx: Transaction, pool_id: PoolId, after_ms: int, limit: int
) -> Sequence[StoredReservation]:
    """A pool's spot reservations that have devices still after that moment, youngest first.

    Call under the pool's lock, which covers their rows.
    """
    rows = tx.all(
        "SELECT * FROM reservations WHERE pool_id = :pool_id AND spot = 1"
        " AND state IN ('placed', 'binding', 'active') AND end_ms > :after_ms"
        " ORDER BY seq DESC LIMIT :limit",
        pool_id=pool_id,
        after_ms=after_ms,
        limit=limit,
    )
    return [stored(row) for row in rows]


def on_node(tx: Transaction, node_id: str) -> Sequence[ReservationId]:
    """Reservations that have a live allocation on a node."""
    rows = tx.all(
        "SELECT DISTINCT reservation_id FROM allocations"
        " WHERE node_id = :node_id AND state <> 'ended' ORDER BY reservation_id",
        node_id=node_id,
    )
    return [row["reservation_id"] for row in rows]


def over_on_node(tx: Transaction, node_id: str, now_ms: int) -> Sequence[StoredReservation]:
    """Reservations that a node still holds devices for although their window is over, by id.

    Call under the pool's lock, which covers their rows.
    """
    rows = tx.all(
        "SELECT * FROM reservations WHERE end_ms <= :now_ms AND id IN"
        " (SELECT reservation_id FROM allocations WHERE node_id = :node_id"
        " AND state IN ('assigned', 'bound', 'lost')) ORDER BY id",
        node_id=node_id,
        now_ms=now_ms,
    )
    return [stored(row) for row in rows]

"""Faults planted into the program turn the histories red: what they check can fail."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bcd.model.ids import PoolId, ReservationId
from bcd.placer.admission import create
from bcd.store import pools, quotas, reservations
from bcd.store.database import Row, Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import Draft, StoredReservation
from tests.model_trace.machine import Trace
from tests.model_trace.test_traces import run_traces

Plant = Callable[[pytest.MonkeyPatch], None]


def no_pool_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is read and not locked."""

    def held(tx: Transaction, row: Row | None) -> PoolLock | None:
        if row is None:
            return None
        pool = pools.get(tx, row["id"])
        return PoolLock(pool, tx.now_ms(), row["change_seq"], row["change_token"])

    def lock(tx: Transaction, pool_id: PoolId) -> PoolLock | None:
        return held(tx, tx.one("SELECT * FROM pools WHERE id = :id", id=pool_id))

    def lock_of(tx: Transaction, reservation_id: ReservationId) -> PoolLock | None:
        row = reservations.get(tx, reservation_id)
        return None if row is None else lock(tx, row.pool_id)

    monkeypatch.setattr(pools, "lock", lock)
    monkeypatch.setattr(pools, "lock_of", lock_of)


def refund_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was charged is given back twice, as far as there is anything in use."""
    refund = quotas.refund

    def twice(tx: Transaction, reservation_id: ReservationId) -> None:
        rows = tx.all("SELECT * FROM quota_charges WHERE reservation_id = :id", id=reservation_id)
        refund(tx, reservation_id)
        for row in rows:
            tx.run(
                "UPDATE quotas SET used = CASE WHEN used > :amount THEN used - :amount ELSE 0 END"
                " WHERE tenant_id = :tenant_id AND resource = :resource",
                amount=row["amount"],
                tenant_id=row["tenant_id"],
                resource=row["resource"],
            )

    monkeypatch.setattr(quotas, "refund", twice)


def no_version_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision is carried out on the draft as it was, whatever became of it meanwhile."""

    class Forgetful:
        def __init__(self) -> None:
            self._read: dict[ReservationId, StoredReservation] = {}

        def __getattr__(self, name: str) -> Any:
            return getattr(reservations, name)

        def get(self, tx: Transaction, reservation_id: ReservationId) -> StoredReservation | None:
            return self._note(reservations.get(tx, reservation_id))

        def add_draft(self, tx: Transaction, draft: Draft) -> StoredReservation | None:
            return self._note(reservations.add_draft(tx, draft))

        def _note(self, row: StoredReservation | None) -> StoredReservation | None:
            if row is not None:
                self._read[row.id] = row
            return row

        def lock(self, tx: Transaction, reservation_id: ReservationId) -> StoredReservation | None:
            row = reservations.lock(tx, reservation_id)
            read = self._read[reservation_id]
            return None if row is None else replace(row, state=read.state, version=read.version)

    monkeypatch.setattr(create, "reservations", Forgetful())


FAULTS: dict[Plant, str] = {
    no_pool_lock: "without the pool's lock",
    refund_twice: "used is the sum of the charges",
    no_version_check: "while its row was locked|ConstraintViolated",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(
    traces: type[Trace], plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException):  # noqa: B017 - what it is, is looked at next
        run_traces(traces, 100)
    assert re.search(FAULTS[plant], traces.found[0]), traces.found[0]

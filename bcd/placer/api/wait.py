"""Holds a create's answer until its operation stops running (spec 8.1)."""

import asyncio

from bcd.model.ids import ReservationId
from bcd.model.reservation import OperationState, Reservation
from bcd.store import reservations
from bcd.store.database import Database, Transaction

_FIRST_REST_S = 0.05
_LONGEST_REST_S = 1.0


async def wait_for_operation(
    database: Database, reservation: Reservation, timeout_ms: int
) -> Reservation:
    """Re-read until the operation ends or the time is up; the last read is the answer.

    Reads back off from 50 ms to a second; a wake-up comes sooner. A caller that goes away cancels
    this coroutine.
    """
    if reservation.operation is not OperationState.RUNNING or timeout_ms <= 0:
        return reservation
    changed = asyncio.Event()

    def listener(key: str) -> None:
        if key == reservation.id:
            changed.set()

    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    rest_s = _FIRST_REST_S
    stop = database.wakes.listen("reservation", listener)
    try:
        while reservation.operation is OperationState.RUNNING and loop.time() < deadline:
            changed.clear()
            try:
                async with asyncio.timeout(min(rest_s, max(0.0, deadline - loop.time()))):
                    await changed.wait()
            except TimeoutError:
                rest_s = min(_LONGEST_REST_S, rest_s * 2)
            reservation = await database.read(_view, reservation.id)
    finally:
        stop()
    return reservation


def _view(tx: Transaction, reservation_id: ReservationId) -> Reservation:
    row = reservations.get(tx, reservation_id)
    assert row is not None
    return reservations.view(tx, row)

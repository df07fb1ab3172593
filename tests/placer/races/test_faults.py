"""Faults planted into the program lose races: what is looked at after a round can fail."""

from collections.abc import Callable

import pytest

from bcd.store import events
from bcd.store.database import Transaction
from tests.model_trace.test_faults import no_version_check, refund_twice
from tests.placer.races import booking, lives
from tests.placer.races.arena import Arena
from tests.placer.races.sound import run
from tests.placer.races.table import Race

Plant = Callable[[pytest.MonkeyPatch], None]


def tells_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is written twice."""
    emit = events.emit

    def twice(tx: Transaction, *told: object, **tenant: object) -> None:
        emit(tx, *told, **tenant)  # type: ignore[arg-type]
        emit(tx, *told, **tenant)  # type: ignore[arg-type]

    monkeypatch.setattr(events, "emit", twice)


FAULTS: dict[Plant, Race] = {
    refund_twice: Race(booking.tight_quota, booking.two_pools),
    no_version_check: Race(booking.same_devices),
    tells_twice: Race(lives.two_workers),
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
async def test_a_planted_fault_is_found(
    arena: Arena, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        await run(arena, FAULTS[plant], 200)

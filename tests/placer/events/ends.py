"""Writes events, publishes them, and reads them all."""

from collections.abc import Sequence

from bcd.placer.events.publisher import Publisher
from bcd.store import events
from bcd.store.database import Database, Transaction
from bcd.store.events import Event, Wanted

PLACED = "reservation.placed"


async def tell(
    database: Database, *subjects: str, tenant: str = "acme", kind: str = PLACED
) -> None:
    """One event for each subject, in one transaction, and published."""

    def write(tx: Transaction) -> None:
        for number, subject in enumerate(subjects):
            events.emit(tx, subject, kind, {"number": number}, tenant_id=tenant)

    await database.write(write)
    await publish(database)


async def publish(database: Database) -> None:
    """Publish all that is committed."""
    while await Publisher(database).pass_once() == 0.0:
        pass


async def everything(database: Database, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
    """Every published event behind a place, by pages."""
    found: list[Event] = []
    while True:
        page = await database.read(events.page, Wanted(), after, limit)
        found += page.events
        after = page.upto
        if after >= page.newest:
            return found

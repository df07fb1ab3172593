"""Publishes what was written: gives each committed event its place in the common order."""

from bcd.store import events
from bcd.store.database import Database

_BATCH = 500


class Publisher:
    """A loop's pass. Every placer has one; the database lets one at a time publish."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pass_once(self) -> float | None:
        """Publish what is there; comes back at once while that was a whole batch."""
        published = await self._database.write(events.publish, _BATCH)
        return 0.0 if published == _BATCH else None

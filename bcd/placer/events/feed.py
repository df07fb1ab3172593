"""Reads published events as somebody may see them: what the policy hides from them is left out.

A cursor is ``<control epoch>-<place>``. After a restore from backup places are given anew, and
with the epoch every older cursor is refused; so is one behind which events have been forgotten.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bcd.model.caller import Caller
from bcd.model.errors import InvalidInput
from bcd.model.ids import ReservationId
from bcd.placer.admission.attributes import Place, attributes_of
from bcd.placer.admission.policy import Action, Denied, Policy
from bcd.store import control, events, pools, reservations
from bcd.store.database import Database, Transaction
from bcd.store.events import Event, Page, Wanted
from bcd.store.reservations import StoredReservation

KEPT_DAYS = 7
_CURSOR = re.compile(r"([0-9]{1,12})-([0-9]{1,18})\Z", re.ASCII)
_START_ANEW = "list the reservations, and watch from now without a cursor"
_RESERVATION = "reservation/"

Facts = Mapping[str, tuple[StoredReservation, Place]]


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the order of one control epoch."""

    epoch: int
    place: int

    @property
    def cursor(self) -> str:
        """As it goes to a reader."""
        return f"{self.epoch}-{self.place}"

    def at(self, place: int) -> "Position":
        """Another place of the same order."""
        return Position(self.epoch, place)


@dataclass(frozen=True, slots=True)
class Feed:
    """The one way to read events for somebody."""

    database: Database
    policy: Policy

    async def newest(self) -> Position:
        """The place of the newest event."""
        return await self.database.read(_newest)

    async def oldest(self) -> Position:
        """The place in front of the oldest event that is kept."""
        return await self.database.read(_oldest)

    async def position(self, cursor: str) -> Position:
        """The place that a cursor names; raises InvalidInput where nobody can go on from it."""
        return await self.database.read(_position, cursor)

    async def page(self, caller: Caller, wanted: Wanted, after: Position, limit: int) -> Page:
        """Up to ``limit`` events behind a place, without those that the caller may not see.

        Raises InvalidInput when events behind the place have been forgotten meanwhile.
        """
        found, facts = await self.database.read(_read, wanted, after, limit, not caller.admin)
        if caller.admin:
            return found
        return replace(found, events=await self._visible(caller, found.events, facts))

    async def visible(self, caller: Caller, found: Sequence[Event]) -> Sequence[Event]:
        """Those among events, wherever they were read, that the caller may see."""
        if caller.admin:
            return found
        return await self._visible(caller, found, await self.database.read(_facts, found))

    async def _visible(
        self, caller: Caller, found: Sequence[Event], facts: Facts
    ) -> Sequence[Event]:
        hidden = set()
        for subject, (row, place) in facts.items():
            asked = attributes_of(row.tenant_id, row.owner, place, row.request, row.resources)
            if isinstance(self.policy.decide(caller, Action.READ, asked), Denied):
                hidden.add(subject)
            await asyncio.sleep(0)  # others have their turn: a page takes a while
        return [
            event
            for event in found
            if event.tenant_id in caller.tenants
            and event.subject not in hidden
            and (event.subject in facts or not event.subject.startswith(_RESERVATION))
        ]


def _newest(tx: Transaction) -> Position:
    return Position(control.epoch(tx), events.bounds(tx).newest)


def _oldest(tx: Transaction) -> Position:
    return Position(control.epoch(tx), events.bounds(tx).forgotten)


def _position(tx: Transaction, cursor: str) -> Position:
    match = _CURSOR.match(cursor)
    if match is None:
        raise InvalidInput("cursor", "is none that an answer gave")
    position = Position(int(match[1]), int(match[2]))
    _check(tx, position)
    return position


def _check(tx: Transaction, position: Position) -> None:
    bounds = events.bounds(tx)
    if position.epoch != control.epoch(tx) or position.place > bounds.newest:
        raise InvalidInput(
            "cursor", f"is from before the control plane was restored; {_START_ANEW}"
        )
    if position.place < bounds.forgotten:
        raise InvalidInput(
            "cursor", f"is older than {KEPT_DAYS} days, events behind it are gone; {_START_ANEW}"
        )


def _read(
    tx: Transaction, wanted: Wanted, after: Position, limit: int, with_facts: bool
) -> tuple[Page, Facts]:
    _check(tx, after)
    found = events.page(tx, wanted, after.place, limit)
    return found, _facts(tx, found.events) if with_facts else {}


def _facts(tx: Transaction, found: Sequence[Event]) -> Facts:
    """What the policy must know, by subject."""
    facts: dict[str, tuple[StoredReservation, Place]] = {}
    for subject in {event.subject for event in found if event.subject.startswith(_RESERVATION)}:
        row = reservations.get(tx, ReservationId(subject.removeprefix(_RESERVATION)))
        if row is not None:
            pool = pools.get(tx, row.pool_id)
            facts[subject] = (row, Place(pool.region, pool.models, pool.policy.sharing))
    return facts

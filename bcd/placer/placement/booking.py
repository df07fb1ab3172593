"""Plans on a pool's view and books guarded rows, all under the pool's lock.

The view says what is free; the database has the last word. Devices and host resources of all
members are booked together: all or nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bcd.model.errors import Unavailable
from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import Window
from bcd.placer.placement.allowed import demand_in
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.search import Found, Where, find
from bcd.placer.placement.shadow import ANY_SEQ, Kept, beside, kept_of
from bcd.placer.placement.unschedulable import Unschedulable, explain
from bcd.placer.placement.vain import InVain
from bcd.placer.placement.view import PoolView
from bcd.placer.placement.views import KnownPool, Question, Views, read_node
from bcd.placer.placement.writing import (
    LostRace,
    Plan,
    atoms_of,
    members_of,
    still_able,
    write,
)
from bcd.store import allocations, bookings, hosts, pools, queue
from bcd.store.allocations import Allocation, AllocationState
from bcd.store.database import Transaction
from bcd.store.pools import PoolLock
from bcd.store.reservations import StoredReservation

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Placed:
    """The window that was booked, and the reservation's allocations, one for each node.

    ``displaced`` are those that had to yield.
    """

    window: Window
    allocations: tuple[Allocation, ...]
    displaced: tuple[ReservationId, ...] = ()


@dataclass(frozen=True, slots=True)
class Extended:
    """The window as it is now, and the nodes on which it ends later."""

    window: Window
    node_ids: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class AvailableUntil:
    """Nothing was changed: up to this end of the window nobody is in the way."""

    end_ms: int


class _NoFit(Exception):
    """Undoes a savepoint: nothing fits."""

    def __init__(self, outcome: Unschedulable) -> None:
        super().__init__()
        self.outcome = outcome


class _Seen(Exception):
    """Undoes a savepoint: what is in the way of an extension has been seen."""

    def __init__(self, moment_ms: int | None) -> None:
        super().__init__()
        self.moment_ms = moment_ms


class Placements:
    """Plans and books; one for a placer's process.

    ``in_vain`` is what is remembered of looks for victims.
    """

    def __init__(self) -> None:
        self._views = Views()
        self.in_vain = InVain()

    def view(self, tx: Transaction, held: PoolLock) -> PoolView:
        """The pool as it is in this transaction; to be looked at only, and only within it."""
        return self._views.fresh(tx, held).view

    def place(
        self,
        tx: Transaction,
        held: PoolLock,
        row: StoredReservation,
        avoid: frozenset[NodeId] = frozenset(),
        *,
        rehearse: bool = False,
    ) -> Placed | Unschedulable:
        """Book the request on the best nodes, from now on or from its start if that is ahead.

        Nodes in ``avoid`` are taken only if no others would do, and what is kept for an older one
        that waits not at all. Allocations are in the order of their ids, which is that of their
        nodes' ids.

        What is booked is taken into the view at once. Should the transaction be rolled back, the
        log of changes gives that away, and the view is read anew; ``rehearse`` tells beforehand.
        Raises Unavailable when the database refuses what the view says is free, again and again.
        """
        ahead_ms = row.request.start if (row.request.start or 0) > held.now_ms else None
        start_ms = ahead_ms or held.now_ms
        window = Window(start_ms, start_ms + row.request.duration_ms)
        demand = demand_in(held.pool, row)
        booked = _with_turnaround(held, window)
        question = Question(demand, booked.end_ms - start_ms, ahead_ms)
        where = Where(start_ms=start_ms, end_ms=booked.end_ms, now_ms=held.now_ms, avoid=avoid)
        for _ in range(_ATTEMPTS):
            known = self._views.fresh(tx, held)
            look = partial(self._found, tx, held, known, question, where)
            found = beside(tx, held, known.view, row, look)
            if isinstance(found, Unschedulable):
                return found
            plan = Plan(
                reservation_id=row.id,
                demand=demand,
                window=window,
                booked=booked,
                members=members_of(known.atoms, found),
            )
            made = self._try(tx, held, known, plan)
            if made is not None:
                if not rehearse:
                    _take_in(known, held, plan)
                return Placed(window, made)
        raise _changes_too_fast(held)

    def repair(
        self,
        tx: Transaction,
        held: PoolLock,
        row: StoredReservation,
        lost: Sequence[Allocation],
    ) -> Placed | Unschedulable:
        """Give a placed reservation's lost members other devices, for the same window.

        The others keep theirs, and get no second member. A lost member's node is taken again only
        if no other would do. Returns every live allocation, in the order of ids; the lost ones
        have ended. Unschedulable leaves all as it was. Raises Unavailable as ``place`` does.
        """
        assert row.during is not None
        gone = {allocation.id for allocation in lost}
        kept = [a for a in allocations.live(tx, row.id) if a.id not in gone]
        demand = demand_in(held.pool, row).of(len(lost))
        booked = _with_turnaround(held, row.during)
        where = Where(
            start_ms=booked.start_ms,
            end_ms=booked.end_ms,
            now_ms=held.now_ms,
            avoid=frozenset(allocation.node_id for allocation in lost),
            exclude=frozenset(allocation.node_id for allocation in kept),
        )
        for _ in range(_ATTEMPTS):
            outcome = self._repaired(tx, held, row, lost, demand, where)
            if isinstance(outcome, Unschedulable):
                return outcome
            if outcome is not None:
                every = sorted((*kept, *outcome), key=lambda allocation: allocation.id)
                return Placed(row.during, tuple(every))
        raise _changes_too_fast(held)

    def _repaired(
        self,
        tx: Transaction,
        held: PoolLock,
        row: StoredReservation,
        lost: Sequence[Allocation],
        demand: Demand,
        where: Where,
    ) -> tuple[Allocation, ...] | Unschedulable | None:
        """The new members; None when they were lost again, as nothing had happened."""
        known = self._views.fresh(tx, held)
        before = [known.view.nodes[allocation.node_id] for allocation in lost]
        # Out of the way until it is known what becomes of it.
        self._views.forget(held.pool.id)
        try:
            with tx.savepoint():
                _give_up(tx, held, known, lost)
                plan = self._replan(tx, known, row, demand, where)
                made = write(tx, held, plan)
        except LostRace:
            return None
        except _NoFit as none:
            for node in before:
                known.put(node)
            self._views.keep(held, known)
            return none.outcome
        left = sorted({allocation.node_id for allocation in lost})
        pools.note_changes(tx, held, left)
        _take_in(known, held, plan, left)
        self._views.keep(held, known)
        return made

    def extend(
        self, tx: Transaction, held: PoolLock, row: StoredReservation, new_end_ms: int
    ) -> Extended | AvailableUntil:
        """Let every allocation end later, devices and host resources, all or none.

        What is kept for one that waits counts as booked. The window of the row is the caller's to
        change, and so are desired states.
        """
        assert row.during is not None
        turnaround_ms = held.pool.policy.turnaround_ms
        end_ms = new_end_ms + turnaround_ms
        in_the_way_ms = self._first_in_the_way(tx, held, row, end_ms)
        if in_the_way_ms is not None:
            return AvailableUntil(max(in_the_way_ms - turnaround_ms, row.during.end_ms))
        if not bookings.extend(tx, row.id, end_ms):
            return AvailableUntil(row.during.end_ms)
        hosts.extend(tx, row.id, end_ms)
        allocations.set_until(tx, row.id, new_end_ms)
        node_ids = sorted({a.node_id for a in allocations.live(tx, row.id)})
        pools.note_changes(tx, held, node_ids)
        return Extended(Window(row.during.start_ms, new_end_ms), tuple(node_ids))

    def _first_in_the_way(
        self, tx: Transaction, held: PoolLock, row: StoredReservation, end_ms: int
    ) -> int | None:
        """The first moment before ``end_ms`` at which a reservation cannot have what it has now.

        What is kept for one that waits is booked for it meanwhile: the database says what is in
        the way of what.
        """
        kept = self._kept(tx, held, row, end_ms)
        if kept is None:
            return _in_the_way(tx, row, end_ms)
        before = (held.seq, held.token)
        try:
            with tx.savepoint():
                write(tx, held, kept)
                raise _Seen(_in_the_way(tx, row, end_ms))
        except LostRace:
            return _in_the_way(tx, row, end_ms)
        except _Seen as seen:
            return seen.moment_ms
        finally:
            held.seq, held.token = before

    def _kept(
        self, tx: Transaction, held: PoolLock, row: StoredReservation, end_ms: int
    ) -> Plan | None:
        """What is kept for one that waits, where it could be in the way of an extension."""
        if not queue.pending_in(tx, held.pool.id, 1):
            return None
        known = self._views.fresh(tx, held)
        kept = kept_of(tx, held, known.view, ANY_SEQ)
        if kept is None:
            return None
        owner, shadow = kept
        mine = {allocation.node_id for allocation in allocations.live(tx, row.id)}
        if shadow.start_ms >= end_ms or mine.isdisjoint(shadow.members):
            return None
        window = Window(shadow.start_ms, shadow.end_ms)
        return Plan(
            reservation_id=owner.id,
            demand=demand_in(held.pool, owner),
            window=window,
            booked=window,
            members=tuple(
                (node_id, atoms_of(known.atoms[node_id], atom_ids))
                for node_id, atom_ids in shadow.members.items()
            ),
        )

    def _found(
        self,
        tx: Transaction,
        held: PoolLock,
        known: KnownPool,
        question: Question,
        where: Where,
        kept: Kept | None,
    ) -> tuple[Found, ...] | Unschedulable:
        """The best nodes, or why there are none.

        Where labels are missing they are read again: a daemon that learnt something told its
        gateway, and no change tells of that.
        """
        if kept is not None:
            question = replace(question, kept=kept)
        found = self._look(known, question, held.now_ms, where)
        unlabelled = isinstance(found, Unschedulable) and found.rejected.get("labels")
        if unlabelled and known.labels_read is not held and known.relabel(tx, held):
            return self._look(known, question, held.now_ms, where)
        return found

    @staticmethod
    def _look(
        known: KnownPool, question: Question, now_ms: int, where: Where
    ) -> tuple[Found, ...] | Unschedulable:
        refused = known.refusal(question, now_ms)
        if refused is not None:
            return refused
        found = find(known.view, question.demand, where)
        if found is not None:
            return found
        outcome = explain(known.view, question.demand, where.start_ms, question.duration_ms)
        outcome = replace(outcome, kept=question.kept)
        known.refuse(question, now_ms, outcome)
        return outcome

    def _replan(
        self,
        tx: Transaction,
        known: KnownPool,
        row: StoredReservation,
        demand: Demand,
        where: Where,
    ) -> Plan:
        """Where the lost members go; raises _NoFit or LostRace."""
        found = find(known.view, demand, where)
        if found is None:
            duration_ms = where.end_ms - where.start_ms
            raise _NoFit(explain(known.view, demand, where.start_ms, duration_ms, where.exclude))
        assert row.during is not None
        plan = Plan(
            reservation_id=row.id,
            demand=demand,
            window=row.during,
            booked=Window(where.start_ms, where.end_ms),
            members=members_of(known.atoms, found),
        )
        if not still_able(tx, plan):
            raise LostRace
        return plan

    def _try(
        self, tx: Transaction, held: PoolLock, known: KnownPool, plan: Plan
    ) -> tuple[Allocation, ...] | None:
        """Book a plan; None when it was lost, and the next one will be made on a better view."""
        if not still_able(tx, plan):
            known.relabel(tx, held)
            return None
        try:
            return write(tx, held, plan)
        except LostRace:
            self._views.forget(held.pool.id)
            return None


def _in_the_way(tx: Transaction, row: StoredReservation, end_ms: int) -> int | None:
    """The first moment before ``end_ms`` at which others have booked what a reservation has."""
    moments = (bookings.taken_from(tx, row.id, end_ms), hosts.full_from(tx, row.id, end_ms))
    return min((moment for moment in moments if moment is not None), default=None)


def _with_turnaround(held: PoolLock, window: Window) -> Window:
    return Window(window.start_ms, window.end_ms + held.pool.policy.turnaround_ms)


def _give_up(tx: Transaction, held: PoolLock, known: KnownPool, lost: Sequence[Allocation]) -> None:
    """End allocations whose window is still to come, and free what they have booked."""
    for allocation in lost:
        allocations.set_state(tx, allocation.id, AllocationState.ENDED)
        bookings.drop(tx, allocation.id, allocation.reservation_id)
        hosts.drop(tx, allocation.id, allocation.reservation_id)
    for node_id in {allocation.node_id for allocation in lost}:
        facts = known.view.nodes[node_id].facts
        known.put(read_node(tx, facts, held.now_ms))


def _take_in(known: KnownPool, held: PoolLock, plan: Plan, also: Iterable[NodeId] = ()) -> None:
    for node_id, chosen in plan.members:
        atom_ids = [atom.id for atom in chosen]
        known.book(node_id, atom_ids, plan.demand.resources, plan.booked)
    known.in_step(held, {node_id for node_id, _ in plan.members}.union(also))


def _changes_too_fast(held: PoolLock) -> Unavailable:
    return Unavailable(
        f"pool {held.pool.id} changes faster than it can be read; try again",
        poolId=held.pool.id,
    )

"""Keeps a view of each pool in step with the database, under the pool's lock.

A view is brought up to date from the pool's log of changes, so that it also sees what the open
transaction, or another placer, did. After a roll-back the log no longer has the change that the
view knows last: then the nodes that it touched since one that the log still has are read again,
and where there is none, the whole pool.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bcd.model.device import DeviceClass
from bcd.model.errors import NotFound
from bcd.model.ids import NodeId, PoolId, ReservationId
from bcd.model.reservation import Resources, Window
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.node import NodeFacts, NodeView
from bcd.placer.placement.shape import Slot, shape_of
from bcd.placer.placement.unschedulable import Unschedulable
from bcd.placer.placement.view import PoolView
from bcd.store import atoms, bookings, hosts, labels, nodes, pools
from bcd.store.atoms import Atom
from bcd.store.bookings import Interval
from bcd.store.database import Transaction
from bcd.store.hosts import HostCapacity, HostInterval
from bcd.store.labels import NodeLabels
from bcd.store.pools import PoolLock

_MAX_REFUSED = 1024
# More than the changes of one transaction, or a roll-back would leave none that is on record.
_MAX_MARKS = 64


@dataclass(frozen=True, slots=True)
class Question:
    """What a search was for; a start of None is any time from now on.

    ``kept`` is what was shown to it as taken although it is not.
    """

    demand: Demand
    duration_ms: int
    start_ms: int | None
    kept: tuple[ReservationId, int] | None = None


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a search came to, and until when it cannot come to anything else."""

    outcome: Unschedulable
    holds_until_ms: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """A change that a view was in step with, and the nodes that it touched to get there."""

    seq: int
    token: str
    touched: frozenset[NodeId]

    def is_now(self, held: PoolLock) -> bool:
        return (self.seq, self.token) == (held.seq, held.token)


@dataclass(slots=True)
class KnownPool:
    """A pool's view and the atoms behind it.

    ``marks`` are the changes that it was in step with, the newest last. ``labels_read`` is the
    lock under which the labels were last compared: gateways write them without it, so that no
    change tells of them.
    """

    view: PoolView
    atoms: dict[NodeId, tuple[Atom, ...]]
    marks: list[_Mark] = field(default_factory=list)
    labels_read: PoolLock | None = None
    _refused: dict[Question, _Refused] = field(default_factory=dict)

    def put(self, node: NodeView) -> None:
        """Take in what became of a node."""
        self.view.put(node)
        self._refused.clear()

    def book(
        self, node_id: NodeId, atom_ids: Sequence[int], resources: Resources, window: Window
    ) -> None:
        """Take in one more booking on a node."""
        self.view.book(node_id, atom_ids, resources, window)
        self._refused.clear()

    def drop(self, node_id: NodeId) -> None:
        """Forget a node."""
        self.view.drop(node_id)
        self._refused.clear()

    def in_step(self, held: PoolLock, touched: Iterable[NodeId]) -> None:
        """The view is what the transaction sees now, after these nodes were taken in."""
        if not self.marks or not self.marks[-1].is_now(held):
            self.marks.append(_Mark(held.seq, held.token, frozenset(touched)))
            del self.marks[:-_MAX_MARKS]

    def refusal(self, question: Question, now_ms: int) -> Unschedulable | None:
        """What is known to be refused: requests that wait ask the same again and again."""
        known = self._refused.get(question)
        return known.outcome if known is not None and now_ms < known.holds_until_ms else None

    def refuse(self, question: Question, now_ms: int, outcome: Unschedulable) -> None:
        """Remember a refusal.

        While nothing changes, a fixed window stays refused, and from now on nothing fits sooner
        than at the nearest time.
        """
        holds_until_ms = outcome.earliest_ms or now_ms + 1
        if question.start_ms is not None:
            holds_until_ms = question.start_ms
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused[question] = _Refused(outcome, holds_until_ms)

    def relabel(self, tx: Transaction, held: PoolLock) -> bool:
        """Compare every node's labels with those on record; returns whether that was news."""
        self.labels_read = held
        found = labels.in_pool(tx, held.pool.id)
        changed = False
        none = NodeLabels()
        for node in tuple(self.view.nodes.values()):
            facts, now = node.facts, found.get(node.facts.id, none)
            if (facts.labels, facts.rack, facts.block) != (now.system, now.rack, now.block):
                self.put(node.with_facts(_labelled(facts, now)))
                changed = True
        return changed


class Views:
    """The views of every pool that was planned on; one for a placer's process."""

    def __init__(self) -> None:
        self._pools: dict[PoolId, KnownPool] = {}

    def fresh(self, tx: Transaction, held: PoolLock) -> KnownPool:
        """The pool as it is in this transaction."""
        pool_id = held.pool.id
        # Out of the way until it is whole again: a transaction that fails while it is being
        # brought up to date must not leave it half changed under its old number.
        known = self._pools.pop(pool_id, None)
        if known is None or not _caught_up(tx, known, held):
            known = _load(tx, pool_id, held.now_ms)
            known.in_step(held, ())
        self._pools[pool_id] = known
        return known

    def keep(self, held: PoolLock, known: KnownPool) -> None:
        """Have a view again that was forgotten; it must be what the transaction sees."""
        self._pools[held.pool.id] = known

    def forget(self, pool_id: PoolId) -> None:
        """Read the pool anew at the next occasion."""
        self._pools.pop(pool_id, None)


def _load(tx: Transaction, pool_id: PoolId, now_ms: int) -> KnownPool:
    by_node: dict[NodeId, list[Atom]] = {}
    for atom in atoms.in_pool(tx, pool_id):
        by_node.setdefault(atom.node_id, []).append(atom)
    live = bookings.live_in_pool(tx, pool_id, now_ms)
    amounts = hosts.live_in_pool(tx, pool_id, now_ms)
    capacities = hosts.capacity_in_pool(tx, pool_id)
    labelled = labels.in_pool(tx, pool_id)
    every: dict[NodeId, tuple[Atom, ...]] = {}
    found: list[NodeView] = []
    for node in nodes.in_pool(tx, pool_id):
        own = every[node.id] = tuple(by_node.get(node.id, ()))
        facts = _facts(node, own, capacities.get(node.id))
        facts = _labelled(facts, labelled.get(node.id, NodeLabels()))
        found.append(_node_view(facts, live.get(node.id, ()), amounts.get(node.id, ())))
    return KnownPool(PoolView(found), every)


def _caught_up(tx: Transaction, known: KnownPool, held: PoolLock) -> bool:
    """Bring a view up to date; False when nothing that it was in step with is on record."""
    doubtful: set[NodeId] = set()
    while known.marks:
        mark = known.marks[-1]
        changed: Mapping[NodeId, pools.Change] | None = {}
        if not mark.is_now(held):
            changed = pools.changes_since(tx, held.pool.id, mark.seq, mark.token)
        if changed is not None:
            again = {**changed, **dict.fromkeys(doubtful, _WHOLE)}
            _update(tx, known, again, held.now_ms)
            known.in_step(held, again)
            return True
        doubtful |= mark.touched
        known.marks.pop()
    return False


_WHOLE: pools.Change = "node"


def _update(
    tx: Transaction, known: KnownPool, changed: Mapping[NodeId, pools.Change], now_ms: int
) -> None:
    for node_id, what in changed.items():
        if what == _WHOLE or node_id not in known.view.nodes:
            facts = _read_facts(tx, known, node_id)
        else:
            facts = known.view.nodes[node_id].facts
        if facts is None:
            known.drop(node_id)
        else:
            known.put(read_node(tx, facts, now_ms))


def _read_facts(tx: Transaction, known: KnownPool, node_id: NodeId) -> NodeFacts | None:
    """A node as the transaction sees it; None when it was removed, or its coming was undone."""
    try:
        node = nodes.get(tx, node_id)
    except NotFound:
        return None
    if node.removed:
        return None
    own = tuple(atoms.on_node(tx, node_id))
    known.atoms[node_id] = own
    found = labels.on_nodes(tx, [node_id])
    facts = _facts(node, own, hosts.capacity_of(tx, node_id))
    return _labelled(facts, found.get(node_id, NodeLabels()))


def read_node(tx: Transaction, facts: NodeFacts, now_ms: int) -> NodeView:
    """A node with what is booked on it now and later, as the transaction sees it."""
    live = bookings.live_on(tx, [facts.id], now_ms)[facts.id]
    return _node_view(facts, live, hosts.live_on(tx, [facts.id], now_ms)[facts.id])


def _node_view(
    facts: NodeFacts, live: Sequence[Interval], amounts: Sequence[HostInterval]
) -> NodeView:
    return NodeView(
        facts,
        ((i.atom_id, i.start_ms, i.end_ms) for i in live),
        ((a.resources, a.start_ms, a.end_ms) for a in amounts),
    )


def _facts(node: nodes.Node, own: Sequence[Atom], capacity: HostCapacity | None) -> NodeFacts:
    return NodeFacts(
        id=node.id,
        ready=node.ready,
        reachable=node.reachable,
        cordoned=node.cordoned,
        trusted=node.trusted,
        labels=frozenset(),
        shape=shape_of(_slots(own)),
        bookable=sum(1 << place for place, atom in enumerate(own) if atom.bookable),
        atom_ids=tuple(atom.id for atom in own),
        capacity=None if capacity is None else _resources(capacity),
    )


def _labelled(facts: NodeFacts, found: NodeLabels) -> NodeFacts:
    return replace(facts, labels=found.system, rack=found.rack, block=found.block)


def _resources(capacity: HostCapacity) -> Resources:
    return Resources(
        vcpu=capacity.vcpu,
        memory_gib=capacity.memory_gib,
        hugepages_1gi=capacity.hugepages_1gi,
    )


def _slots(own: Sequence[Atom]) -> tuple[Slot, ...]:
    # By first appearance, so that equal hosts get equal shapes.
    gpus = {gpu_id: i for i, gpu_id in enumerate(dict.fromkeys(a.gpu_id for a in own))}
    return tuple(
        Slot(
            device_class=atom.device_class,
            model=atom.model,
            profile=atom.profile,
            numa=atom.numa_node,
            gpu=gpus[atom.gpu_id],
            links=0
            if atom.device_class is DeviceClass.MIG  # no instance is linked to anything
            else _mask(_linked(atom, other) for other in own),
        )
        for atom in own
    )


def _mask(flags: Iterable[bool]) -> int:
    return sum(1 << position for position, flag in enumerate(flags) if flag)


def _linked(one: Atom, other: Atom) -> bool:
    """Whether two whole GPUs see each other by NVLink, directly or through one switch fabric.

    Slots of one GPU lie as well to each other as anything can.
    """
    if {one.device_class, other.device_class} == {DeviceClass.SLOT}:
        return one is not other and one.gpu_id == other.gpu_id
    if one is other or {one.device_class, other.device_class} != {DeviceClass.GPU}:
        return False
    if one.nvlink_domain and one.nvlink_domain == other.nvlink_domain:
        return True
    return other.uuid in one.nvlink_peers and one.uuid in other.nvlink_peers

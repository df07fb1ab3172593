"""What a placer is killed in: operations that change things, as somebody outside brings them on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bcd.model.pool import PlacerKind, PoolPolicy, SpotPolicy
from tests.journeys import deeds
from tests.journeys.records import is_idle
from tests.journeys.victim import Victim

_DEFAULT = PoolPolicy()


def _nothing(_victim: Victim, _key: str) -> None:
    pass


def _yes(_victim: Victim, _key: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is killed: the functions whose statements count, and how it is done and repeated.

    It is about the reservations with the key it is given, or that and a word behind it.
    ``prepare`` makes what is needed, undisturbed. ``act`` may be answered, or break off; whoever
    got no answer does it again. ``ends`` are all events in the end, by the word, and ``grants``
    where that matters the allocations: the state, and which node it lies on, counted as they came.
    ``done`` says more about that end, and ``intact`` is what must be so right after a kill too.
    """

    works: tuple[str, ...]
    prepare: Callable[[Victim, str], None]
    act: Callable[[Victim, str], None]
    ends: Mapping[str, str]
    grants: Sequence[tuple[str, int]] | None = None
    done: Callable[[Victim, str], bool] = _yes
    intact: Callable[[Victim, str], None] = _nothing
    node_count: int = 1
    policy: PoolPolicy = _DEFAULT
    stride: int = 3


def is_done(victim: Victim, operation: Operation, key: str) -> bool:
    """Whether the operation has come to its end, and nothing that follows from it is due."""
    ends = operation.ends.items()
    come = all(deeds.has_come(victim, deeds.key_of(key, word), wanted) for word, wanted in ends)
    return come and operation.done(victim, key) and is_idle(victim.system.url)


def _together(names: Mapping[str, str]) -> Callable[[Victim, str], None]:
    """These events come in one transaction, each of the reservation with its word."""

    def check(victim: Victim, key: str) -> None:
        there = {
            word: name in deeds.events_of(victim, deeds.key_of(key, word))
            for word, name in names.items()
        }
        assert len(set(there.values())) == 1, there

    return check


# Of two members the lost one moves, to the third node.
_REPAIRED = {"": "placed repaired"}
_MOVED = (("ended", 0), ("booked", 1), ("booked", 2))

OPERATIONS = {
    "create": Operation(
        works=("open_draft", "Admission._settle"),
        prepare=_nothing,
        act=deeds.create,
        ends={"": "placed binding"},
    ),
    "start": Operation(
        works=("Reconciler.reconcile",),
        prepare=_nothing,
        act=deeds.create,
        ends={"": "placed binding"},
    ),
    "bind": Operation(
        works=("judge_node", "Reconciler.reconcile"),
        prepare=deeds.reported,
        act=deeds.only_start,
        ends={"": "placed binding active"},
    ),
    "seek": Operation(
        works=("retry_pending", "Reconciler.reconcile"),
        prepare=deeds.waiting,
        act=deeds.make_room,
        ends={"": "pending placed binding", "holds": "placed binding released"},
    ),
    "extend": Operation(
        works=("_stage", "Extensions._apply"),
        prepare=deeds.started,
        act=deeds.extend,
        ends={"": "placed binding extended"},
    ),
    "release": Operation(
        works=("ReservationCalls._end",),
        prepare=deeds.started,
        act=deeds.release,
        ends={"": "placed binding released"},
    ),
    "repair-node": Operation(
        works=("judge", "Reconciler.reconcile"),
        prepare=deeds.node_lost,
        act=deeds.only_start,
        ends=_REPAIRED,
        grants=_MOVED,
        node_count=3,
        stride=12,
    ),
    "repair-device": Operation(
        works=("apply_inventory", "Reconciler.reconcile"),
        prepare=deeds.device_lost,
        act=deeds.only_start,
        ends=_REPAIRED,
        grants=_MOVED,
        node_count=3,
        stride=12,
    ),
    "batch": Operation(
        works=("retry_pending",),
        prepare=deeds.three_waiting,
        act=deeds.make_room,
        ends={
            "holds": "queued placed binding released",
            **dict.fromkeys(deeds.THREE, "queued pending placed binding"),
        },
        intact=_together(dict.fromkeys(deeds.THREE, "placed")),
        policy=PoolPolicy(placer=PlacerKind.QUEUED),
        stride=12,
    ),
    "join": Operation(
        works=("EnrolmentKeeper._answer_one",),
        prepare=deeds.asks_to_join,
        act=deeds.only_start,
        ends={"": "pending"},
        done=deeds.answered,
        intact=deeds.joined_or_not,
        stride=5,
    ),
    "arrive": Operation(
        works=("apply_inventory", "retry_pending", "Reconciler.reconcile"),
        prepare=deeds.comes,
        act=deeds.only_start,
        ends={"": "pending placed binding"},
        stride=20,
    ),
    "preempt": Operation(
        works=("Admission._settle", "Reconciler.reconcile"),
        prepare=deeds.spot_has_it,
        act=deeds.create,
        ends={"": "placed binding", "holds": "placed binding preempting preempted released"},
        intact=_together({"": "placed", "holds": "preempting"}),
        policy=PoolPolicy(spot=SpotPolicy(grace_seconds=1)),
        stride=25,
    ),
    "replace": Operation(
        works=("judge_node", "Reconciler.reconcile"),
        prepare=deeds.failed,
        act=deeds.only_start,
        ends={"": "placed binding placed binding"},
        grants=(("ended", 0), ("assigned", 1)),
        node_count=2,
        stride=25,
    ),
    "reassign": Operation(
        works=("_hand_over",),
        prepare=deeds.waiting,
        act=deeds.hand_over,
        ends={"": "pending reassigned", "holds": "placed binding reassigned"},
        intact=_together({"": "reassigned", "holds": "reassigned"}),
        stride=7,
    ),
}

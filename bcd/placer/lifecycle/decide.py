"""What the facts about a reservation call for. Pure.

The answer is one of a closed set; the reconciler carries it out and then asks again, until
nothing follows any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.ids import AllocationId
from bcd.model.reservation import Condition, ConditionType, State, Window
from bcd.placer.lifecycle.transitions import MAX_ATTEMPTS, RECHECK_MS, REPAIR_AHEAD_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFacts:
    """One live allocation: what its reports came to, and how its node and devices do.

    ``failure`` is the reason of a failed bind, ``unable`` why its node or devices could not serve
    it at its start; both are empty for none. ``passing`` says that this may mend by itself.
    """

    id: AllocationId
    node_id: str
    bound: bool
    lost: bool
    failure: str
    reachable: bool
    unhealthy: tuple[str, ...]
    unable: str = ""
    passing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a decision looks at; ``attempts`` counts earlier failed placements."""

    state: State
    during: Window
    attempts: int
    bind_deadline_ms: int | None
    lease_until_ms: int | None = None
    conditions: tuple[Condition, ...]
    allocations: tuple[AllocationFacts, ...]

    @property
    def preempting(self) -> bool:
        """Whether its devices were given to somebody else, after a grace."""
        return is_preempting(self.conditions)


@dataclass(frozen=True, slots=True)
class Nothing:
    """Wait for the next moment."""


@dataclass(frozen=True, slots=True)
class Start:
    """Hand the assignments to the nodes."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Place these members anew for the same window; ``problem`` says what is wrong with them."""

    lost: tuple[AllocationId, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class Activate:
    """Every allocation is bound."""


@dataclass(frozen=True, slots=True)
class Replace:
    """This placement did not bind: free it and place again."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The last placement did not bind either."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The window is over."""


@dataclass(frozen=True, slots=True)
class Lapse:
    """Nobody renewed the lease in time."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """The grace is over, or there is nothing left to keep until then."""


@dataclass(frozen=True, slots=True)
class SetConditions:
    """Only the conditions change."""

    conditions: tuple[Condition, ...]


Decision = (
    Nothing | Start | Repair | Activate | Replace | GiveUp | End | Lapse | Preempt | SetConditions
)


def decide(facts: Facts, now_ms: int) -> Decision:
    """The next thing to do about a placed, binding or active reservation."""
    lease_ms = facts.lease_until_ms
    if lease_ms is not None and lease_ms <= now_ms and lease_ms < facts.during.end_ms:
        return Lapse()
    if now_ms >= facts.during.end_ms:
        return Preempt() if facts.preempting else End()
    match facts.state:
        case State.PLACED:
            return Start() if now_ms >= facts.during.start_ms else _ahead(facts, now_ms)
        case State.BINDING:
            return _binding(facts, now_ms)
        case State.ACTIVE:
            conditions = active_conditions(facts, now_ms)
            if conditions != facts.conditions:
                return SetConditions(conditions)
    return Nothing()


def _ahead(facts: Facts, now_ms: int) -> Decision:
    """Before the start: what could not serve then is placed anew, and nothing else moves.

    What may mend by itself gets a quarter of an hour: a host that is told of without devices for
    a moment moves nobody. In the last quarter before the start there is no time for that.
    """
    lost = [allocation for allocation in facts.allocations if allocation.unable]
    if lost:
        problem = "; ".join(allocation.unable for allocation in lost)
        hurry = facts.during.start_ms - now_ms <= REPAIR_AHEAD_MS
        if not hurry and all(allocation.passing for allocation in lost):
            noticed = _noticed(facts.conditions, problem, now_ms)
            if now_ms - noticed.last_transition_time < RECHECK_MS:
                others = tuple(c for c in facts.conditions if c.type != noticed.type)
                conditions = (*others, noticed)
                return Nothing() if conditions == facts.conditions else SetConditions(conditions)
        return Repair(tuple(a.id for a in lost), problem)
    mended = tuple(c for c in facts.conditions if c.type != ConditionType.DEGRADED)
    return Nothing() if mended == facts.conditions else SetConditions(mended)


def _binding(facts: Facts, now_ms: int) -> Decision:
    failure = next((a.failure for a in facts.allocations if a.failure), "")
    if not failure and all(a.bound for a in facts.allocations):
        return Activate()
    overdue = facts.bind_deadline_ms is not None and now_ms >= facts.bind_deadline_ms
    if not failure and not overdue:
        return Nothing()
    if facts.preempting:
        return Preempt()
    reason = failure or "no report before the bind deadline"
    return GiveUp(reason) if facts.attempts + 1 >= MAX_ATTEMPTS else Replace(reason)


def active_conditions(facts: Facts, now_ms: int) -> tuple[Condition, ...]:
    """The conditions of an active reservation; one that stays keeps its transition time."""
    wanted: list[tuple[ConditionType, str, str]] = []
    lost = [a.node_id for a in facts.allocations if a.lost]
    if lost:
        wanted.append(
            (
                ConditionType.DEGRADED,
                "BindingLost",
                f"{_names(lost)} no longer vouches for the devices; the booking stays, and the"
                " condition clears once the node reports them bound again",
            )
        )
    away = [a.node_id for a in facts.allocations if not a.reachable]
    if away:
        wanted.append(
            (
                ConditionType.NODE_UNREACHABLE,
                "NoHeartbeat",
                f"{_names(away)} does not answer; the booking and what runs there stay",
            )
        )
    sick = [device for a in facts.allocations for device in a.unhealthy]
    if sick:
        wanted.append(
            (
                ConditionType.DEVICE_UNHEALTHY,
                "DeviceUnhealthy",
                f"{_names(sick)}; release the reservation and create another to move",
            )
        )
    kept = tuple(c for c in facts.conditions if c.type == ConditionType.PREEMPTING)
    return kept + tuple(kept_or_new(facts.conditions, *entry, now_ms) for entry in wanted)


def is_preempting(conditions: Sequence[Condition]) -> bool:
    """Whether one of them says so."""
    return any(condition.type == ConditionType.PREEMPTING for condition in conditions)


def _noticed(before: Sequence[Condition], problem: str, now_ms: int) -> Condition:
    """The condition of a placed reservation whose devices could not serve now, or what it has."""
    for condition in before:
        if condition.type == ConditionType.DEGRADED:
            return condition
    message = f"{problem}; unless that mends, it moves to other devices before its start"
    return kept_or_new(before, ConditionType.DEGRADED, "CannotServeNow", message, now_ms)


def still_damaged(before: Sequence[Condition], problem: str, now_ms: int) -> Condition:
    """The condition of a placed reservation that could not be repaired."""
    message = (
        f"{problem}, and nothing else fits the window; tried again until the start, free capacity"
        " or release the reservation"
    )
    return kept_or_new(before, ConditionType.DEGRADED, "RepairFoundNothing", message, now_ms)


def _names(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))


def kept_or_new(
    before: Sequence[Condition], kind: ConditionType, reason: str, message: str, now_ms: int
) -> Condition:
    """A condition that is true; one that stays keeps its transition time."""
    for condition in before:
        if (condition.type, condition.reason) == (kind, reason):
            now_ms = condition.last_transition_time
    return Condition(
        type=kind.value,
        status="True",
        reason=reason,
        message=message,
        last_transition_time=now_ms,
    )

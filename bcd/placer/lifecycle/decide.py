"""What the facts about a reservation call for. Pure.

The answer is one of a closed set; the reconciler carries it out and then asks again, until
nothing follows any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bcd.model.reservation import Condition, ConditionType, State, Window
from bcd.placer.lifecycle.transitions import MAX_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFacts:
    """One live allocation: what its reports came to, and how its node and devices do.

    ``failure`` is the reason of a failed bind, empty for none.
    """

    node_id: str
    bound: bool
    lost: bool
    failure: str
    reachable: bool
    unhealthy: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a decision looks at; ``attempts`` counts earlier failed placements."""

    state: State
    during: Window
    attempts: int
    bind_deadline_ms: int | None
    conditions: tuple[Condition, ...]
    allocations: tuple[AllocationFacts, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """Wait for the next moment."""


@dataclass(frozen=True, slots=True)
class Start:
    """Hand the assignments to the nodes."""


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
class SetConditions:
    """Only the conditions change."""

    conditions: tuple[Condition, ...]


Decision = Nothing | Start | Activate | Replace | GiveUp | End | SetConditions


def decide(facts: Facts, now_ms: int) -> Decision:
    """The next thing to do about a placed, binding or active reservation."""
    if now_ms >= facts.during.end_ms:
        return End()
    match facts.state:
        case State.PLACED:
            return Start() if now_ms >= facts.during.start_ms else Nothing()
        case State.BINDING:
            return _binding(facts, now_ms)
        case State.ACTIVE:
            conditions = active_conditions(facts, now_ms)
            if conditions != facts.conditions:
                return SetConditions(conditions)
    return Nothing()


def _binding(facts: Facts, now_ms: int) -> Decision:
    failure = next((a.failure for a in facts.allocations if a.failure), "")
    if not failure and all(a.bound for a in facts.allocations):
        return Activate()
    overdue = facts.bind_deadline_ms is not None and now_ms >= facts.bind_deadline_ms
    if not failure and not overdue:
        return Nothing()
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
    return tuple(_kept_or_new(facts.conditions, *entry, now_ms) for entry in wanted)


def _names(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))


def _kept_or_new(
    before: Sequence[Condition], kind: ConditionType, reason: str, message: str, now_ms: int
) -> Condition:
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

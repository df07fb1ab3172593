"""What the facts about a reservation call for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.ids import AllocationId
from bcd.model.reservation import Condition, State, Window
from bcd.placer.lifecycle.decide import (
    Activate,
    AllocationFacts,
    Decision,
    End,
    Facts,
    GiveUp,
    Nothing,
    Replace,
    SetConditions,
    Start,
    active_conditions,
    decide,
)

ALLOCATION_ID = AllocationId("alloc_a")
ALLOCATION = AllocationFacts(
    id=ALLOCATION_ID,
    node_id="node_a",
    bound=False,
    lost=False,
    failure="",
    reachable=True,
    unhealthy=(),
)
BOUND = replace(ALLOCATION, bound=True)
DEADLINE = 150


def facts(state: State, *allocations: AllocationFacts, **changes: object) -> Facts:
    plain = Facts(
        state=state,
        during=Window(100, 200),
        attempts=0,
        bind_deadline_ms=DEADLINE if state is State.BINDING else None,
        conditions=(),
        allocations=allocations or (ALLOCATION,),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("now", "expected"), [(99, Nothing()), (100, Start()), (199, Start())])
def test_a_placed_one_starts_with_its_window(now: int, expected: Decision) -> None:
    assert decide(facts(State.PLACED), now) == expected


def test_no_failure_or_report_moves_a_placed_one_before_its_start() -> None:
    failed = replace(ALLOCATION, failure="x")
    assert decide(facts(State.PLACED, failed), 99) == Nothing()


@pytest.mark.parametrize("state", [State.PLACED, State.BINDING, State.ACTIVE])
def test_the_end_of_the_window_ends_everything(state: State) -> None:
    for allocation in (ALLOCATION, BOUND, replace(ALLOCATION, failure="x")):
        assert decide(facts(state, allocation), 200) == End()
        assert decide(facts(state, allocation), 199) != End()


def test_a_binding_one_waits_for_every_allocation() -> None:
    assert decide(facts(State.BINDING, BOUND, ALLOCATION), 101) == Nothing()
    assert decide(facts(State.BINDING, BOUND, BOUND), 101) == Activate()


def test_a_bound_one_counts_even_at_the_deadline() -> None:
    assert decide(facts(State.BINDING, BOUND), DEADLINE) == Activate()


@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_no_report_by_the_deadline_places_again_twice_and_then_gives_up(attempts: int) -> None:
    late = facts(State.BINDING, attempts=attempts)
    reason = "no report before the bind deadline"
    assert decide(late, DEADLINE - 1) == Nothing()
    assert decide(late, DEADLINE) == (Replace(reason) if attempts < 2 else GiveUp(reason))


@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_a_failed_bind_does_not_wait_for_the_deadline(attempts: int) -> None:
    failed = facts(State.BINDING, BOUND, replace(ALLOCATION, failure="x"), attempts=attempts)
    assert decide(failed, 101) == (Replace("x") if attempts < 2 else GiveUp("x"))


# Active: conditions and nothing else

LOST = replace(ALLOCATION, lost=True)
AWAY = replace(BOUND, reachable=False)
SICK = replace(BOUND, unhealthy=("GPU-1 is unhealthy (Xid 79)",))


def kinds(found: tuple[Condition, ...]) -> list[tuple[str, str]]:
    return [(condition.type, condition.reason) for condition in found]


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        (LOST, ("Degraded", "BindingLost")),
        (AWAY, ("NodeUnreachable", "NoHeartbeat")),
        (SICK, ("DeviceUnhealthy", "DeviceUnhealthy")),
    ],
)
def test_trouble_raises_a_condition_and_its_end_clears_it(
    allocation: AllocationFacts, expected: tuple[str, str]
) -> None:
    decision = decide(facts(State.ACTIVE, allocation), 120)
    assert isinstance(decision, SetConditions)
    assert kinds(decision.conditions) == [expected]
    (condition,) = decision.conditions
    assert condition.status == "True"
    assert condition.message
    assert condition.last_transition_time == 120
    raised = facts(State.ACTIVE, allocation, conditions=decision.conditions)
    assert decide(raised, 130) == Nothing()
    healed = facts(State.ACTIVE, BOUND, conditions=decision.conditions)
    assert decide(healed, 140) == SetConditions(())


def test_a_condition_that_stays_keeps_its_time_whatever_else_comes_and_goes() -> None:
    first = active_conditions(facts(State.ACTIVE, AWAY), 110)
    both = active_conditions(
        facts(State.ACTIVE, replace(AWAY, bound=False, lost=True), conditions=first), 120
    )
    assert kinds(both) == [("Degraded", "BindingLost"), ("NodeUnreachable", "NoHeartbeat")]
    assert [c.last_transition_time for c in both] == [120, 110]


def test_a_condition_that_comes_back_has_a_new_time() -> None:
    first = active_conditions(facts(State.ACTIVE, AWAY), 110)
    gone = active_conditions(facts(State.ACTIVE, BOUND, conditions=first), 115)
    again = active_conditions(facts(State.ACTIVE, AWAY, conditions=gone), 120)
    assert (gone, again[0].last_transition_time) == ((), 120)


def test_a_message_names_every_node_and_device_once_and_in_order() -> None:
    two = (replace(AWAY, node_id="node_b"), AWAY)
    (condition,) = active_conditions(facts(State.ACTIVE, *two), 110)
    assert condition.message.startswith("node_a, node_b ")


ALLOCATIONS = st.builds(
    AllocationFacts,
    id=st.just(ALLOCATION_ID),
    node_id=st.sampled_from(["node_a", "node_b"]),
    bound=st.booleans(),
    lost=st.booleans(),
    failure=st.sampled_from(["", "x"]),
    reachable=st.booleans(),
    unhealthy=st.sampled_from([(), ("GPU-1 is lost",)]),
)


@given(st.lists(ALLOCATIONS, min_size=1, max_size=3), st.integers(100, 199), st.integers(0, 5))
def test_nothing_short_of_its_end_moves_an_active_reservation(
    allocations: list[AllocationFacts], now: int, attempts: int
) -> None:
    active = facts(State.ACTIVE, *allocations, attempts=attempts)
    decision = decide(active, now)
    assert isinstance(decision, Nothing | SetConditions)
    if isinstance(decision, SetConditions):
        assert decide(replace(active, conditions=decision.conditions), now) == Nothing()


@given(st.sampled_from(State), st.lists(ALLOCATIONS, min_size=1, max_size=2), st.integers(0, 300))
def test_terminal_and_waiting_states_are_left_alone(
    state: State, allocations: list[AllocationFacts], now: int
) -> None:
    if state in (State.PLACED, State.BINDING, State.ACTIVE) or now >= 200:
        return
    assert decide(facts(state, *allocations), now) == Nothing()

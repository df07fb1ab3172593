"""The table of moves: closed, with no way out of an end, and each with its moment."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.errors import InvalidState
from bcd.model.reservation import TERMINAL, OperationState, State, Window
from bcd.placer.lifecycle.transitions import (
    BIND_TIMEOUT_MS,
    MOVES,
    RECHECK_MS,
    REPAIR_AHEAD_MS,
    REPAIR_RETRY_MS,
    Moments,
    Trigger,
    move_of,
    next_wake_ms,
)

EVENTS = {
    *("placed", "pending", "queued", "binding", "active", "extended", "released", "cancelled"),
    *("failed", "awaiting-confirmation", "expired", "repaired", "preempting", "preempted"),
    *("reassigned", "binding-rejected"),
}
MINUTE_MS = 60_000


def test_every_trigger_has_a_move_and_every_other_pair_is_refused() -> None:
    assert {trigger for _, trigger in MOVES} == set(Trigger)
    for state, trigger in itertools.product(State, Trigger):
        if (state, trigger) not in MOVES:
            with pytest.raises(InvalidState) as refused:
                move_of(state, trigger)
            assert refused.value.details["state"] == state


def test_terminal_states_have_no_way_out() -> None:
    assert {state for state, _ in MOVES}.isdisjoint(TERMINAL)


def test_every_state_that_is_reached_leads_to_an_end() -> None:
    reached = {State.DRAFT} | {move.to for move in MOVES.values()}
    leads_to = {state: {m.to for (s, _), m in MOVES.items() if s is state} for state in reached}
    ends = set(TERMINAL)
    while more := {s for s in reached - ends if leads_to[s] & ends}:
        ends |= more
    assert reached <= ends


def test_nothing_leads_back_to_a_draft() -> None:
    assert State.DRAFT not in {move.to for move in MOVES.values()}


def test_events_are_those_of_the_catalogue() -> None:
    assert {move.event for move in MOVES.values()} - {""} <= EVENTS


LIVE = (State.PLACED, State.BINDING, State.ACTIVE)


def test_only_a_refusal_a_repeated_no_fit_and_a_renewal_are_silent() -> None:
    silent = {pair for pair, move in MOVES.items() if not move.event}
    renewals = {(state, Trigger.RENEWED) for state in LIVE}
    refusals = {
        (State.DRAFT, Trigger.DENIED),
        (State.AWAITING_CONFIRMATION, Trigger.DENIED),
        (State.PENDING, Trigger.NO_FIT),
    }
    assert silent == refusals | renewals


def test_what_is_placed_is_extended_renewed_lapses_and_yields_and_nothing_else() -> None:
    """Spec 14.1, 14.2, 7.7: an extend needs bookings, a lease runs from placement on."""
    for trigger in (
        Trigger.EXTENDED,
        Trigger.RENEWED,
        Trigger.LAPSED,
        Trigger.PREEMPTED,
    ):
        assert {state for state, t in MOVES if t is trigger} == set(LIVE)
    # Who has not started yields at once and needs no grace.
    assert {state for state, t in MOVES if t is Trigger.PREEMPTING} == STARTED


def test_what_changes_no_state_keeps_its_operation() -> None:
    for (state, _), move in MOVES.items():
        if move.operation is None:
            assert move.to is state


def test_every_release_has_a_reason() -> None:
    for move in MOVES.values():
        assert (move.event == "released") == bool(move.reason)
        assert move.reason in ("", "release", "expired", "lease-lapsed", "preempted")


def test_the_operation_is_over_once_something_was_decided() -> None:
    for move in MOVES.values():
        if move.operation is None:
            continue
        if move.event in ("awaiting-confirmation", "queued"):
            assert move.operation is OperationState.RUNNING
            continue
        failed = move.to in (State.DENIED, State.FAILED, State.EXPIRED)
        assert move.operation is (OperationState.FAILED if failed else OperationState.SUCCEEDED)


STARTED = frozenset({State.BINDING, State.ACTIVE})


def test_what_has_started_cannot_be_cancelled_but_released() -> None:
    for state in State:
        can_cancel = (state, Trigger.CANCELLED) in MOVES
        assert can_cancel == (state in (State.PENDING, State.PLACED))
        can_release = (state, Trigger.RELEASED) in MOVES
        waits = {State.PENDING, State.PLACED, State.AWAITING_CONFIRMATION}
        assert can_release == (state in STARTED | waits)


def test_only_a_bind_fails_and_only_an_unbound_one_is_placed_again() -> None:
    assert {s for s, t in MOVES if t is Trigger.GAVE_UP} == {State.BINDING}
    assert {s for s, t in MOVES if t is Trigger.PLACED} == {
        State.DRAFT,
        State.AWAITING_CONFIRMATION,
        State.PENDING,
        State.BINDING,
    }


DURING = Window(100 * MINUTE_MS, 200 * MINUTE_MS)


@pytest.mark.parametrize(
    ("state", "deadline", "now", "wake"),
    [
        (State.PLACED, None, 50, 85),
        (State.PLACED, None, 85, 100),
        (State.PLACED, None, 99, 100),
        (State.PLACED, None, 100, 100),
        (State.PLACED, None, 150, 150),
        (State.PLACED, None, 250, 200),
        (State.BINDING, 105, 100, 105),
        (State.BINDING, 205, 198, 200),
        (State.BINDING, None, 100, 200),
        (State.ACTIVE, None, 100, 115),
        (State.ACTIVE, None, 190, 200),
    ],
)
def test_the_next_moment_of_each_state(
    state: State, deadline: int | None, now: int, wake: int
) -> None:
    deadline_ms = None if deadline is None else deadline * MINUTE_MS
    moments = Moments(during=DURING, bind_deadline_ms=deadline_ms)
    assert next_wake_ms(state, moments, now * MINUTE_MS) == wake * MINUTE_MS


@pytest.mark.parametrize("state", LIVE)
def test_a_lease_that_runs_out_first_is_the_next_moment(state: State) -> None:
    for lease, wake in ((DURING.start_ms + 1, DURING.start_ms + 1), (DURING.end_ms + 1, None)):
        moments = Moments(during=DURING, lease_until_ms=lease)
        without = next_wake_ms(state, Moments(during=DURING), DURING.start_ms)
        expected = min(wake or 1 << 60, without or 1 << 60)
        assert next_wake_ms(state, moments, DURING.start_ms) == expected


def test_what_is_damaged_is_tried_again_until_its_start_and_more_often_near_it() -> None:
    def wake(now_ms: int) -> int | None:
        return next_wake_ms(State.PLACED, Moments(during=DURING, damaged=True), now_ms)

    last_repair_ms = DURING.start_ms - REPAIR_AHEAD_MS
    assert wake(0) == RECHECK_MS
    assert wake(last_repair_ms - 1) == last_repair_ms
    assert wake(last_repair_ms) == last_repair_ms + REPAIR_RETRY_MS
    assert wake(DURING.start_ms - 1) == DURING.start_ms
    assert wake(DURING.start_ms) == DURING.start_ms


def test_what_awaits_a_confirmation_is_looked_at_at_its_deadline() -> None:
    assert (
        next_wake_ms(State.AWAITING_CONFIRMATION, Moments(during=None, bind_deadline_ms=7), 0) == 7
    )


def test_what_waits_or_has_ended_has_no_moment_of_its_own() -> None:
    for state in (State.DRAFT, State.PENDING, *TERMINAL):
        assert next_wake_ms(state, Moments(during=DURING), 0) is None
    assert next_wake_ms(State.PLACED, Moments(during=None), 0) is None


@given(
    st.sampled_from([State.PLACED, State.BINDING, State.ACTIVE]),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
    st.none() | st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
    st.booleans(),
    st.integers(0, 10**9),
)
def test_what_lives_is_looked_at_by_its_end_at_the_latest(
    state: State,
    start: int,
    length: int,
    deadline: int | None,
    lease: int | None,
    damaged: bool,
    now: int,
) -> None:
    moments = Moments(
        during=Window(start, start + length),
        bind_deadline_ms=deadline,
        lease_until_ms=lease,
        damaged=damaged,
    )
    wake = next_wake_ms(state, moments, now)
    assert wake is not None
    assert wake <= start + length
    assert lease is None or wake <= lease
    due = [m for m in (start, start + length, lease, deadline) if m is not None]
    assert wake > now or any(m <= now for m in due)


def test_the_deadlines_are_those_of_the_contract() -> None:
    assert (BIND_TIMEOUT_MS, RECHECK_MS) == (5 * MINUTE_MS, 15 * MINUTE_MS)

"""Histories written by hand: together they reach every move of the table, and no other."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from bcd.model.pool import PlacerKind, PoolPolicy
from bcd.model.reservation import State
from bcd.placer.lifecycle.transitions import MOVES, Move, Trigger
from tests.model_trace.claims import MINUTE_MS, Wish
from tests.model_trace.fits import Ask
from tests.model_trace.history import History
from tests.model_trace.machine import Trace
from tests.model_trace.moves import Step
from tests.model_trace.reference import Reference
from tests.model_trace.service import Service
from tests.model_trace.shapes import AGENT, QUOTAS, switched
from tests.placer.world import ALICE

Tour = Callable[[History], Awaitable[None]]
THREE = Wish(asks=(Ask("gpu", 3),), duration_ms=60 * MINUTE_MS)
LIVE_STATES = ("placed", "binding", "active")
# A move that only one of the callers' words makes.
CAUSES = {
    Trigger.RELEASED: "release",
    Trigger.CANCELLED: "cancel",
    Trigger.DENIED: "deny",
    Trigger.RENEWED: "renew",
}


def state_of(history: History, key: str) -> str:
    claim = history.reference.find(ALICE.identity, key)
    assert claim is not None
    return claim.state


async def moves_up(history: History) -> None:
    """What waits is placed when what it waits for is released."""
    await history.create(ALICE, "first", THREE)
    await history.create(ALICE, "second", THREE)
    assert state_of(history, "second") == "pending"
    await history.end("release", 0)
    assert state_of(history, "second") == "binding"
    await history.bind()
    assert state_of(history, "second") == "active"
    await history.wait(61 * MINUTE_MS)
    assert state_of(history, "second") == "released"


async def ends_at_a_word(history: History) -> None:
    """What is handed over or bound is released."""
    for state in ("binding", "active"):
        await reach(history, state, state, THREE)
        await history.end("release", len(history.reference.claims) - 1)
        assert state_of(history, state) == "released"


async def fails_three_times(history: History) -> None:
    """The third placement that does not bind is the last."""
    await history.create(ALICE, "k", THREE)
    for _ in range(2):
        await history.report(len(history.reference.grants) - 1, "failed")
        assert state_of(history, "k") == "binding"
    await history.wait(6 * MINUTE_MS)
    assert state_of(history, "k") == "failed"


async def nowhere_else(history: History) -> None:
    """What did not bind waits where nothing else is."""
    await history.create(ALICE, "k", THREE)
    await history.power(0, on=False)
    await history.wait(100_000)
    await history.report(0, "failed")
    assert state_of(history, "k") == "pending"
    await history.power(0, on=True)
    assert state_of(history, "k") == "binding"
    await history.end("release", 0)


async def before_the_workers_come(history: History) -> None:
    """What is placed and not started yet is cancelled, released, or over."""
    for name, state in (("cancel", "cancelled"), ("release", "released")):
        await history.create(ALICE, name, THREE, idle=True)
        await history.end(name, len(history.reference.claims) - 1)
        assert state_of(history, name) == state
    await history.create(ALICE, "slept", THREE, idle=True)
    await history.wait(61 * MINUTE_MS)
    assert state_of(history, "slept") == "released"


async def waits_in_vain(history: History) -> None:
    """What waits is withdrawn by either word; a refused one stays refused."""
    await history.create(ALICE, "first", THREE)
    for name in ("cancel", "release"):
        await history.create(ALICE, name, THREE)
        await history.end(name, len(history.reference.claims) - 1)
        assert state_of(history, name) == "cancelled"
    await history.create(ALICE, "refused", THREE, word="deny")
    await history.create(ALICE, "refused", THREE)
    await history.wait(61 * MINUTE_MS)
    assert state_of(history, "first") == "released"


SPOT = replace(THREE, spot=True)
LEASED = replace(THREE, lease_s=300)
AHEAD_MS = 4 * MINUTE_MS


async def reach(history: History, key: str, state: str, wish: Wish) -> None:
    """A reservation in that state: still ahead, handed over, or bound."""
    start = history.reference.now + AHEAD_MS if state == "placed" else 0
    await history.create(ALICE, key, replace(wish, start=start))
    if state == "active":
        await history.bind()
    assert state_of(history, key) == state


async def changes_within_a_state(history: History) -> None:
    """Renewed, extended, handed over, and its lease runs out: in each state that has devices."""
    for state in LIVE_STATES:
        await reach(history, state, state, LEASED)
        newest = len(history.reference.claims) - 1
        await history.renew(newest)
        await history.extend(newest, 10 * MINUTE_MS)
        await history.reassign()
        await history.reassign(back=True)
        await history.wait(300_000)
        assert state_of(history, state) == "released"


async def yields(history: History) -> None:
    """Spot makes room: at once before its start, else after its grace."""
    for state in LIVE_STATES:
        await reach(history, f"spot-{state}", state, SPOT)
        await reach(history, f"other-{state}", "placed", THREE)
        if state != "placed":
            await history.wait(AHEAD_MS)
        assert state_of(history, f"spot-{state}") == "released"
        await history.end("release", len(history.reference.claims) - 1)


async def is_repaired(history: History) -> None:
    """Before its start, what cannot serve any more is placed anew; where that fails, it says so."""
    await reach(history, "k", "placed", THREE)
    await history.device(0, 0, "sick")
    await history.device(0, 1, "sick")
    await history.wait(AHEAD_MS)


async def is_confirmed(history: History) -> None:
    """An agent's request waits for its person, and is decided again."""
    await history.create(AGENT, "first", THREE, word="confirm")
    await history.create(AGENT, "first", THREE)
    await history.create(AGENT, "second", THREE, word="confirm")
    await history.create(AGENT, "second", THREE)
    await history.create(AGENT, "refused", THREE, word="confirm")
    await history.create(AGENT, "refused", THREE, word="deny")
    await history.create(AGENT, "withdrawn", THREE, word="confirm")
    await history.end("release", len(history.reference.claims) - 1)
    await history.create(AGENT, "late", THREE, word="confirm")
    await history.wait(31 * MINUTE_MS)
    states = [claim.state for claim in history.reference.claims.values()]
    expected = ["released" if history.reference.queued else "binding", "pending"]
    assert states[1:] == [*expected[1:], "denied", "cancelled", "expired"]


async def hands_over_what_waits(history: History) -> None:
    """Also what waits gets another owner."""
    await history.create(ALICE, "first", THREE)
    await history.create(ALICE, "second", THREE)
    await history.reassign()


TOURS: Sequence[Tour] = (
    moves_up, ends_at_a_word, fails_three_times, nowhere_else, before_the_workers_come,
    waits_in_vain, changes_within_a_state, yields, is_repaired, is_confirmed, hands_over_what_waits,
)  # fmt: skip
QUEUED_TOURS: Sequence[Tour] = (moves_up, is_confirmed)


def reached_by_tours(traces: type[Trace]) -> Counter[Step]:
    """Every tour, on two hosts or one; what they reached."""
    reached: Counter[Step] = Counter()
    for tour in TOURS:
        hosts = "ab" if tour is is_repaired else "a"
        traces.runner.run(on_the_way(traces, tour, hosts, reached))
    for tour in QUEUED_TOURS:
        traces.runner.run(on_the_way(traces, tour, "a", reached, queued=True))
    return reached


async def on_the_way(
    traces: type[Trace], tour: Tour, hosts: str, reached: Counter[Step], *, queued: bool = False
) -> None:
    traces.stage.advance(MINUTE_MS)
    policy = PoolPolicy(placer=PlacerKind.QUEUED if queued else PlacerKind.INLINE)
    service = Service(traces.stage, traces.authority, policy)
    history = History(service, Reference(traces.stage.now, queued=queued))
    await history.begin([switched(name) for name in hosts], QUOTAS)
    await tour(history)
    reached += history.reference.steps
    await service.stop()


def is_made_by(step: Step, trigger: Trigger, move: Move) -> bool:
    """Whether the step is what this move of the table looks like from outside."""
    told = (step.after, step.event, step.reason if step.event == "released" else "")
    return told == (move.to, move.event, move.reason) and step.cause == CAUSES.get(
        trigger, step.cause
    )


def moves_behind(step: Step) -> Sequence[tuple[State, Trigger]]:
    """The rows of the table that it may have been."""
    return [
        (state, trigger)
        for (state, trigger), move in MOVES.items()
        if step.before == state and is_made_by(step, trigger, move)
    ]


def strangers(steps: Counter[Step]) -> Sequence[Step]:
    """Changes of state that no row of the table gives."""
    return [step for step in steps if step.before != step.after and not moves_behind(step)]


def test_every_move_of_the_table_is_reached_and_no_other(traces: type[Trace]) -> None:
    reached = reached_by_tours(traces)
    assert strangers(reached) == []
    missing = set(MOVES) - {move for step in reached for move in moves_behind(step)}
    assert not missing, sorted(missing)

"""Work that waits in a lane: who shares a transaction with whom, and what becomes of each."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bcd.store import lanes
from bcd.store.database import Lane, LostEveryRace, StoreUnavailable
from bcd.store.jobs import Work
from bcd.store.lanes import Lanes

LANE = Lane("lane")


class Boom(Exception):
    """Raised by a transaction's body."""


class Transactions:
    """Runs work as a database does, and can be held up; ``sizes`` are the works of each commit.

    ``error`` is what becomes of each transaction of more than one.
    """

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(2)
        self.lanes = Lanes(self.executor, self._transact)
        self.begun, self.gate = threading.Event(), threading.Event()
        self.ran: list[str] = []
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def _transact(self, work: Work) -> Any:
        self.begun.set()
        self.gate.wait()
        before = len(self.ran)
        result = work(None)  # type: ignore[arg-type]
        size = len(self.ran) - before
        if self.error is not None and size > 1:
            raise self.error
        self.sizes.append(size)
        return result

    def job(self, name: str, *, fails: bool = False, takes_s: float = 0.0) -> Work:
        """A work that notes that it ran, and answers its name."""

        def work(_tx: object) -> str:
            self.ran.append(name)
            time.sleep(takes_s)
            if fails:
                raise Boom
            return name

        return work


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transactions]:
    monkeypatch.setattr(lanes, "_TOGETHER_S", 60.0)  # also where the machine is slow
    transactions = Transactions()
    yield transactions
    transactions.gate.set()
    transactions.executor.shutdown()


@pytest.fixture
async def waiting(made: Transactions) -> AsyncIterator[Transactions]:
    """One whose first transaction is held up, so that what comes next waits together."""
    first = asyncio.create_task(made.lanes.run(LANE, made.job("first")))
    await asyncio.to_thread(made.begun.wait)
    yield made
    made.gate.set()
    await first


def ask(made: Transactions, *works: Work, place: Callable[[int], str] = lambda _: "") -> Any:
    """Have these done, in this order; the answers."""
    tasks = [
        asyncio.create_task(made.lanes.run(Lane("lane", place(number)), work))
        for number, work in enumerate(works)
    ]
    return asyncio.gather(*tasks, return_exceptions=True)


async def test_what_waits_shares_a_transaction_of_no_more_than_sixteen(
    waiting: Transactions,
) -> None:
    names = [f"{number:02}" for number in range(20)]
    answers = ask(waiting, *map(waiting.job, names))
    await asyncio.sleep(0)
    waiting.gate.set()
    assert await answers == names
    assert waiting.ran == ["first", *names]
    assert waiting.sizes == [1, 16, 4]


async def test_it_goes_in_the_order_of_its_places(waiting: Transactions) -> None:
    answers = ask(waiting, *map(waiting.job, "abc"), place=lambda number: "zxy"[number])
    await asyncio.sleep(0)
    waiting.gate.set()
    assert await answers == ["a", "b", "c"]
    assert waiting.ran == ["first", "b", "c", "a"]


async def test_one_that_raises_makes_each_run_again_by_itself(waiting: Transactions) -> None:
    answers = ask(waiting, waiting.job("a"), waiting.job("b", fails=True), waiting.job("c"))
    await asyncio.sleep(0)
    waiting.gate.set()
    found = await answers
    assert [found[0], type(found[1]), found[2]] == ["a", Boom, "c"]
    assert waiting.ran == ["first", "a", "b", "a", "b", "c"]
    assert waiting.sizes == [1, 1, 1]


@pytest.mark.parametrize(("error", "tried"), [(StoreUnavailable, 1), (LostEveryRace, 2)])
async def test_what_may_have_committed_is_not_run_again(
    waiting: Transactions, error: type[StoreUnavailable], tried: int
) -> None:
    waiting.error = error("gone")
    answers = ask(waiting, *map(waiting.job, "ab"))
    await asyncio.sleep(0)
    waiting.gate.set()
    found = await answers
    assert waiting.ran.count("b") == tried
    assert [type(answer) for answer in found] == ([error] * 2 if tried == 1 else [str] * 2)


async def test_a_transaction_that_takes_long_takes_no_more_in(
    waiting: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_TOGETHER_S", 0.1)
    answers = ask(waiting, waiting.job("a", takes_s=0.2), waiting.job("b"), waiting.job("c"))
    await asyncio.sleep(0)
    waiting.gate.set()
    assert await answers == ["a", "b", "c"]
    assert waiting.ran == ["first", "a", "b", "c"]
    assert waiting.sizes[:2] == [1, 1]


async def test_who_goes_away_before_its_turn_gets_nothing_done(waiting: Transactions) -> None:
    leaver = asyncio.create_task(waiting.lanes.run(LANE, waiting.job("leaver")))
    answers = ask(waiting, *map(waiting.job, "ab"))
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.sleep(0)
    waiting.gate.set()
    assert await answers == ["a", "b"]
    assert waiting.ran == ["first", "a", "b"]


async def test_lanes_do_not_wait_for_each_other_and_are_forgotten(waiting: Transactions) -> None:
    other = asyncio.create_task(waiting.lanes.run(Lane("other"), lambda _tx: "other"))
    waiting.gate.set()
    assert await other == "other"
    await asyncio.to_thread(waiting.executor.shutdown)
    assert not waiting.lanes._waiting


async def test_what_was_taken_in_is_finished_when_it_closes(waiting: Transactions) -> None:
    answers = ask(waiting, *map(waiting.job, [f"{number:02}" for number in range(40)]))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(waiting.executor.shutdown))
    await asyncio.sleep(0.05)
    waiting.gate.set()
    await closing
    assert len(await answers) == 40
    assert waiting.sizes == [1, 16, 16, 8]


async def test_stop_iteration_of_a_work_reaches_its_caller(made: Transactions) -> None:
    made.gate.set()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await made.lanes.run(LANE, lambda _tx: next(iter(())))
    assert await made.lanes.run(LANE, made.job("next")) == "next"

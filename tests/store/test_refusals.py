"""Drafts and denied requests: counted by an index of their own, swept in two steps."""

from typing import Any

from bcd.model.ids import ReservationId
from bcd.model.reservation import State
from bcd.store import refusals, reservations
from bcd.store.database import Database, Transaction
from tests.clock import DatabaseClock
from tests.store.test_reservations import change
from tests.store.world import TENANT, make_draft, make_pool

NOW_MS = 2_000_000_000_000


class Explaining:
    """A transaction that explains what it is asked instead of answering it."""

    def __init__(self, tx: Transaction, engine: str) -> None:
        self._tx = tx
        self.skip_locked = tx.skip_locked
        self._word = "EXPLAIN QUERY PLAN" if engine == "sqlite" else "EXPLAIN"
        self.plan = ""

    def _explain(self, sql: str, **values: object) -> None:
        rows = self._tx.all(f"{self._word} {sql}", **values)
        self.plan += " ".join(str(list(dict(row).values())) for row in rows)

    def one(self, sql: str, **values: object) -> None:
        self._explain(sql, **values)

    def run(self, sql: str, **values: object) -> int:
        self._explain(sql, **values)
        return 0


async def test_counting_and_sweeping_look_at_nothing_else(
    database: Database,
) -> None:
    def explained(tx: Transaction) -> list[str]:
        if database.engine == "postgresql":
            tx.run("SET LOCAL enable_seqscan = off")
        counting: Any = Explaining(tx, database.engine)
        refusals.exceed(counting, TENANT, "pool", NOW_MS, 10)
        sweeping: Any = Explaining(tx, database.engine)
        refusals.sweep_drafts(sweeping, NOW_MS)
        return [counting.plan, sweeping.plan]

    for plan in await database.write(explained):
        assert "reservations_unused" in plan


async def test_only_drafts_and_denied_ones_of_that_tenant_and_pool_count(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW_MS)
    pool_id, other = await database.write(make_pool), await database.write(make_pool, "other")
    draft, denied, placed = [await database.write(make_draft, pool_id) for _ in range(3)]
    await database.write(change, denied, State.DENIED)
    await database.write(change, placed, State.PLACED)
    await database.write(make_draft, other)

    async def exceed(limit: int, since_ms: int = NOW_MS - 1, tenant: str = TENANT) -> bool:
        return await database.read(refusals.exceed, tenant, pool_id, since_ms, limit)

    assert [await exceed(limit) for limit in (1, 2)] == [True, False]
    assert not await exceed(0, NOW_MS)
    assert not await exceed(0, tenant="other")
    every = (draft, denied, placed)
    dropped = [await database.write(refusals.drop_draft, one) for one in every]
    assert dropped == [True, False, False]
    found = [await database.read(reservations.get, one) for one in every]
    assert [row is not None for row in found] == [False, True, True]


async def test_drafts_beyond_the_limit_go_youngest_first_and_nothing_else_does(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW_MS)
    pool_id, other = await database.write(make_pool), await database.write(make_pool, "other")
    made: list[ReservationId] = []
    apart: list[ReservationId] = []
    for state in (State.DRAFT, State.DENIED, State.DRAFT, State.DENIED, State.DRAFT, State.PLACED):
        clock.advance(5)
        if len(made) == 4:
            apart = [await database.write(make_draft, other) for _ in range(2)]
        clock.advance(5)
        made.append(await database.write(make_draft, pool_id))
        if state is not State.DRAFT:
            await database.write(change, made[-1], state)

    async def trim(since_ms: int, before_ms: int, limit: int) -> list[bool]:
        await database.write(refusals.trim_drafts, since_ms, before_ms, limit)
        rows = [await database.read(reservations.get, one) for one in (*made, *apart)]
        return [row is not None for row in rows]

    every = [True] * 8
    assert await trim(NOW_MS, NOW_MS + 100, 5) == every
    assert await trim(NOW_MS + 60, NOW_MS + 100, 2) == every
    assert await trim(NOW_MS, NOW_MS + 50, 4) == every
    assert await trim(NOW_MS, NOW_MS + 51, 4) == [True] * 4 + [False] + [True] * 3
    assert await trim(NOW_MS, NOW_MS + 51, 2) == [True, True, False, True, False] + [True] * 3


async def test_only_old_drafts_are_swept(database: Database, clock: DatabaseClock) -> None:
    clock.set(2_000_000_000_000)
    pool_id = await database.write(make_pool)
    old, decided = [await database.write(make_draft, pool_id) for _ in range(2)]
    await database.write(change, decided, State.DENIED)
    clock.advance(10)
    new = await database.write(make_draft, pool_id)
    assert await database.write(refusals.sweep_drafts, 2_000_000_000_010) == 1
    found = [await database.read(reservations.get, one) for one in (old, decided, new)]
    assert [row is not None for row in found] == [False, True, True]


async def test_a_denied_one_goes_once_its_key_was_written_down_in_an_earlier_sweep(
    database: Database, clock: DatabaseClock
) -> None:
    """A create that waits for the row sees the key then."""
    clock.set(NOW_MS)
    pool_id = await database.write(make_pool)
    old, placed = [await database.write(make_draft, pool_id) for _ in range(2)]
    await database.write(change, old, State.DENIED)
    await database.write(change, placed, State.PLACED)
    clock.advance(10)
    new = await database.write(make_draft, pool_id)
    await database.write(change, new, State.DENIED)
    for written, swept in ((None, 0), ("hash", 1), ("hash", 0)):
        assert await database.read(refusals.hash_of, old) == written
        assert await database.write(refusals.sweep_denied, NOW_MS + 10) == swept
    found = [await database.read(reservations.get, one) for one in (old, placed, new)]
    assert [row is not None for row in found] == [False, True, True]
    assert await database.read(refusals.hash_of, new) is None

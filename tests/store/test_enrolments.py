"""Join tokens and the way of an enrolment from a gateway to the placer and back."""

import asyncio

from bcd.model.ids import NodeId, PoolId
from bcd.store import enrolments
from bcd.store.database import Database, Transaction
from bcd.store.enrolments import Answer, JoinToken, Kind
from tests.clock import DatabaseClock
from tests.store.world import make_pool

NOW = 2_000_000_000_000


def token(token_id: str, pool_id: PoolId, expires_ms: int = NOW) -> JoinToken:
    return JoinToken(
        id=token_id,
        hmac_key=b"\0key",
        node_id=NodeId("node_x"),
        pool_id=pool_id,
        role="node",
        trusted=True,
        expires_ms=expires_ms,
    )


async def test_a_token_reads_as_it_was_added(database: Database) -> None:
    pool_id = await database.write(make_pool)
    await database.write(enrolments.add_token, token("t", pool_id))
    assert await database.write(enrolments.lock_token, "t") == token("t", pool_id)
    assert await database.write(enrolments.lock_token, "other") is None


async def test_a_token_serves_one_request(database: Database) -> None:
    pool_id = await database.write(make_pool)
    await database.write(enrolments.add_token, token("t", pool_id))

    def use(tx: Transaction, csr: str) -> bool:
        found = enrolments.lock_token(tx, "t")
        assert found is not None
        if found.used_csr not in (None, csr):
            return False
        enrolments.use_token(tx, "t", csr)
        return True

    answers = await asyncio.gather(*(database.write(use, f"csr{n}") for n in range(8)))
    assert sum(answers) == 1
    winner = f"csr{answers.index(True)}"
    assert await database.write(use, winner) is True


async def test_tokens_long_expired_are_dropped(database: Database, clock: DatabaseClock) -> None:
    clock.set(NOW)
    pool_id = await database.write(make_pool)
    await database.write(enrolments.add_token, token("old", pool_id, NOW - 86_400_001))
    await database.write(enrolments.add_token, token("recent", pool_id, NOW - 1))
    await database.write(enrolments.add_token, token("new", pool_id))
    assert await database.write(enrolments.lock_token, "old") is None
    assert await database.write(enrolments.lock_token, "recent") is not None


async def test_requests_are_answered_oldest_first_and_each_once(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)
    ids = []
    asked: list[tuple[Kind, bytes]] = [("join", b"\0a"), ("renewal", b"b"), ("join", b"c")]
    for kind, body in asked:
        clock.advance(1)
        ids.append(await database.write(enrolments.submit, kind, body))
    first, second = await database.write(enrolments.claim, 2)
    assert (first.id, first.kind, first.body) == (ids[0], "join", b"\0a")
    assert (second.id, second.kind, second.body) == (ids[1], "renewal", b"b")
    assert await database.read(enrolments.answer_of, first.id) is None
    await database.write(enrolments.answer, first.id, Answer(b"credentials", None))
    await database.write(enrolments.answer, second.id, Answer(None, "token was used"))
    assert await database.read(enrolments.answer_of, first.id) == Answer(b"credentials", None)
    assert await database.read(enrolments.answer_of, second.id) == Answer(None, "token was used")
    assert await database.read(enrolments.answer_of, "enrol_none") is None
    assert [entry.id for entry in await database.write(enrolments.claim, 2)] == ids[2:]


async def test_no_more_requests_wait_than_the_placer_can_want(
    database: Database, clock: DatabaseClock
) -> None:
    clock.set(NOW)

    def fill(tx: Transaction) -> None:
        for _ in range(enrolments.MAX_OPEN):
            assert enrolments.submit(tx, "join", b"x") is not None

    await database.write(fill)
    assert await database.write(enrolments.submit, "join", b"x") is None
    (first,) = await database.write(enrolments.claim, 1)
    await database.write(enrolments.answer, first.id, Answer(None, "no"))
    assert await database.write(enrolments.submit, "join", b"x") is not None


async def test_both_ends_of_an_enrolment_are_woken(database: Database) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    answered: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("enrolment", asked.put_nowait)
    database.wakes.listen("enrolment-answer", answered.put_nowait)
    enrolment_id = await database.write(enrolments.submit, "join", b"x")
    assert enrolment_id is not None
    async with asyncio.timeout(10):
        assert await asked.get() == enrolment_id
        await database.write(enrolments.answer, enrolment_id, Answer(b"c", None))
        assert await answered.get() == enrolment_id


async def test_old_requests_are_pruned(database: Database, clock: DatabaseClock) -> None:
    clock.set(NOW)
    old = await database.write(enrolments.submit, "join", b"x")
    clock.advance(10)
    new = await database.write(enrolments.submit, "join", b"x")
    assert old is not None
    assert await database.write(enrolments.prune, NOW + 10) == 1
    assert [entry.id for entry in await database.write(enrolments.claim, 9)] == [new]

"""A server of its own: several processes on it, an outage, and roles that may do less."""

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest

from bcd.model.errors import BadConfiguration
from bcd.store import connection, quotas
from bcd.store.database import Database, Lane, StoreUnavailable, Transaction
from bcd.store.open import open_database
from tests.postgres import Cluster
from tests.store.world import TENANT


def set_ceiling(tx: Transaction, resource: str) -> None:
    quotas.set_ceiling(tx, TENANT, resource, 1)


def resources(tx: Transaction) -> list[str]:
    return [quota.resource for quota in quotas.of_tenant(tx, TENANT)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://[",
        "postgresql://u:my secret@h/x",
        "postgresql://u:secret%zz@h/x",
        "postgresql://u:secret@h/x?bogus=secret",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(BadConfiguration, match="database: is no PostgreSQL URL") as caught:
        open_database(url)
    assert "secret" not in caught.value.message


async def test_a_wake_up_reaches_every_process(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("topic", heard.put_nowait)
    other.wakes.listen("topic", heard.put_nowait)
    await other.write(lambda tx: tx.wake("topic", "key"))
    async with asyncio.timeout(10):
        assert [await heard.get() for _ in range(2)] == ["key", "key"]
    await other.close()


async def test_programs_that_start_together_migrate_once(postgresql: Cluster) -> None:
    url = postgresql.empty_database()
    opened = await asyncio.gather(*(asyncio.to_thread(open_database, url) for _ in range(4)))
    await opened[0].write(set_ceiling, "gpu")
    for database in opened:
        assert await database.read(resources) == ["gpu"]
        await database.close()


async def test_an_owner_without_more_rights_can_migrate(postgresql: Cluster) -> None:
    with psycopg.connect(postgresql.url("postgres"), autocommit=True) as server:
        server.execute("CREATE ROLE placer LOGIN")
        server.execute("CREATE DATABASE of_placer OWNER placer")
    database = open_database(postgresql.url("of_placer", "placer"))
    await database.write(set_ceiling, "gpu")
    await database.close()


def test_a_program_that_may_not_migrate_says_who_must(postgresql: Cluster) -> None:
    with pytest.raises(StoreUnavailable, match="start the placer"):
        open_database(postgresql.empty_database(), migrate=False)


def test_a_server_that_is_not_there_is_unavailable(postgresql: Cluster) -> None:
    url = f"postgresql://postgres:secret@/x?host={postgresql.folder}/nowhere"
    with pytest.raises(StoreUnavailable, match="cannot connect") as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


async def test_broken_connections_are_replaced_without_the_caller_noticing(
    database: Database, database_url: str
) -> None:
    await asyncio.gather(*(database.write(set_ceiling, f"r{n}") for n in range(8)))
    with psycopg.connect(database_url, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    await asyncio.gather(*(database.write(set_ceiling, f"s{n}") for n in range(8)))
    assert len(await database.read(resources)) == 16


async def test_wake_ups_come_again_after_the_connection_broke(
    database: Database, database_url: str
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    database.wakes.listen("topic", heard.put_nowait)
    with psycopg.connect(database_url, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
    async with asyncio.timeout(20):
        while heard.empty():
            await database.write(lambda tx: tx.wake("topic"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await heard.get()
                    return


async def test_a_server_that_goes_away_fails_writes_as_unavailable(
    database: Database, postgresql: Cluster
) -> None:
    await database.write(set_ceiling, "before")
    postgresql.kill()
    try:
        with pytest.raises(StoreUnavailable):
            await database.write(set_ceiling, "during")
        with pytest.raises(StoreUnavailable):
            await database.read(resources)
        lost = await asyncio.gather(
            *(database.write_in(Lane("lane"), set_ceiling, name) for name in "xyz"),
            return_exceptions=True,
        )
        assert [type(error) for error in lost] == [StoreUnavailable] * 3
    finally:
        postgresql.start()
    await database.write(set_ceiling, "after")
    assert await database.read(resources) == ["after", "before"]


async def test_a_server_that_became_a_standby_counts_as_away_until_it_writes_again(
    database: Database, database_url: str
) -> None:
    await database.write(set_ceiling, "before")
    name = database_url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(database_url, autocommit=True) as server:
        for read_only in ("on", "off"):
            server.execute("SET default_transaction_read_only = off")
            server.execute(
                f"ALTER DATABASE {name} SET default_transaction_read_only = {read_only}".encode()
            )
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if read_only == "on":
                with pytest.raises(StoreUnavailable, match="read-only"):
                    await database.write(set_ceiling, "during")
                assert await database.read(resources) == ["before"]
    await database.write(set_ceiling, "after")
    assert await database.read(resources) == ["after", "before"]


async def test_a_connection_that_dies_at_its_first_statement_counts_as_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that has no server at the moment."""
    connect = connection.connect

    def cut(url: str) -> Any:
        made = connect(url)
        connection.break_off(made)
        return made

    monkeypatch.setattr(connection, "connect", cut)
    for _ in range(8):
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await database.write(set_ceiling, "during")
    assert not database._open  # type: ignore[attr-defined]
    monkeypatch.undo()
    await database.write(set_ceiling, "after")


async def test_a_wrong_statement_is_no_outage(database: Database) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        await database.write(lambda tx: tx.run("DELETE FROM nothing_like_it"))


async def test_a_server_that_hangs_does_not_keep_a_program_from_ending(
    postgresql: Cluster,
) -> None:
    database = open_database(postgresql.new_database())
    await database.write(set_ceiling, "before")
    with postgresql.frozen():
        hanging = asyncio.create_task(database.write(set_ceiling, "during"))
        await asyncio.sleep(0.1)
        assert not hanging.done()
        async with asyncio.timeout(30):
            await database.close()
            with pytest.raises(StoreUnavailable):
                await hanging


async def test_a_deadlock_is_tried_again_until_both_are_done(database: Database) -> None:
    await asyncio.gather(*(database.write(set_ceiling, name) for name in ("a", "b")))

    def crosswise(tx: Transaction, names: tuple[str, str]) -> None:
        for name in names:
            tx.run("UPDATE quotas SET used = used + 1 WHERE resource = :name", name=name)
            tx.one("SELECT pg_sleep(0.05)")

    await asyncio.gather(
        *(database.write(crosswise, names) for names in (("a", "b"), ("b", "a")) * 2)
    )
    used = {q.resource: q.used for q in await database.read(quotas.of_tenant, TENANT)}
    assert used == {"a": 4, "b": 4}


async def test_what_waits_in_a_lane_shares_a_transaction(database: Database) -> None:
    def number(tx: Transaction) -> int:
        row = tx.one("SELECT txid_current() AS number")
        assert row is not None
        return int(row["number"])

    numbers = await asyncio.gather(*(database.write_in(Lane("lane"), number) for _ in range(64)))
    assert len(set(numbers)) < 64
    assert numbers == sorted(numbers)


async def test_writers_of_several_processes_wait_for_each_others_locks(
    database: Database, database_url: str
) -> None:
    other = open_database(database_url)
    await database.write(set_ceiling, "gpu")

    def count(tx: Transaction) -> None:
        row = tx.one(f"SELECT used FROM quotas WHERE resource = 'gpu'{tx.for_update}")
        assert row is not None
        tx.run("UPDATE quotas SET used = :used WHERE resource = 'gpu'", used=row["used"] + 1)

    await asyncio.gather(*(store.write(count) for store in (database, other) * 20))
    (quota,) = await database.read(quotas.of_tenant, TENANT)
    assert quota.used == 40
    await other.close()

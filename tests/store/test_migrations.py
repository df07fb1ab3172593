"""The numbered schema: applied in order, whole or not at all, never by an older program."""

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from bcd.model.errors import BadConfiguration
from bcd.model.ids import ReservationId
from bcd.store import events, gpu_claims, pools, quotas
from bcd.store.database import Database, Transaction
from bcd.store.dialect import postgresql_schema
from bcd.store.events import Wanted
from bcd.store.migrate import VERSION_TABLE, migrations, newest_version, pending
from bcd.store.open import open_database
from tests.postgres import Cluster
from tests.store.world import make_booking, make_pool, make_world

# SHA-256, shortened. A database that has a file's version never sees the file again: what
# changes gets a new number.
SHIPPED = {
    "0001_core.sql": "29be2524b0c5b11de93743dbc9f48d6f",
    "0002_exclusion.postgresql.sql": "1b458014ac762848412cdb572495d215",
    "0002_exclusion.sqlite.sql": "6bf01cb0f2f5cb22c12ed5358fd95bca",
    "0003_gateway_role.postgresql.sql": "c26aa145f1244105102b545d6457b5be",
    "0004_gateway_verdict.postgresql.sql": "6d4715afafea0be8b6eaeaeae1e3fd23",
    "0005_hosts.sql": "47155dd2b1aa8d8f2c978f9dbe712930",
    "0006_events.sql": "7ec0b8176fc38c5468dd3624dccdf61f",
    "0007_admin.sql": "e33b35b4c7888e6809ec01496b1908eb",
    "0008_confirmations.sql": "b7873bb5a9401f54f9c165a184f69ad2",
    "0010_shares.sql": "bed33a5b8837f3cb5a57a0b602017c77",
    "0011_lifecycle.sql": "2d6ad98dd8d4a49af75b0d0a1c6e9c20",
    "0012_shadows.sql": "03b4cd752adadf7a0ad80fba26a841b2",
    "0013_gpu_claims.sql": "b600a62faea73b7dd504229c2955d62e",
    "0014_refusals.sql": "bacd1d675d9aae4ac525c8892ae60747",
    "0015_waiting.sql": "d02fce1bd2f226ccfa87a4f01fc563bf",
}


@dataclass(frozen=True, slots=True)
class Bare:
    """A database without a schema, and a way to run statements that no program of ours would."""

    engine: str
    url: str

    def run(self, script: str) -> None:
        if self.engine == "sqlite":
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            connection.executescript(script)
            connection.close()
            return
        with psycopg.connect(self.url) as server:
            server.execute(postgresql_schema(script).encode())

    def migrate(self, before: int) -> None:
        """Make the schema as a program left it that did not know that version."""
        older = [one for one in migrations(self.engine) if one.version < before]
        self.run(VERSION_TABLE)
        for one in older:
            self.run(one.sql.replace("bcd_gateway", "postgres"))
        self.run(f"INSERT INTO schema_version VALUES ({older[-1].version})")

    def tables(self) -> set[str]:
        if self.engine == "sqlite":
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            rows = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
            connection.close()
        else:
            with psycopg.connect(self.url) as server:
                rows = server.execute(
                    "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
                ).fetchall()
        return {name for (name,) in rows}


@pytest.fixture
def bare(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bare:
    if engine == "sqlite":
        return Bare(engine, f"sqlite:///{tmp_path}/bare.db")
    cluster: Cluster = request.getfixturevalue("postgresql")
    return Bare(engine, cluster.empty_database())


def version(tx: Transaction) -> list[int]:
    return [row["version"] for row in tx.all("SELECT version FROM schema_version")]


async def ask(url: str, *works: Callable[[Transaction], object]) -> list[object]:
    database: Database = open_database(url)
    try:
        return [await database.write(work) for work in works]
    finally:
        await database.close()


def test_a_file_that_was_shipped_never_changes() -> None:
    every = {file.name: file for name in ("sqlite", "postgresql") for file in migrations(name)}
    hashes = {
        name: hashlib.sha256(file.sql.encode()).hexdigest()[:32] for name, file in every.items()
    }
    assert hashes == SHIPPED


async def test_a_fresh_database_comes_to_the_newest_version(bare: Bare) -> None:
    assert await ask(bare.url, version) == [[newest_version(bare.engine)]]


async def test_opening_again_keeps_what_is_there(bare: Bare) -> None:
    (pool_id,) = await ask(bare.url, make_pool)
    (kept,) = await ask(bare.url, pools.every)
    assert [pool.id for pool in kept] == [pool_id]  # type: ignore[attr-defined]


async def test_an_older_database_is_brought_up_to_date(bare: Bare) -> None:
    first = migrations(bare.engine)[0]
    bare.run(f"{VERSION_TABLE};{first.sql};INSERT INTO schema_version VALUES ({first.version});")
    world, after = await ask(bare.url, make_world, version)
    assert after == [newest_version(bare.engine)]

    def twice(tx: Transaction) -> list[bool]:
        gpu = world.gpus[:1]  # type: ignore[attr-defined]
        return [
            make_booking(tx, world, gpu, 0, 10) is not None  # type: ignore[arg-type]
            for _ in range(2)
        ]

    assert await ask(bare.url, twice) == [[True, False]]


async def test_charges_of_an_older_program_are_given_back(bare: Bare) -> None:
    """They counted against the quota alone."""
    bare.run(f"{VERSION_TABLE};")
    for older in migrations(bare.engine):
        if older.version <= 4:
            bare.run(older.sql)
    bare.run(
        "INSERT INTO schema_version VALUES (4);"
        "INSERT INTO pools (id, name, tenant_id, region, policy, created_ms)"
        " VALUES ('pool_1', 'p', 'acme', 'eu', '{}', 1);"
        "INSERT INTO reservations (id, tenant_id, pool_id, owner, identity, idempotency_key,"
        " request_hash, request, host_share, state, operation, created_ms) VALUES"
        " ('rsv_1', 'acme', 'pool_1', 'o', 'o', 'k', 'h', '{}', '{}', 'pending', 'succeeded', 1);"
        "INSERT INTO quotas (tenant_id, resource, ceiling, used) VALUES ('acme', 'gpu', 9, 4);"
        "INSERT INTO quota_charges (reservation_id, resource, tenant_id, amount)"
        " VALUES ('rsv_1', 'gpu', 'acme', 4);"
    )

    def refund(tx: Transaction) -> list[int]:
        quotas.refund(tx, ReservationId("rsv_1"))
        return [quota.used for quota in quotas.of_tenant(tx, "acme")]

    assert await ask(bare.url, refund, version) == [[0], [newest_version(bare.engine)]]


async def test_events_of_an_older_database_get_their_reservations_tenant(bare: Bare) -> None:
    bare.migrate(before=6)
    bare.run(
        "INSERT INTO pools (id, name, tenant_id, region, policy, created_ms)"
        " VALUES ('p', 'p', 'owner', 'r', '{}', 0);"
        "INSERT INTO reservations (id, tenant_id, pool_id, owner, identity, idempotency_key,"
        " request_hash, request, host_share, state, operation, created_ms)"
        " VALUES ('rsv_a', 'acme', 'p', '', '', '', '', '{}', '{}', 'placed', 'succeeded', 0);"
        "INSERT INTO events (subject, type, data, at_ms) VALUES"
        " ('reservation/rsv_a', 'reservation.placed', '{}', 0),"
        " ('reservation/rsv_gone', 'reservation.placed', '{}', 0),"
        " ('node/rsv_a', 'node.enrolment-rejected', '{}', 0)"
    )

    def tenants(tx: Transaction) -> list[str]:
        return [row["tenant_id"] for row in tx.all("SELECT tenant_id FROM events ORDER BY seq")]

    def published(tx: Transaction) -> list[int | None]:
        assert events.publish(tx, 10) == 3
        return [event.published_seq for event in events.page(tx, Wanted(), 0, 10).events]

    assert await ask(bare.url, tenants, published) == [["acme", "", ""], [1, 2, 3]]


async def test_of_several_nodes_that_have_a_gpu_the_one_that_hands_it_out_or_is_there_keeps_it(
    bare: Bare,
) -> None:
    bare.migrate(before=13)
    bare.run(
        "INSERT INTO pools (id, name, tenant_id, region, policy, created_ms)"
        " VALUES ('p', 'p', 'owner', 'r', '{}', 0);"
        "INSERT INTO nodes (id, pool_id, role, trusted, reachable, created_ms, removed_ms) VALUES"
        " ('node_gone', 'p', 'node', 1, 1, 0, 1), ('node_moved', 'p', 'node', 1, 1, 0, NULL),"
        " ('node_silent', 'p', 'node', 1, 0, 0, NULL),"
        " ('node_a', 'p', 'node', 1, 1, 0, NULL), ('node_b', 'p', 'node', 1, 1, 0, NULL);"
        "INSERT INTO reservations (id, tenant_id, pool_id, owner, identity, idempotency_key,"
        " request_hash, request, host_share, resources, state, operation, created_ms) VALUES"
        " ('r', 't', 'p', 'o', 'i', 'k', 'h', '{}', '{}', '{}', 'active', 'succeeded', 0)"
    )
    seen = (
        ("node_gone", "G1", 0, "not in the inventory"),
        ("node_moved", "G1", 0, "not in the inventory"),
        ("node_silent", "G1", 1, ""),
        ("node_a", "G1", 1, ""),
        ("node_b", "G1", 1, ""),
        ("node_b", "G2", 0, "Xid 79"),
        ("node_a", "G3", 1, ""),
        ("node_b", "G3", 1, ""),
        ("node_moved", "G4", 0, "not in the inventory"),
        ("node_b", "G4", 1, ""),
    )
    for number, (node, uuid, free, reason) in enumerate(seen, start=1):
        bare.run(
            f"INSERT INTO gpus (id, node_id, uuid) VALUES ({number}, '{node}', '{uuid}');"
            "INSERT INTO atoms (node_id, gpu_id, mode, class, uuid, model, profile, memory_bytes,"
            " nvlink_domain, nvlink_peers, bookable, health, health_reason) VALUES"
            f" ('{node}', {number}, 0, 'gpu', '{uuid}', 'm', '', 1, '', '[]', {free}, 'h',"
            f" '{reason}')"
        )
        if (node, uuid) in {("node_b", "G3"), ("node_moved", "G4")}:
            bare.run(
                "INSERT INTO allocations (id, reservation_id, node_id, state, until_ms, devices,"
                f" created_ms) VALUES ('a{number}', 'r', '{node}', 'bound', 1, '[]', 0);"
                "INSERT INTO bookings (allocation_id, reservation_id, node_id, atom_id, gpu_id,"
                f" mode, start_ms, end_ms) SELECT 'a{number}', 'r', '{node}', id, gpu_id, 0, 0,"
                f" {1 << 50} FROM atoms WHERE gpu_id = {number}"
            )

    def claims(tx: Transaction) -> dict[str, tuple[str, int]]:
        rows = tx.all("SELECT uuid, node_id, leaving FROM gpu_claims")
        return {row["uuid"]: (row["node_id"], row["leaving"]) for row in rows}

    def bookable(tx: Transaction) -> list[str]:
        rows = tx.all("SELECT node_id FROM atoms WHERE bookable = 1 ORDER BY id")
        return [row["node_id"] for row in rows]

    def due(tx: Transaction) -> object:
        return gpu_claims.due(tx, 0)

    assert await ask(bare.url, claims, bookable, due) == [
        {
            "G1": ("node_a", 0),
            "G2": ("node_b", 0),
            "G3": ("node_b", 0),
            "G4": ("node_moved", 1),
        },
        ["node_a", "node_b"],
        ["node_a", "node_b"],
    ]


async def test_a_database_from_the_future_is_refused_and_left_alone(bare: Bare) -> None:
    await ask(bare.url, make_pool)
    bare.run("UPDATE schema_version SET version = 9999")
    before = bare.tables()
    with pytest.raises(BadConfiguration, match=r"version 9999.*start the newer program"):
        open_database(bare.url)
    assert bare.tables() == before


async def test_a_migration_that_is_interrupted_leaves_nothing_behind(bare: Bare) -> None:
    bare.run("CREATE TABLE work (obstacle INTEGER)")  # created near the end of the first file
    with pytest.raises(BadConfiguration, match="work"):
        open_database(bare.url)
    assert bare.tables() - {"schema_version"} == {"work"}
    bare.run("DROP TABLE work")
    assert await ask(bare.url, version) == [[newest_version(bare.engine)]]


async def test_both_engines_have_the_same_tables(bare: Bare) -> None:
    await ask(bare.url, version)
    in_files = {
        line.split()[2]
        for migration in migrations(bare.engine)
        for line in migration.sql.splitlines()
        if line.startswith("CREATE TABLE")
    }
    assert bare.tables() == in_files | {"schema_version"}


def test_versions_grow_without_gaps() -> None:
    for engine in ("sqlite", "postgresql"):
        versions = [migration.version for migration in migrations(engine)]
        assert versions == sorted(set(versions))
        assert versions[0] == 1
        assert pending(engine, newest_version(engine)) == []


async def test_an_unused_loop_is_left_alone(bare: Bare) -> None:
    """Opening needs no event loop: programs open their database before they start one."""
    database = await asyncio.to_thread(open_database, bare.url)
    assert await database.read(version) == [newest_version(bare.engine)]
    await database.close()

"""What a gateway's role may touch, tried out as such a user on every table that there is.

The tables come from the catalogue: a new one fails here until somebody has decided about it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest

from bcd.store import nodes, reports, sessions
from bcd.store.database import Database, Transaction
from bcd.store.open import open_database
from tests.postgres import Cluster
from tests.store.test_reports import Reporter, make_reporters

Connection = psycopg.Connection[tuple[Any, ...]]
ALL = frozenset({"*"})
NOTHING: Mapping[str, frozenset[str]] = {}
READ = {"select": ALL}

# By table: which columns may be read, inserted and updated; whether rows may be deleted.
ALLOWED: Mapping[str, Mapping[str, frozenset[str]]] = {
    "allocations": {"select": frozenset({"id", "node_id"})},
    "atoms": NOTHING,
    "bookings": NOTHING,
    "certificates": NOTHING,
    "confirmations": NOTHING,
    "control": NOTHING,
    "desired_states": READ,
    "enrolments": {
        "select": frozenset({"id", "answer", "refusal", "answered_ms"}),
        "insert": frozenset({"id", "kind", "body", "created_ms"}),
    },
    "events": NOTHING,
    "extend_holds": NOTHING,
    "gateways": {"select": ALL, "insert": ALL, "update": ALL},
    "gpu_claims": NOTHING,
    "gpu_waits": NOTHING,
    "gpus": NOTHING,
    "host_bookings": NOTHING,
    "host_capacity": NOTHING,
    "inventories": {"select": ALL, "insert": ALL, "update": ALL},
    "join_tokens": NOTHING,
    # Row-level security leaves it nothing but bc.dev/cap.* labels of source system.
    "node_labels": {"select": ALL, "insert": ALL, "delete": ALL},
    "nodes": NOTHING,
    "offers": NOTHING,
    "pool_changes": NOTHING,
    "pool_shares": NOTHING,
    "pools": NOTHING,
    "quota_charges": NOTHING,
    "quotas": NOTHING,
    "refused_keys": NOTHING,
    "report_numbers": NOTHING,
    "reports": {
        "select": frozenset({"id", "node_id", "key_id", "number", "digest", "verdict"}),
        "insert": frozenset({
            "node_id", "key_id", "number", "digest", "allocation_id", "envelope",
            "session_epoch", "received_ms",
        }),
    },
    "reservations": NOTHING,
    "revocations": READ,
    "schema_version": READ,
    "shadows": NOTHING,
    "sessions": {"select": ALL, "insert": ALL, "update": ALL},
    "trust_bundles": READ,
    "webhook_deliveries": NOTHING,
    "webhooks": NOTHING,
    "work": NOTHING,
}  # fmt: skip

ATTEMPTS = {
    "select": "SELECT {column} FROM {table} WHERE false",
    "insert": "INSERT INTO {table} ({column}) SELECT NULL WHERE false",
    "update": "UPDATE {table} SET {column} = NULL WHERE false",
}


@pytest.fixture
def gateway(database_url: str, database: Database, postgresql: Cluster) -> Iterator[Connection]:
    """A connection as a member of the gateway's role."""
    with psycopg.connect(postgresql.gateway_url(database_url), autocommit=True) as connection:
        yield connection


def tables(database_url: str) -> dict[str, list[str]]:
    """Every table of the schema with its columns."""
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'public'::regnamespace"
            " AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
            " AND a.attnum > 0 AND NOT a.attisdropped"
        ).fetchall()
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(table, []).append(column)
    return found


def may(gateway: Connection, statement: str) -> bool:
    try:
        gateway.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def test_every_table_was_decided_about(gateway: Connection, database_url: str) -> None:
    assert set(tables(database_url)) == set(ALLOWED)


def test_the_role_may_do_exactly_what_was_decided(gateway: Connection, database_url: str) -> None:
    for table, columns in tables(database_url).items():
        allowed = ALLOWED.get(table, NOTHING)
        for verb, attempt in ATTEMPTS.items():
            granted = {
                column
                for column in columns
                if may(gateway, attempt.format(table=table, column=column))
            }
            expected = allowed.get(verb, frozenset())
            assert granted == (set(columns) if expected == ALL else expected), (table, verb)
        assert may(gateway, f"DELETE FROM {table} WHERE false") is ("delete" in allowed), table
        assert not may(gateway, f"TRUNCATE {table}"), table


def test_the_role_makes_and_changes_no_schema(gateway: Connection) -> None:
    for statement in (
        "CREATE TABLE mine (id bigint)",
        "ALTER TABLE reports DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE node_labels DISABLE ROW LEVEL SECURITY",
        "DROP POLICY gateway_capabilities ON node_labels",
        "CREATE OR REPLACE FUNCTION compute_now() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
        "CREATE TRIGGER t BEFORE INSERT ON reports EXECUTE FUNCTION suppress_redundant_updates()",
        "SET ROLE postgres",
    ):
        assert not may(gateway, statement), statement


async def one_reporter(database: Database) -> Reporter:
    (reporter,) = await database.write(make_reporters)
    return reporter


async def test_it_stores_reports_and_gives_no_verdict(
    gateway: Connection, database: Database
) -> None:
    reporter = await one_reporter(database)
    insert = (
        "INSERT INTO reports (node_id, key_id, number, digest, allocation_id, envelope,"
        " session_epoch, received_ms{more}) VALUES (%s, 'k', %s, 'd', %s, 'x', 1, 1{value})"
    )
    given = (reporter.node_id, 1, reporter.allocation_id)
    gateway.execute(insert.format(more="", value="").encode(), given)
    for more, value in ((", verdict", ", 'counted'"), (", applied_ms", ", 1"), (", id", ", 99")):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            gateway.execute(
                insert.format(more=more, value=value).encode(),
                (reporter.node_id, 2, reporter.allocation_id),
            )
    (stored,) = await database.write(reports.unjudged, reporter.node_id, 10)
    assert stored.verdict is None
    for statement in (
        "UPDATE reports SET verdict = 'counted'",
        "UPDATE reports SET envelope = 'other'",
        "DELETE FROM reports",
    ):
        assert not may(gateway, statement)


@pytest.mark.parametrize(
    ("key", "source"),
    [
        ("bc.dev/cap.devices.limits", "operator"),
        ("bc.dev/trusted", "system"),
        ("bc.dev/capx", "system"),
        ("rack", "operator"),
        ("rack", "system"),
    ],
)
async def test_it_writes_no_label_but_capabilities(
    gateway: Connection, database: Database, key: str, source: str
) -> None:
    reporter = await one_reporter(database)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        gateway.execute(
            "INSERT INTO node_labels (node_id, key, value, source) VALUES (%s, %s, '1', %s)",
            (reporter.node_id, key, source),
        )


async def test_it_sees_and_removes_no_label_but_capabilities(
    gateway: Connection, database: Database
) -> None:
    reporter = await one_reporter(database)

    def write(tx: Transaction) -> None:
        nodes.replace_capabilities(tx, reporter.node_id, ["devices.limits"])
        for key, source in (("rack", "operator"), ("bc.dev/cap.x", "operator")):
            tx.run(
                "INSERT INTO node_labels (node_id, key, value, source)"
                " VALUES (:id, :key, '1', :source)",
                id=reporter.node_id,
                key=key,
                source=source,
            )

    await database.write(write)
    assert gateway.execute("SELECT key FROM node_labels").fetchall() == [
        ("bc.dev/cap.devices.limits",)
    ]
    assert gateway.execute("DELETE FROM node_labels").rowcount == 1
    left = await database.read(nodes.labels, reporter.node_id)
    assert [(key, source) for key, _, source in left] == [
        ("bc.dev/cap.x", "operator"),
        ("rack", "operator"),
    ]


async def test_its_grants_suffice_for_what_it_does(
    database_url: str, database: Database, postgresql: Cluster
) -> None:
    """The gateway's own tests go through the rest under this role."""
    reporter = await one_reporter(database)
    opened = open_database(postgresql.gateway_url(database_url), migrate=False)
    try:
        assert await opened.write(reports.store, reporter.epoch, reporter.report(1)) == "stored"
        live = [(reporter.node_id, reporter.epoch)]
        assert list(await opened.write(sessions.touch_all, live)) == []
    finally:
        await opened.close()

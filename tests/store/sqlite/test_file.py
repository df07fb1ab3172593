"""One file, one process: locked, private, and refused when it is not what it was."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bcd.model.errors import BadConfiguration
from bcd.store import quotas
from bcd.store.database import StoreUnavailable, Transaction
from bcd.store.open import open_database
from bcd.store.sqlite import SqliteDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bcd.db"


def ceilings(tx: Transaction) -> list[tuple[str, int]]:
    return [(quota.resource, quota.ceiling) for quota in quotas.of_tenant(tx, "acme")]


async def filled(path: Path, count: int = 200) -> None:
    database = SqliteDatabase(path)
    for number in range(count):
        await database.write(quotas.set_ceiling, "acme", f"resource-{number:04}", number)
    await database.close()


async def test_a_second_opening_is_refused_while_the_first_lasts(path: Path) -> None:
    first = SqliteDatabase(path)
    with pytest.raises(StoreUnavailable, match="in use by another process"):
        SqliteDatabase(path)
    await first.close()
    await SqliteDatabase(path).close()


def test_a_second_process_is_refused_with_a_clear_sentence(path: Path) -> None:
    first = SqliteDatabase(path)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from bcd.store.sqlite import SqliteDatabase\n"
            "try: SqliteDatabase(Path(sys.argv[1]))\n"
            "except Exception as error: print(error)",
            str(path),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"{path}: is in use by another process" in done.stdout
    assert "PostgreSQL" in done.stdout
    asyncio.run(first.close())


def test_nobody_else_may_read_the_file(path: Path) -> None:
    path.touch(0o644)
    mask = os.umask(0)
    try:
        database = SqliteDatabase(path)
        asyncio.run(database.write(quotas.set_ceiling, "acme", "gpu", 1))
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()}
        asyncio.run(database.close())
    finally:
        os.umask(mask)
    assert set(modes) == {"bcd.db", "bcd.db-wal", "bcd.db-shm", "bcd.db.lock"}
    assert set(modes.values()) == {0o600}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"nowhere/bcd\.db: cannot be opened"):
        open_database(f"sqlite:///{tmp_path}/nowhere/bcd.db")


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:////tmp/a\0b", "postgresql://\0"])
def test_a_url_that_keeps_nothing_or_is_no_text_is_refused(url: str) -> None:
    with pytest.raises(BadConfiguration, match=r"name a file|must be sqlite:///path"):
        open_database(url)


@pytest.mark.parametrize("url", ["", "sqlite:///", "sqlite://x", "mysql://x/y", "/tmp/bcd.db"])
def test_a_url_that_names_no_engine_is_refused(url: str) -> None:
    with pytest.raises(BadConfiguration, match="sqlite:///path"):
        open_database(url)


def test_what_is_no_plain_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    with pytest.raises(BadConfiguration, match="pipe: is not a plain file"):
        SqliteDatabase(pipe)
    assert pipe.stat().st_mode & 0o777 == 0o666
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"not a database at all\n" * 1000)
    with pytest.raises(BadConfiguration, match=r"bcd\.db.*restore it from a backup"):
        SqliteDatabase(path)
    assert path.read_bytes().startswith(b"not a database at all\n")
    path.unlink()
    SqliteDatabase(path)  # the refused opening kept no lock


def test_a_damaged_page_is_found_when_the_file_is_opened(path: Path) -> None:
    asyncio.run(filled(path))
    content = bytearray(path.read_bytes())
    with sqlite3.connect(path) as connection:
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        root = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'quotas'"
        ).fetchone()[0]
    connection.close()
    start = (root - 1) * page_size
    content[start : start + page_size] = b"\xa5" * page_size
    path.write_bytes(content)
    with pytest.raises(BadConfiguration, match=r"bcd\.db.*restore it from a backup"):
        SqliteDatabase(path)


def test_a_disk_without_room_is_no_damage(path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192));"
        "from pathlib import Path; from bcd.store.sqlite import SqliteDatabase;"
        "SqliteDatabase(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert "StoreUnavailable" in done.stderr
    assert "cannot be used now" in done.stderr
    SqliteDatabase(path)


def test_a_truncated_file_is_refused(path: Path) -> None:
    asyncio.run(filled(path))
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(BadConfiguration, match="restore it from a backup"):
        SqliteDatabase(path)


def spoil(path: Path) -> None:
    """Overwrite everything but the first page."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))


async def test_a_file_damaged_while_open_fails_as_unavailable(path: Path) -> None:
    await filled(path)
    database = SqliteDatabase(path)
    spoil(path)
    with pytest.raises(StoreUnavailable):
        await database.read(ceilings)
    await database.close()


async def test_a_full_disk_fails_the_write_and_keeps_what_was_there(path: Path) -> None:
    await filled(path, 10)
    database = SqliteDatabase(path)

    def limit(tx: Transaction) -> None:
        tx.one("PRAGMA max_page_count=1")  # SQLite raises it to what the file has

    def fill(tx: Transaction) -> None:
        for number in range(10_000):
            quotas.set_ceiling(tx, "acme", f"more-{number:05}" + "x" * 200, 1)

    await database.write(limit)
    with pytest.raises(StoreUnavailable, match="full"):
        await database.write(fill)
    assert len(await database.read(ceilings)) == 10
    await database.close()

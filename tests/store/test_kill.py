"""What was acknowledged survives SIGKILL at any instant, of the program and of the server."""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from bcd.store.database import Transaction
from bcd.store.open import open_database
from tests.conftest import Rounds
from tests.store.writer import ROWS

ROOT = Path(__file__).parents[2]


@dataclass
class Writer:
    """The writing process and its files."""

    url: str
    folder: Path

    def __post_init__(self) -> None:
        self.journal = self.folder / "journal"
        self.flag = self.folder / "flag"
        self.journal.touch()

    def launch(self, number: int) -> subprocess.Popen[bytes]:
        self.flag.write_bytes(b"\0")
        arguments = [self.url, str(self.journal), str(self.flag), f"r{number}"]
        before = self.journal.stat().st_size
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.writer", *arguments], cwd=ROOT
        )
        deadline = time.monotonic() + 60
        while self.journal.stat().st_size == before:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return process

    def acknowledged(self) -> set[str]:
        return set(self.journal.read_text().split())


def entries(tx: Transaction) -> tuple[Counter[str], set[str]]:
    """How many events each entry has, and the keys in the work queue."""
    subjects = [row["subject"].removeprefix("entry/") for row in tx.all("SELECT * FROM events")]
    return Counter(subjects), {row["key"] for row in tx.all("SELECT key FROM work")}


async def check(writer: Writer) -> None:
    database = open_database(writer.url)
    written, scheduled = await database.read(entries)
    await database.close()
    assert set(written.values()) == {ROWS}  # no part of an entry
    assert set(written) == scheduled
    assert writer.acknowledged() <= scheduled


def test_every_acknowledged_write_survives_a_killed_writer(
    database_url: str, tmp_path: Path, rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(database_url, tmp_path)
    dice = random.Random(7)
    count = rounds(6, 60)
    open_transactions = 0
    for number in range(count):
        process = writer.launch(number)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        process.wait()
        open_transactions += writer.flag.read_bytes()[0] > 0
        asyncio.run(check(writer))
    with capsys.disabled():
        print(
            f" {count} kills, {open_transactions} inside an open transaction,"
            f" {len(writer.acknowledged())} writes acknowledged",
            end="",
        )

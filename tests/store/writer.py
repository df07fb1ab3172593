"""A process that writes until it is killed, and keeps a synced journal of what was acknowledged.

``python -m tests.store.writer URL JOURNAL FLAG RUN``: several tasks write at once, each entry as
ROWS events and a row of the work queue; it goes into the journal when its write was answered. The
first byte of FLAG counts the transactions that are open.
"""

import asyncio
import mmap
import os
import sys

from bcd.store import events, work
from bcd.store.database import StoreUnavailable, Transaction
from bcd.store.open import open_database

TASKS = 8
ROWS = 40


def write(tx: Transaction, flag: mmap.mmap, key: str) -> None:
    """One entry: all of its rows or none."""
    flag[0] += 1
    try:
        for number in range(ROWS):
            events.emit(tx, f"entry/{key}", "entry.written", {"number": number})
        work.schedule(tx, key, 1 << 50, soon=False)
    finally:
        flag[0] -= 1


async def main(url: str, journal_path: str, flag_path: str, run: str) -> None:
    """Write until killed, or until the database goes away."""
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with open(flag_path, "r+b") as file:  # noqa: ASYNC230
        flag = mmap.mmap(file.fileno(), 1)
    database = open_database(url)

    async def task(name: str) -> None:
        number = 0
        while True:
            key = f"{run}-{name}-{number}"
            await database.write(write, flag, key)
            os.write(journal, f"{key}\n".encode())
            os.fsync(journal)
            number += 1

    try:
        await asyncio.gather(*(task(f"t{number}") for number in range(TASKS)))
    except StoreUnavailable:
        sys.exit(7)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""``bcd-placer`` with a window into its store: how many transactions are open, in a mapped file.

A test that kills the placer at a random instant reads there what the kill interrupted. The store
itself runs unchanged.
"""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bcd.cli import placer
from bcd.store.postgresql import PostgresqlDatabase
from bcd.store.sqlite import SqliteDatabase

PROBE = "BCD_TEST_PROBE"
SIZE = 8


def open_transactions(probe: Path) -> int:
    """How many write transactions were open when the process last said."""
    return int.from_bytes(probe.read_bytes()[:SIZE], "little")


class _Window:
    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._lock = threading.Lock()
        self._open = 0

    def add(self, change: int) -> None:
        with self._lock:
            self._open += change
            self._memory[:SIZE] = self._open.to_bytes(SIZE, "little")

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run`` counted while it runs, unless its last argument says that it only reads."""

        def counted(*arguments: Any) -> Any:
            if arguments[-1] is True:
                return run(*arguments)
            self.add(1)
            try:
                return run(*arguments)
            finally:
                self.add(-1)

        return counted


def main() -> None:
    """Watch the two engines' write transactions, then be ``bcd-placer``."""
    window = _Window(Path(os.environ[PROBE]))
    SqliteDatabase._commit_group = window.around(SqliteDatabase._commit_group)  # type: ignore[method-assign]
    PostgresqlDatabase._transact = window.around(PostgresqlDatabase._transact)  # type: ignore[method-assign]
    placer.main()


if __name__ == "__main__":
    main()

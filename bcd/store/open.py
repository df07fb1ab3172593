"""Opens a database by its URL: ``sqlite:///path`` or ``postgresql://…``."""

from pathlib import Path

from bcd.model.errors import BadConfiguration
from bcd.store.database import Database

_SQLITE = "sqlite:///"
_POSTGRESQL = ("postgresql://", "postgres://")


def is_sqlite(url: str) -> bool:
    """Whether the URL names a SQLite file, which belongs to one process."""
    return url.startswith("sqlite:")


def open_database(url: str, *, migrate: bool = True) -> Database:
    """Open and, unless told otherwise, migrate; raises BadConfiguration or StoreUnavailable.

    Drivers load here, so that a process carries only the one it uses.
    """
    path = url.removeprefix(_SQLITE)
    if path == ":memory:":
        raise BadConfiguration("database: nothing is kept in :memory:; name a file")
    if url.startswith(_SQLITE) and path and "\0" not in url:
        from bcd.store.sqlite import SqliteDatabase

        return SqliteDatabase(Path(path))
    if url.startswith(_POSTGRESQL) and "\0" not in url:
        from bcd.store.postgresql import PostgresqlDatabase

        return PostgresqlDatabase(url, migrate=migrate)
    raise BadConfiguration(
        "database: must be sqlite:///path/to/file or postgresql://user@host/name"
    )

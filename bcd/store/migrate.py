"""Numbered schema files, applied once each and in order.

``NNNN_name.sql`` serves both engines, ``NNNN_name.<engine>.sql`` one of them. A database newer
than the program is refused: an older program would read it wrongly.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from bcd.model.errors import BadConfiguration

_NAME = re.compile(r"([0-9]{4})_[a-z_]+(?:\.(sqlite|postgresql))?\.sql\Z")

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One schema file for one engine."""

    version: int
    name: str
    sql: str


def migrations(engine: str) -> Sequence[Migration]:
    """The schema files of an engine (``sqlite`` or ``postgresql``), oldest first."""
    found: list[Migration] = []
    for entry in resources.files("bcd.store").joinpath("migrations").iterdir():
        match = _NAME.match(entry.name)
        if match and match[2] in (None, engine):
            found.append(Migration(int(match[1]), entry.name, entry.read_text("utf-8")))
    return sorted(found, key=lambda migration: (migration.version, migration.name))


def newest_version(engine: str) -> int:
    """The version that this program was written for, which the engines do not share."""
    return migrations(engine)[-1].version


def pending(engine: str, version: int) -> Sequence[Migration]:
    """What an existing database still needs; raises BadConfiguration for one from the future."""
    newest = newest_version(engine)
    if version > newest:
        raise BadConfiguration(
            f"the database has schema version {version}, this program knows {newest}: "
            "start the newer program, or restore the backup made before the upgrade"
        )
    return [migration for migration in migrations(engine) if migration.version > version]

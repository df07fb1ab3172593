"""What a check answers, and what the doctor makes of it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How it is; only ``failed`` makes the doctor's exit code 1."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check found; ``fix`` is a command or a change, empty where nothing is to do."""

    level: Level
    found: str
    fix: str = ""


def ok(found: str) -> Answer:
    """As it should be."""
    return Answer(Level.OK, found)


def warning(found: str, fix: str) -> Answer:
    """Works now, or for some."""
    return Answer(Level.WARNING, found, fix)


def failed(found: str, fix: str) -> Answer:
    """Holds cannot be made or used like this."""
    return Answer(Level.FAILED, found, fix)


def skipped(because: str) -> Answer:
    """Cannot be looked at before something else is mended."""
    return Answer(Level.SKIPPED, because)


def for_root(name: object) -> Answer:
    """Closed to this user, which says nothing about the host."""
    return skipped(f"{name} is closed to this user; run it as root")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the doctor: the check's name, its answer, and why it matters."""

    name: str
    level: Level
    found: str
    why: str
    fix: str

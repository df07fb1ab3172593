"""Reads what a process used, and prints tables."""

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


def cpu_s(pid: int | str = "self") -> float:
    """User and system time of a process so far, all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def processes_named(name: str) -> Iterable[int]:
    """Running processes whose command is ``name``."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() == name:
                yield int(folder.name)
        except OSError:
            continue


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile by linear interpolation."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def load() -> str:
    """The machine's load averages, which say how far to trust wall times."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a small table under a title."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    print(f"\n{title} (load {load()})")
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def cpu_ns(pid: int) -> int:
    """Time that a process spent on CPUs so far, all its threads, in nanoseconds.

    The clock's number is made as the C library's clock_getcpuclockid(3) makes it.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)

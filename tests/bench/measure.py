"""Reads what a process used, and prints tables."""

import asyncio
import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
# CPU in a second of a process that has nothing to do but its timers.
_RESTING_S = 0.1


def cpu_s(pid: int | str = "self") -> float:
    """User and system time of a process so far, all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def family_cpu_s(pid: int) -> float:
    """What a process and its children used so far, also those that have ended."""
    total = cpu_s(pid)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total += (int(fields[13]) + int(fields[14])) / _TICKS
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended since
            total += cpu_s(int(child))
    return total


@dataclass(slots=True)
class Used:
    """What one operation took; ``server_ms`` is the CPU of the database's server."""

    rate: float = 0.0
    cpu_ms: float = 0.0
    server_ms: float = 0.0

    def __str__(self) -> str:
        server = f" + {self.server_ms:.2f} of the server" if self.server_ms else ""
        return f"{self.rate:.0f}/s, {self.cpu_ms:.2f} ms CPU{server}"


@dataclass(frozen=True, slots=True)
class Watch:
    """Measures this process or ``pid``, and the database's server with its children."""

    servers: tuple[int, ...] = ()
    pid: int | str = "self"

    def beside(self, pid: int) -> "Watch":
        """The same for another process."""
        return Watch(self.servers, pid)

    @contextmanager
    def measure(self, count: int) -> Iterator[Used]:
        """Fill in, at the end, what each of ``count`` operations within took."""
        used = Used()
        began, own, server = time.perf_counter(), cpu_s(self.pid), self._server_s()
        yield used
        used.rate = count / (time.perf_counter() - began)
        used.cpu_ms = (cpu_s(self.pid) - own) / count * 1e3
        used.server_ms = (self._server_s() - server) / count * 1e3

    async def settled(self) -> None:
        """Wait until the process rests: a start over many nodes has work for a while."""
        before = -math.inf
        while (now := cpu_s(self.pid)) - before > _RESTING_S:
            before = now
            await asyncio.sleep(1)

    def _server_s(self) -> float:
        return sum(family_cpu_s(pid) for pid in self.servers)


def fdatasync_rate(folder: Path, seconds: float = 1.0) -> float:
    """How many overwrites of 4 KiB the disk makes durable in a second, one after the other."""
    descriptor = os.open(folder / "fdatasync", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, bytes(4096), 0)
        os.fsync(descriptor)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(descriptor, os.urandom(4096), 0)
            os.fdatasync(descriptor)
            done += 1
        return done / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


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

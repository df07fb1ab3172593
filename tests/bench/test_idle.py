"""What a daemon costs that has nothing to do, and how fast it is there."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.bench.control import control
from tests.bench.measure import MIB, cpu_ns, percentile, rss_bytes, table
from tests.conftest import Rounds


@pytest.mark.timeout(600)
async def test_an_idle_daemon(tmp_path: Path, rounds: Rounds) -> None:
    idle_s, starts = rounds(10, 60), rounds(3, 15)
    async with control(tmp_path, f"sqlite:///{tmp_path}/bcd.db") as bench:
        opened = asyncio.Event()
        bench.database.wakes.listen("session", lambda _: opened.set())
        daemon = await bench.start_daemon("host1")
        await opened.wait()
        await asyncio.sleep(5)
        rss, used = rss_bytes(daemon.pid), cpu_ns(daemon.pid)
        await asyncio.sleep(idle_s)
        idle = (cpu_ns(daemon.pid) - used) / 1e9 / idle_s
        seconds = []
        for _ in range(starts):
            daemon.terminate()
            await asyncio.to_thread(daemon.wait)
            await asyncio.sleep(0.3)
            opened.clear()
            began = time.perf_counter()
            daemon = bench.run_daemon("host1")
            await opened.wait()
            seconds.append(time.perf_counter() - began)
        daemon.terminate()
        await asyncio.to_thread(daemon.wait)
    table(
        "an idle daemon on simulated hardware",
        [
            ("RSS", f"{rss / MIB:.1f} MiB"),
            (f"CPU over {idle_s} s", f"{idle * 100:.2f} % of a core"),
            (f"exec -> session open, median of {starts}", f"{percentile(seconds, 50):.2f} s"),
        ],
    )

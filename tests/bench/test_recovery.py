"""A placer that starts again with 100,000 live reservations, some of them overdue.

From the start of the process: when it places the first create, and when nothing is due any more.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator

import grpc
import psycopg
import pytest

from bcd.model.units import HOUR_MS
from bcd.store.open import open_database
from tests.bench.fleet import Fleet, Live, add_fleet, fill
from tests.bench.measure import MIB, cpu_s, rss_bytes, table
from tests.conftest import MakeSystem, Rounds
from tests.journeys.system import System, wait_until

# Of the live reservations one in so many should have started while nobody was there.
OVERDUE = 100
LENGTH_MS = 8 * HOUR_MS


def live(fleet: Fleet, count: int, now_ms: int) -> Iterator[Live]:
    """Reservations of one GPU, one behind the other on each; those overdue began just now."""
    gpus = [(node_id, gpu) for node_id, own in fleet.nodes for gpu in own[:-4]]
    for number in range(count):
        turn, place = divmod(number, len(gpus))
        node_id, gpu = gpus[place]
        start_ms = now_ms + HOUR_MS + turn * LENGTH_MS + place
        if number < count // OVERDUE:
            start_ms = now_ms - 1_000 - place
        yield Live(node_id, (gpu,), start_ms, start_ms + LENGTH_MS - HOUR_MS)


def due(url: str) -> Callable[[], int]:
    """Counts what is due in the queue, from beside the placer."""
    statement = "SELECT count(*) FROM work WHERE wake_ms <= "
    if url.startswith("sqlite:"):
        file = sqlite3.connect(url.replace("sqlite:///", "file:") + "?mode=ro", uri=True)
        return lambda: int(file.execute(f"{statement}{time.time_ns() // 1_000_000}").fetchone()[0])
    server = psycopg.connect(url, autocommit=True)
    return lambda: int((server.execute(f"{statement}compute_now()").fetchone() or (0,))[0])


def first_placed(system: System, fleet: Fleet) -> None:
    """Ask until a create is placed."""
    client = system.client()

    def asked() -> bool:
        try:
            made = client.create(fleet.pool_id, 4, f"first-{time.time_ns()}")
        except grpc.RpcError:
            return False
        return bool(made.state == "placed")

    with client.channel:
        wait_until("a create is placed", asked, 600)


@pytest.mark.timeout(3600)
async def test_a_restart_with_many_live_reservations(
    make_system: MakeSystem, engine: str, rounds: Rounds
) -> None:
    nodes, count = rounds(100, 10_000), rounds(2_000, 100_000)
    system = make_system()
    database = open_database(system.url)
    fleet = await add_fleet(database, nodes)
    now_ms = time.time_ns() // 1_000_000
    await fill(database, fleet, live(fleet, count, now_ms))
    await database.close()
    count_due = due(system.url)
    rows = [("due at the start", str(count_due()))]
    began = time.perf_counter()
    with system:
        pid = system.programs["placer"].pid
        rows.append(("API answers", _so_far(began, pid)))
        first_placed(system, fleet)
        rows.append(("first create placed", _so_far(began, pid)))
        wait_until("nothing is due", lambda: count_due() == 0, 1200)
        rows.append(("nothing due", _so_far(began, pid)))
        rows.append(("RSS", f"{rss_bytes(pid) / MIB:.0f} MiB"))
    table(f"restart with {count} live reservations on {nodes} nodes, {engine}", rows)


def _so_far(began: float, pid: int) -> str:
    return f"after {time.perf_counter() - began:.1f} s and {cpu_s(pid):.1f} s CPU"

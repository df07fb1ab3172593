"""Killed at random instants, placer and gateway lose nothing that they acknowledged."""

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import MakeSystem, Rounds
from tests.journeys.load import Journal, Load
from tests.journeys.probed_placer import PROBE, open_transactions
from tests.journeys.records import overlaps, query, quota_drift
from tests.journeys.system import System, wait_until

GPUS = 1000


def check_journal(system: System, journal: Journal) -> None:
    """Everything acknowledged is there, in the state that was acknowledged or a later one."""
    rows = {row["id"]: row for row in query(system.url, "SELECT id, state FROM reservations")}
    for reservation_id in journal.created.values():
        assert rows[reservation_id]["state"] != "draft"
    for reservation_id in journal.released:
        assert rows[reservation_id]["state"] in ("released", "cancelled")
    assert not overlaps(system.url)
    assert not quota_drift(system.url)


def check_nothing_ran_twice(system: System) -> None:
    """One live allocation a reservation at most, one ending each, one row a key."""
    twice = query(
        system.url,
        "SELECT reservation_id FROM allocations WHERE state <> 'ended'"
        " GROUP BY reservation_id HAVING count(*) > 1",
    )
    assert not twice
    endings = query(
        system.url,
        "SELECT subject FROM events WHERE type IN ('reservation.released',"
        " 'reservation.cancelled', 'reservation.failed') GROUP BY subject HAVING count(*) > 1",
    )
    assert not endings
    live_after_end = query(
        system.url,
        "SELECT a.id FROM allocations a JOIN reservations r ON r.id = a.reservation_id"
        " WHERE a.state <> 'ended' AND r.state IN ('released', 'cancelled', 'failed')",
    )
    assert not live_after_end


async def kill_rounds(system: System, load: Load, probe: Path, rounds: int) -> Counter[str]:
    """Kill and restart under load; returns where the kills fell."""
    fell: Counter[str] = Counter()
    stopping = asyncio.Event()
    running = asyncio.create_task(load.run(stopping))
    victims = ["placer", "gateway", "both"] if system.separate else ["placer"]
    for number in range(rounds):
        before = load.calls
        while load.calls < before + 10:
            await asyncio.sleep(0.01)
            assert not running.done(), running
        await asyncio.sleep(random.uniform(0.0, 0.2))
        victim = victims[number % len(victims)]
        for name in ("placer", "gateway"):
            if victim in (name, "both"):
                await asyncio.to_thread(system.programs[name].kill)
        if victim != "gateway":
            inside = open_transactions(probe) > 0
            fell["inside a transaction" if inside else "between transactions"] += 1
            check_journal(system, load.journal)
        for name in ("placer", "gateway"):
            if victim in (name, "both"):
                system.programs[name].start()
        fell[f"kills of {victim}"] += 1
    stopping.set()
    await running
    return fell


@pytest.mark.timeout(1800)
async def test_killed_at_random_instants_nothing_acknowledged_is_lost(
    make_system: MakeSystem, rounds: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = tmp_path / "probe"
    monkeypatch.setenv(PROBE, str(probe))
    launcher = (sys.executable, "-m", "tests.journeys.probed_placer")
    with make_system(placer_launcher=launcher) as system:
        pool_id = system.add_pool(GPUS)
        for name in ("host1", "host2"):
            system.add_node(name, pool_id)
        system.wait_nodes(2)
        journal = Journal(tmp_path / "journal")
        fell = await kill_rounds(system, Load(system, pool_id, journal), probe, rounds(20, 200))
        await asyncio.to_thread(system.wait_api)
        print(f"\n{len(journal.created)} creates and {len(journal.released)} releases", fell)
        check_journal(system, journal)

        def settled() -> bool:
            rows = query(
                system.url, "SELECT count(*) AS n FROM reservations WHERE state IN"
                " ('placed', 'binding')",
            )  # fmt: skip
            return bool(rows[0]["n"] == 0)

        await asyncio.to_thread(wait_until, "holds bound after the last kill", settled)
        check_journal(system, journal)
        check_nothing_ran_twice(system)
        inside, between = fell["inside a transaction"], fell["between transactions"]
        assert inside >= (inside + between) / 3

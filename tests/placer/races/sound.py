"""Runs a race, and says what must be true after every round of it (spec 5.3, 7.2, 9.4)."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bcd.store.database import Row
from bcd.store.extend_holds import HOLD_MS
from tests.placer.races.arena import Arena
from tests.placer.races.table import Race
from tests.placer.records import (
    Beside,
    assert_hosts_hold,
    assert_no_overlap,
    assert_quota_adds_up,
    rows,
)

_LIVE = ("placed", "binding", "active")
_CHARGED = ("pending", *_LIVE)

# (state, event) -> the state that the event leaves; written down from the source text, not from
# the program's table. ``drafted`` is before the first event.
_STEPS: Mapping[tuple[str, str], str] = {
    ("drafted", "awaiting-confirmation"): "awaiting-confirmation",
    **{
        (before, event): state
        for before in ("drafted", "awaiting-confirmation")
        for event, state in (("placed", "placed"), ("pending", "pending"), ("queued", "queued"))
    },
    ("awaiting-confirmation", "expired"): "expired",
    ("awaiting-confirmation", "cancelled"): "cancelled",
    ("queued", "pending"): "pending",
    **{
        (before, event): event
        for before in ("queued", "pending")
        for event in ("placed", "cancelled")
    },
    ("placed", "binding"): "binding",
    ("placed", "cancelled"): "cancelled",
    ("placed", "repaired"): "placed",
    ("binding", "active"): "active",
    ("binding", "placed"): "placed",
    ("binding", "pending"): "pending",
    ("binding", "failed"): "failed",
    **{(state, "released"): "released" for state in (*_LIVE, "preempted")},
    **{(state, "preempted"): "preempted" for state in _LIVE},
    **{(state, "preempting"): state for state in ("binding", "active")},
    **{(state, "extended"): state for state in _LIVE},
    **{(state, "reassigned"): state for state in ("queued", "pending", *_LIVE)},
    **{(state, "binding-rejected"): state for state in (*_LIVE, "released", "cancelled")},
}


async def run(arena: Arena, race: Race, attempts: int) -> None:
    """Round after round until so many attempts were made; raises AssertionError at a wrong one."""
    await race.begin(arena)
    while arena.attempts < attempts:
        await race.round(arena)
        await arena.settle()
        await assert_sound(arena)
        await arena.clear()
        await assert_sound(arena)


async def assert_sound(arena: Arena) -> None:
    """Every rule that a finished round must have left whole; call when nothing is due."""
    database = arena.database
    Beside(arena.url).assert_nothing_is_open()
    await assert_no_overlap(database)
    await assert_hosts_hold(database)
    await assert_quota_adds_up(database)
    found = await rows(database, "SELECT * FROM reservations")
    await _assert_charged_as_asked(arena, found)
    await _assert_booked_whole(arena, found)
    await _assert_told_in_order(arena, found)
    await _assert_nothing_is_left(arena, found)
    assert arena.complaints.heard == []


async def _assert_charged_as_asked(arena: Arena, found: Sequence[Row]) -> None:
    charged: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in await rows(arena.database, "SELECT * FROM quota_charges"):
        assert row["resource"] not in charged[row["reservation_id"]]
        charged[row["reservation_id"]][row["resource"]] = row["amount"]
    for row in found:
        if row["kind"] == "reservation":
            wanted = _charges(row) if row["state"] in _CHARGED else Counter()
            assert charged[row["id"]] == wanted, (dict(row), charged[row["id"]])


def _charges(row: Row) -> Counter[str]:
    request = json.loads(row["request"])
    booked, share = json.loads(row["resources"]), json.loads(row["host_share"])
    amounts: Counter[str] = Counter()
    for ask in request["devices"]:
        amounts[ask["class"]] += ask["count"]
    for name, parts in (("vcpu", ("vcpu",)), ("memoryGiB", ("memoryGiB", "hugepages1Gi"))):
        amounts[name] = sum(booked.get(part, 0) - share.get(part, 0) for part in parts)
    size = _size(request)
    return Counter({name: amount * size for name, amount in amounts.items() if amount > 0})


def _size(request: Mapping[str, Any]) -> int:
    return int(request.get("gang", {}).get("size", 1))


async def _assert_booked_whole(arena: Arena, found: Sequence[Row]) -> None:
    """Of every live reservation all members on nodes of their own, of every other one none.

    What a workload may have run on stays booked for the pool's turnaround.
    """
    gap_ms = arena.turnaround_ms
    now_ms = arena.clock.read() + gap_ms
    members, devices, amounts = [
        await _by_reservation(arena, sql)
        for sql in (
            "SELECT * FROM allocations WHERE state <> 'ended'",
            f"SELECT * FROM bookings WHERE end_ms > {now_ms}",
            f"SELECT * FROM host_bookings WHERE end_ms > {now_ms}",
        )
    ]
    for row in found:
        mine, booked, given = (part[row["id"]] for part in (members, devices, amounts))
        if row["kind"] == "maintenance":
            assert not mine
            assert bool(booked) == (row["state"] in _LIVE), dict(row)
            continue
        if row["state"] not in _LIVE:
            assert not mine, dict(row)
            assert not booked, dict(row)
            assert not given, dict(row)
            continue
        request = json.loads(row["request"])
        count = sum(ask["count"] for ask in request["devices"])
        assert len({one["node_id"] for one in mine}) == len(mine) == _size(request), dict(row)
        of_member = Counter(one["allocation_id"] for one in booked)
        assert of_member == {one["id"]: count for one in mine}, dict(row)
        if any(json.loads(row["resources"]).values()):
            assert {one["allocation_id"] for one in given} == of_member.keys(), dict(row)
        for one in (*booked, *given):
            window = (row["start_ms"], row["end_ms"] + gap_ms)
            assert (one["start_ms"], one["end_ms"]) == window, dict(row)
        assert {one["until_ms"] for one in mine} == {row["end_ms"]}, dict(row)


async def _by_reservation(arena: Arena, sql: str) -> defaultdict[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in await rows(arena.database, sql):
        found[row["reservation_id"]].append(row)
    return found


async def _assert_told_in_order(arena: Arena, found: Sequence[Row]) -> None:
    """Each reservation's events are one path that ends in its state, each of them there once."""
    told: defaultdict[str, list[Row]] = defaultdict(list)
    published = await rows(arena.database, "SELECT * FROM events ORDER BY published_seq")
    assert [row["published_seq"] for row in published] == list(range(1, len(published) + 1))
    assert len({row["id"] for row in published}) == len(published)
    for row in published:
        told[row["subject"]].append(row)
    for row in found:
        state, ends = "drafted", [0]
        mine = told.pop(f"reservation/{row['id']}", [])
        for event in mine:
            name = event["type"].removeprefix("reservation.")
            assert (state, name) in _STEPS, (dict(row), [one["type"] for one in mine])
            state, data = _STEPS[state, name], json.loads(event["data"])
            if name == "extended":
                ends.append(data["end"])
        assert ends == sorted(set(ends)), ends
        state = {"drafted": row["state"], "queued": "pending"}.get(state, state)
        denied = (state, row["state"]) == ("awaiting-confirmation", "denied")
        assert state == row["state"] or denied, (dict(row), [one["type"] for one in mine])
        assert mine or row["state"] in ("draft", "denied"), dict(row)
    assert not [subject for subject in told if subject.startswith("reservation/")]


async def _assert_nothing_is_left(arena: Arena, found: Sequence[Row]) -> None:
    """Slots given back, claims finished, moments set, and nodes told what is theirs."""
    # One of a program that died is taken over when it is a minute old.
    recent = "SELECT * FROM extend_holds WHERE taken_ms > :ago"
    assert not await rows(arena.database, recent, ago=arena.clock.read() - HOLD_MS)
    queue = {row["key"]: row for row in await rows(arena.database, "SELECT * FROM work")}
    assert not [key for key, row in queue.items() if row["lock_token"] is not None]
    waits = ("awaiting-confirmation", *_LIVE)
    wanted = {row["id"] for row in found if row["state"] in waits}
    assert {key for key in queue if not key.startswith("pool_")} == wanted
    pools = {row["pool_id"] for row in found if row["state"] == "pending"}
    assert pools <= queue.keys()
    grants = await rows(
        arena.database,
        "SELECT * FROM allocations WHERE state IN ('assigned', 'bound', 'lost') ORDER BY id",
    )
    for node in arena.nodes:
        mine = [row["id"] for row in grants if row["node_id"] == node.id]
        assert sorted(await arena.world.assigned(node)) == mine

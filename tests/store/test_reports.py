"""Reports: kept once, as received, only for a node's own allocation on its own session."""

import asyncio
from dataclasses import dataclass, replace

from bcd.model.ids import AllocationId, NodeId
from bcd.store import reports, sessions
from bcd.store.database import Database, Transaction
from bcd.store.reports import COUNTED, Received
from tests.store.test_sessions import opening
from tests.store.world import make_allocation, make_draft, make_node, make_pool, new_id


@dataclass(frozen=True, slots=True)
class Reporter:
    """A node with a session and an allocation."""

    node_id: NodeId
    epoch: int
    allocation_id: AllocationId

    def report(self, number: int, key_id: str = "key") -> Received:
        return Received(
            node_id=self.node_id,
            key_id=key_id,
            number=number,
            allocation_id=self.allocation_id,
            envelope=b"envelope %d" % number,
        )


def make_reporters(tx: Transaction, count: int = 1) -> list[Reporter]:
    pool_id = make_pool(tx)
    found = []
    for _ in range(count):
        node_id = make_node(tx, pool_id)
        epoch = sessions.open_session(tx, opening(node_id))
        allocation_id = make_allocation(tx, make_draft(tx, pool_id), node_id)
        found.append(Reporter(node_id, epoch, allocation_id))
    return found


async def test_a_report_is_kept_as_received(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    assert await database.write(reports.store, node.epoch, node.report(3)) == "stored"
    assert list(await database.read(reports.nodes_with_unjudged)) == [node.node_id]
    (stored,) = await database.write(reports.unjudged, node.node_id, 10)
    assert (stored.number, stored.key_id, stored.envelope) == (3, "key", b"envelope 3")
    assert stored.allocation_id == node.allocation_id
    assert stored.verdict is None


async def test_the_same_report_again_is_acknowledged_and_kept_once(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    answers = await asyncio.gather(
        *(database.write(reports.store, node.epoch, node.report(1)) for _ in range(5))
    )
    assert answers == ["stored"] * 5
    (stored,) = await database.write(reports.unjudged, node.node_id, 10)
    await database.write(reports.judge, stored.id, COUNTED)
    assert await database.write(reports.store, node.epoch, node.report(1)) == "stored"
    assert list(await database.write(reports.unjudged, node.node_id, 10)) == []


async def test_another_body_under_a_stored_number_is_kept_beside_it(database: Database) -> None:
    """Else whoever is first under a number could keep the genuine report out."""
    (node,) = await database.write(make_reporters)
    await database.write(reports.store, node.epoch, node.report(1))
    other = replace(node.report(1), envelope=b"other")
    assert await database.write(reports.store, node.epoch, other) == "stored"
    stored = await database.write(reports.unjudged, node.node_id, 10)
    assert [report.envelope for report in stored] == [b"envelope 1", b"other"]


async def test_a_fenced_session_stores_no_report(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    await database.write(sessions.open_session, opening(node.node_id, "two"))
    assert await database.write(reports.store, node.epoch, node.report(1)) == "fenced"
    assert list(await database.read(reports.nodes_with_unjudged)) == []


async def test_a_report_about_a_foreign_or_unknown_allocation_is_dropped(
    database: Database,
) -> None:
    one, two = await database.write(make_reporters, 2)
    for allocation_id in (two.allocation_id, AllocationId(new_id("alloc"))):
        foreign = replace(one.report(1), allocation_id=allocation_id)
        assert await database.write(reports.store, one.epoch, foreign) == "unknown-allocation"
    assert list(await database.read(reports.nodes_with_unjudged)) == []


async def test_reports_are_judged_in_the_order_of_their_numbers(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    for number in (5, 1, 3):
        await database.write(reports.store, node.epoch, node.report(number))
    unjudged = await database.write(reports.unjudged, node.node_id, 2)
    assert [report.number for report in unjudged] == [1, 3]


async def test_a_judged_report_waits_until_it_is_taken_in(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    for number in (1, 2):
        await database.write(reports.store, node.epoch, node.report(number))
    assert list(await database.read(reports.unapplied, [node.allocation_id], 0, 10)) == []
    for report, verdict in zip(
        await database.write(reports.unjudged, node.node_id, 10),
        (COUNTED, "replayed"),
        strict=True,
    ):
        await database.write(reports.judge, report.id, verdict)
    waiting = await database.read(reports.unapplied, [node.allocation_id], 0, 10)
    assert [(report.number, report.verdict) for report in waiting] == [
        (1, COUNTED),
        (2, "replayed"),
    ]
    await database.write(reports.applied, [waiting[0].id], 5)
    waiting = await database.read(reports.unapplied, [node.allocation_id], 0, 10)
    assert [report.number for report in waiting] == [2]


async def test_the_highest_number_is_kept_for_each_node_and_key(database: Database) -> None:
    one, two = await database.write(make_reporters, 2)
    await database.write(reports.raise_number, one.node_id, "key", 5)
    await database.write(reports.raise_number, one.node_id, "new key", 1)
    await database.write(reports.raise_number, one.node_id, "key", 6)

    def highest(tx: Transaction) -> list[int]:
        asked = [(one, "key"), (one, "new key"), (two, "key")]
        return [reports.highest_number(tx, node.node_id, key) for node, key in asked]

    assert await database.read(highest) == [6, 1, 0]


async def test_only_judged_reports_are_pruned(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    for number in (1, 2):
        await database.write(reports.store, node.epoch, node.report(number))
    first, _ = await database.write(reports.unjudged, node.node_id, 10)
    await database.write(reports.judge, first.id, COUNTED)
    assert await database.write(reports.prune, 1 << 50) == 1
    (left,) = await database.write(reports.unjudged, node.node_id, 10)
    assert left.number == 2


async def test_a_rejected_report_keeps_no_envelope_and_is_still_known(database: Database) -> None:
    (node,) = await database.write(make_reporters)
    for number in (1, 2):
        await database.write(reports.store, node.epoch, node.report(number))
    first, second = await database.write(reports.unjudged, node.node_id, 10)
    await database.write(reports.judge, first.id, "bad signature")
    await database.write(reports.judge, second.id, COUNTED)
    found = await database.read(reports.unapplied, [node.allocation_id], 0, 10)
    assert [report.envelope for report in found] == [b"", b"envelope 2"]
    assert await database.read(reports.envelope, second.id) == b"envelope 2"
    assert await database.write(reports.store, node.epoch, node.report(1)) == "stored"
    assert list(await database.write(reports.unjudged, node.node_id, 10)) == []


async def test_reports_to_take_in_come_in_pages_over_all_allocations(database: Database) -> None:
    one, two = await database.write(make_reporters, 2)
    for number in range(5):
        for node in (one, two):
            await database.write(reports.store, node.epoch, node.report(number))
    for node in (one, two):
        for report in await database.write(reports.unjudged, node.node_id, 10):
            await database.write(reports.judge, report.id, COUNTED)
    both, seen = [one.allocation_id, two.allocation_id], [0]
    while page := await database.read(reports.unapplied, both, seen[-1], 3):
        assert len(page) <= 3
        seen += [report.id for report in page]
    assert len(seen) == len(set(seen)) == 11
    assert seen == sorted(seen)


async def test_reports_of_a_node_find_no_room_until_earlier_ones_are_judged(
    database: Database,
) -> None:
    one, two = await database.write(make_reporters, 2)

    def fill(tx: Transaction) -> set[str]:
        numbers = range(reports.MAX_UNJUDGED)
        return {reports.store(tx, one.epoch, one.report(number)) for number in numbers}

    assert await database.write(fill) == {"stored"}
    late = one.report(reports.MAX_UNJUDGED)
    assert await database.write(reports.store, one.epoch, late) == "no-room"
    assert await database.write(reports.store, two.epoch, two.report(1)) == "stored"
    (first,) = await database.write(reports.unjudged, one.node_id, 1)
    await database.write(reports.judge, first.id, "unsigned report")
    assert await database.write(reports.store, one.epoch, late) == "stored"

"""Reports on their way up: stored as received, acknowledged after the commit, never judged."""

import uuid
from dataclasses import dataclass, replace

import pytest

from bcd.gateway.reports import read_report
from bcd.gateway.server import Gateway
from bcd.model.ids import AllocationId, NodeId
from bcd.model.report import Bound, Released, Report
from bcd.signing import keys
from bcd.signing.envelope import PayloadType, seal
from bcd.store import reports
from bcd.store.database import Transaction
from bcd.store.reports import Received, StoredReport
from bcd.wire import bounds
from bcd.wire.node.v1 import envelope_pb2
from bcd.wire.node.v1 import gateway_pb2 as pb
from bcd.wire.report import encode_report
from tests.gateway.conftest import Connect, Site
from tests.gateway.node import TestNode
from tests.store.world import make_allocation, make_draft, new_id

KEY = keys.generate_key()
STORED = pb.REPORT_ACK_STATUS_STORED
IGNORED = pb.REPORT_ACK_STATUS_IGNORED
REJECTED = pb.REPORT_ACK_STATUS_REJECTED


@dataclass(frozen=True, slots=True)
class Holder:
    """A connected node with an allocation."""

    node: TestNode
    allocation_id: AllocationId

    def report(self, number: int) -> Report:
        return Report(
            node_id=self.node.node_id,
            number=number,
            boot_id="boot",
            allocation_id=self.allocation_id,
            signed_at_ms=1,
            outcome=Bound(("bcd.dev/gpu=GPU-0",), "/run/bcd/allocations/x.env"),
        )

    async def send(self, envelope: envelope_pb2.Envelope) -> None:
        await self.node.send(pb.ConnectRequest(report=envelope))

    async def answer(self, envelope: envelope_pb2.Envelope) -> pb.ReportAck:
        """Send a report and take its acknowledgement."""
        await self.send(envelope)
        ack: pb.ReportAck = await self.node.receive_kind("report_ack")
        return ack


def sealed(report: Report) -> envelope_pb2.Envelope:
    return seal(KEY, PayloadType.ATTESTED_REPORT, encode_report(report))


async def allocation_of(site: Site, node_id: NodeId) -> AllocationId:
    return await site.database.write(
        lambda tx: make_allocation(tx, make_draft(tx, site.pool_id), node_id)
    )


@pytest.fixture
async def holder(new_node: Connect, site: Site) -> Holder:
    node = await new_node()
    await node.welcome()
    return Holder(node, await allocation_of(site, node.node_id))


async def on_record(site: Site, holder: Holder) -> list[StoredReport]:
    return list(await site.database.write(reports.unjudged, holder.node.node_id, 1000))


async def test_a_report_is_stored_as_received_and_then_acknowledged(
    holder: Holder, site: Site
) -> None:
    envelope = sealed(holder.report(5))
    received = envelope.SerializeToString() + bytes([0xF8, 0x3E, 0x01])  # from a newer daemon
    ack = await holder.answer(envelope_pb2.Envelope.FromString(received))
    assert (ack.key_id, ack.number, ack.status) == (envelope.key_id, 5, STORED)
    (stored,) = await on_record(site, holder)
    assert stored.envelope == received
    assert (stored.number, stored.key_id) == (5, envelope.key_id)
    assert stored.allocation_id == holder.allocation_id


async def test_an_acknowledged_report_is_committed(holder: Holder, site: Site) -> None:
    for number in range(1, 6):
        await holder.answer(sealed(holder.report(number)))
        assert len(await on_record(site, holder)) == number


async def test_the_same_report_again_is_acknowledged_and_kept_once(
    holder: Holder, site: Site
) -> None:
    envelope = sealed(holder.report(5))
    for _ in range(3):
        assert (await holder.answer(envelope)).status == STORED
    assert len(await on_record(site, holder)) == 1


async def test_a_burst_of_reports_is_acknowledged_in_order(holder: Holder, site: Site) -> None:
    numbers = list(range(1, 101))
    for number in numbers:
        await holder.send(sealed(holder.report(number)))
    acks = [await holder.node.receive_kind("report_ack") for _ in numbers]
    assert [ack.number for ack in acks] == numbers
    assert {ack.status for ack in acks} == {STORED}
    assert [report.number for report in await on_record(site, holder)] == numbers


async def test_unsigned_and_badly_signed_reports_are_stored_for_the_placer_to_judge(
    holder: Holder, site: Site
) -> None:
    signed = sealed(holder.report(1))
    unsigned = envelope_pb2.Envelope(payload=signed.payload)
    forged = envelope_pb2.Envelope()
    forged.CopyFrom(signed)
    forged.signature = b"forged"
    other_purpose = seal(KEY, PayloadType.RENEWAL, encode_report(holder.report(2)))
    for envelope in (unsigned, forged, other_purpose):
        ack = await holder.answer(envelope)
        assert ack.status == STORED
    assert len(await on_record(site, holder)) == 3


async def test_a_report_that_names_another_node_is_stored_for_the_placer_to_judge(
    holder: Holder, site: Site
) -> None:
    report = replace(holder.report(1), node_id=NodeId(new_id("node")))
    assert (await holder.answer(sealed(report))).status == STORED


async def test_a_report_about_an_allocation_of_another_node_is_ignored(
    holder: Holder, site: Site
) -> None:
    other_node, _ = await site.add_node()
    foreign = await allocation_of(site, other_node)
    unknown = AllocationId(new_id("alloc"))
    for number, allocation_id in enumerate((foreign, unknown), 1):
        report = replace(holder.report(number), allocation_id=allocation_id)
        ack = await holder.answer(sealed(report))
        assert (ack.number, ack.status) == (number, IGNORED)
        assert "no such allocation" in ack.reason
    assert await on_record(site, holder) == []


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"allocation_id": AllocationId("../../etc/passwd")}, 7),
        ({"allocation_id": AllocationId("alloc_\n")}, 7),
        ({"boot_id": "b" * 1000}, 7),
        ({"boot_id": "nul\0"}, 7),
        ({"outcome": Bound(("x",) * 2000, "")}, 7),
    ],
)
async def test_a_report_that_cannot_be_filed_is_rejected_with_the_reason(
    holder: Holder, site: Site, change: dict[str, object], number: int
) -> None:
    ack = await holder.answer(sealed(replace(holder.report(number), **change)))  # type: ignore[arg-type]
    assert (ack.number, ack.status) == (number, REJECTED)
    assert ack.reason
    assert await on_record(site, holder) == []


async def test_rubbish_is_rejected_and_the_session_goes_on(holder: Holder, site: Site) -> None:
    huge_number = encode_report(holder.report((1 << 64) - 1))
    for envelope in (
        envelope_pb2.Envelope(),
        envelope_pb2.Envelope(payload=b"\xff\xff"),
        envelope_pb2.Envelope(payload=b"\0" * 100_000),
        envelope_pb2.Envelope(payload=huge_number),
        envelope_pb2.Envelope(payload=encode_report(holder.report(1)), key_id="k\0" * 10),
        envelope_pb2.Envelope(payload=encode_report(holder.report(1)), key_id="k" * 1000),
    ):
        assert (await holder.answer(envelope)).status == REJECTED
    assert (await holder.answer(sealed(holder.report(1)))).status == STORED


async def test_a_fenced_session_stores_nothing_and_ends(holder: Holder, site: Site) -> None:
    await site.database.write(
        lambda tx: tx.run("UPDATE sessions SET epoch = 9, process_instance = 'elsewhere'")
    )
    await holder.send(sealed(holder.report(1)))
    goaway = await holder.node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_SUPERSEDED
    assert goaway.process_instance == "elsewhere"
    assert await on_record(site, holder) == []


async def test_what_a_node_sent_before_its_goodbye_is_stored(holder: Holder, site: Site) -> None:
    for number in range(1, 11):
        await holder.send(sealed(holder.report(number)))
    await holder.node.send(pb.ConnectRequest(goodbye=pb.Goodbye(reason="stopping")))
    acks = [await holder.node.receive_kind("report_ack") for _ in range(10)]
    assert [ack.number for ack in acks] == list(range(1, 11))
    await holder.node.ended()
    assert len(await on_record(site, holder)) == 10


async def test_outcomes_of_every_kind_are_stored(holder: Holder, site: Site) -> None:
    report = replace(holder.report(2), outcome=Released(slice_empty=False))
    assert (await holder.answer(sealed(report))).status == STORED


async def test_a_report_over_the_bound_is_rejected_by_its_number(
    holder: Holder, site: Site
) -> None:
    large = sealed(holder.report(3))
    large.signature += b"x" * bounds.MAX_REPORT_BYTES
    ack = await holder.answer(large)
    assert (ack.number, ack.key_id, ack.status) == (3, large.key_id, REJECTED)
    assert "larger than" in ack.reason
    assert await on_record(site, holder) == []


async def test_the_largest_report_that_a_daemon_makes_is_stored(holder: Holder) -> None:
    names = tuple(f"bcd.dev/gpu.mig=MIG-{uuid.uuid4()}" for _ in range(bounds.MAX_DEVICES))
    largest = replace(holder.report(1), outcome=Bound(names, "/run/bcd/allocations/x.env"))
    assert (await holder.answer(sealed(largest))).status == STORED


async def test_a_report_without_room_ends_the_session_and_none_after_it_is_stored(
    holder: Holder, site: Site, gateway: Gateway
) -> None:
    """A later one with a higher number would make replays of those that found no room."""

    def fill(tx: Transaction) -> None:
        for number in range(reports.MAX_UNJUDGED):
            received = read_report(holder.node.node_id, sealed(holder.report(number)))
            assert isinstance(received, Received)
            assert reports.store(tx, holder.node.epoch, received) == "stored"

    await site.database.write(fill)
    await holder.send(sealed(holder.report(2_000)))
    goaway = await holder.node.goaway()
    assert goaway.reason == pb.GOAWAY_REASON_OVERLOADED
    assert "too many reports wait" in goaway.message
    assert goaway.retry_after_ms >= 1_000
    assert gateway.counters["sessions_without_room"] == 1
    rows = await site.database.read(
        lambda tx: tx.all("SELECT count(*) AS n, max(number) AS highest FROM reports")
    )
    assert dict(rows[0]) == {"n": reports.MAX_UNJUDGED, "highest": reports.MAX_UNJUDGED - 1}

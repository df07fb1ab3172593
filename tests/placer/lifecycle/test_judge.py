"""Reports through a gateway that was taken over: none of its own making counts."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome, Rejection, Released, Report
from bcd.model.reservation import Reservation, State
from bcd.placer.lifecycle.judge import judge_node
from bcd.placer.lifecycle.reconcile import Reconciler
from bcd.signing.certificates import Role
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keys import generate_key
from bcd.store import certificates, reports
from bcd.store.allocations import Allocation
from bcd.store.work import Claim
from bcd.wire.node.v1 import envelope_pb2 as pb
from bcd.wire.node.v1 import report_pb2
from tests.placer.hostile import (
    DAY_MS,
    HostileGateway,
    another_key,
    claiming,
    renumbered,
    sealed,
)
from tests.placer.world import FakeNode, World, bound, dgx


@dataclass
class Scene:
    """A reservation whose node's gateway is hostile."""

    world: World
    node: FakeNode
    other: FakeNode
    gateway: HostileGateway
    reservation: Reservation
    allocation: Allocation

    @property
    def honest(self) -> Report:
        """What the node would report next."""
        return self.node.report(self.allocation)

    async def reasons(self) -> list[tuple[str, str, str]]:
        """(allocation, node, reason) of every rejection that was told of."""
        found = await self.world.events(self.reservation.id)
        return [
            (event.data["allocationId"], event.data["nodeId"], event.data["reason"])
            for event in found
            if event.type == "reservation.binding-rejected"
        ]

    async def view(self) -> Reservation:
        """The reservation now."""
        return await self.world.view(self.reservation.id)


@pytest.fixture
async def scene(world: World) -> Scene:
    node, other = await world.add_node(dgx("a", 4)), await world.add_node(dgx("b", 2))
    made = await world.create(3, duration="30d")
    await world.work()
    (allocation,) = await world.live(made.id)
    assert allocation.node_id == node.id
    return Scene(world, node, other, HostileGateway(world.database, node.id), made, allocation)


Forge = Callable[[Scene], Awaitable[pb.Envelope]]


async def unsigned(scene: Scene) -> pb.Envelope:
    envelope = sealed(scene.node.key, scene.honest)
    envelope.ClearField("signature")
    return envelope


async def without_key(scene: Scene) -> pb.Envelope:
    envelope = sealed(scene.node.key, scene.honest)
    envelope.ClearField("key_id")
    return envelope


async def foreign_key(scene: Scene) -> pb.Envelope:
    return sealed(generate_key(), scene.honest)


async def foreign_key_under_the_nodes_name(scene: Scene) -> pb.Envelope:
    return claiming(sealed(generate_key(), scene.honest), scene.node.key)


async def changed_payload(scene: Scene) -> pb.Envelope:
    envelope = sealed(scene.node.key, scene.honest)
    envelope.payload = sealed(scene.node.key, scene.honest).payload
    return envelope


async def garbled_signature(scene: Scene) -> pb.Envelope:
    envelope = sealed(scene.node.key, scene.honest)
    envelope.signature = b"\x30\x00" + envelope.signature
    return envelope


async def signature_for_a_renewal(scene: Scene) -> pb.Envelope:
    return sealed(scene.node.key, scene.honest, PayloadType.RENEWAL)


async def purpose_put_on_later(scene: Scene) -> pb.Envelope:
    envelope = sealed(scene.node.key, scene.honest, PayloadType.DESIRED_STATE)
    envelope.payload_type = PayloadType.ATTESTED_REPORT
    return envelope


async def another_nodes_key(scene: Scene) -> pb.Envelope:
    return sealed(scene.other.key, scene.honest)


async def another_nodes_report(scene: Scene) -> pb.Envelope:
    return sealed(scene.node.key, replace(scene.honest, node_id=scene.other.id))


async def a_gateways_certificate(scene: Scene) -> pb.Envelope:
    world = scene.world
    key = await another_key(world.database, world.authority, (Role.GATEWAY, scene.node.id))
    return sealed(key, scene.honest)


async def expired_beyond_the_grace(scene: Scene) -> pb.Envelope:
    world, subject = scene.world, (Role.NODE, scene.node.id)
    key = await another_key(world.database, world.authority, subject, 8 * DAY_MS)
    return sealed(key, scene.honest)


async def revoked(scene: Scene) -> pb.Envelope:
    await scene.world.database.write(certificates.revoke_subject, scene.node.id, "stolen")
    return sealed(scene.node.key, scene.honest)


async def another_allocation(scene: Scene) -> pb.Envelope:
    elsewhere = AllocationId("alloc_00000000000000000000000000")
    return sealed(scene.node.key, replace(scene.honest, allocation_id=elsewhere))


async def number_zero(scene: Scene) -> pb.Envelope:
    return sealed(scene.node.key, renumbered(scene.honest, 0))


async def no_outcome(scene: Scene) -> pb.Envelope:
    body = report_pb2.AttestedReport.FromString(sealed(scene.node.key, scene.honest).payload)
    body.ClearField("bound")
    return _signed(scene, body.SerializeToString())


async def no_report_at_all(scene: Scene) -> pb.Envelope:
    return _signed(scene, b"\xff\xff\xff")


async def number_beyond_the_database(scene: Scene) -> pb.Envelope:
    body = report_pb2.AttestedReport.FromString(sealed(scene.node.key, scene.honest).payload)
    body.number = (1 << 64) - 1
    return _signed(scene, body.SerializeToString())


def _signed(scene: Scene, payload: bytes) -> pb.Envelope:
    return seal(scene.node.key, PayloadType.ATTESTED_REPORT, payload)


def reporting(outcome: Callable[[Allocation], Outcome]) -> Forge:
    """The node's genuine signature over something else than what is booked."""

    async def forge(scene: Scene) -> pb.Envelope:
        report = scene.node.report(scene.allocation, outcome(scene.allocation))
        return sealed(scene.node.key, report)

    return forge


def named(*names: str) -> Callable[[Allocation], Outcome]:
    return lambda allocation: replace(bound(allocation), cdi_devices=names)


GPUS = tuple(f"bcd.dev/gpu=GPU-a-{i}" for i in range(3))

FORGED: dict[str, tuple[Forge, Rejection]] = {
    "unsigned": (unsigned, Rejection.UNSIGNED),
    "without a key": (without_key, Rejection.UNSIGNED),
    "a foreign key": (foreign_key, Rejection.UNKNOWN_KEY),
    "a foreign key under its name": (foreign_key_under_the_nodes_name, Rejection.BAD_SIGNATURE),
    "a changed payload": (changed_payload, Rejection.BAD_SIGNATURE),
    "a garbled signature": (garbled_signature, Rejection.BAD_SIGNATURE),
    "another purpose": (signature_for_a_renewal, Rejection.BAD_SIGNATURE),
    "another purpose relabelled": (purpose_put_on_later, Rejection.BAD_SIGNATURE),
    "another node's key": (another_nodes_key, Rejection.WRONG_NODE),
    "another node's report": (another_nodes_report, Rejection.WRONG_NODE),
    "a gateway's certificate": (a_gateways_certificate, Rejection.WRONG_ROLE),
    "expired beyond the grace": (expired_beyond_the_grace, Rejection.EXPIRED),
    "revoked": (revoked, Rejection.REVOKED),
    "number zero": (number_zero, Rejection.REPLAYED),
    "another allocation": (another_allocation, Rejection.NOT_THIS_ALLOCATION),
    "no outcome": (no_outcome, Rejection.NOT_THIS_ALLOCATION),
    "no report at all": (no_report_at_all, Rejection.NOT_THIS_ALLOCATION),
    "a number out of range": (number_beyond_the_database, Rejection.NOT_THIS_ALLOCATION),
    "fewer devices": (reporting(named(*GPUS[:2])), Rejection.NOT_THIS_ALLOCATION),
    "no devices": (reporting(named()), Rejection.NOT_THIS_ALLOCATION),
    "more devices": (
        reporting(named(*GPUS, "bcd.dev/gpu=GPU-a-3")),
        Rejection.NOT_THIS_ALLOCATION,
    ),
    "one device twice": (reporting(named(*GPUS, GPUS[0])), Rejection.NOT_THIS_ALLOCATION),
    "another device": (
        reporting(named(*GPUS[:2], "bcd.dev/gpu=GPU-a-3")),
        Rejection.NOT_THIS_ALLOCATION,
    ),
    "another class": (
        reporting(named(*GPUS[:2], "bcd.dev/gpu.slot=GPU-a-2")),
        Rejection.NOT_THIS_ALLOCATION,
    ),
    "another kind's name": (
        reporting(named(*(name.replace("bcd.dev", "nvidia.com") for name in GPUS))),
        Rejection.NOT_THIS_ALLOCATION,
    ),
    "another env file": (
        reporting(lambda a: replace(honest(a), env_file="/run/bcd/allocations/alloc_x.env")),
        Rejection.NOT_THIS_ALLOCATION,
    ),
    "no slice although CPUs are booked": (
        reporting(lambda a: replace(honest(a), cgroup_parent="")),
        Rejection.NOT_THIS_ALLOCATION,
    ),
    "another allocation's slice": (
        reporting(lambda a: replace(honest(a), cgroup_parent="bcd-alloc-alloc_x.slice")),
        Rejection.NOT_THIS_ALLOCATION,
    ),
}


def honest(allocation: Allocation) -> Bound:
    return bound(allocation)


@pytest.mark.parametrize(("forge", "reason"), FORGED.values(), ids=FORGED.keys())
async def test_a_forged_report_never_binds_and_is_told_of_with_its_reason(
    scene: Scene, forge: Forge, reason: Rejection
) -> None:
    await scene.gateway.relay(await forge(scene), scene.allocation.id)
    await scene.world.work()
    after = await scene.view()
    assert (after.state, after.bindings) == (State.BINDING, ())
    assert await scene.reasons() == [(scene.allocation.id, scene.node.id, reason.value)]


@pytest.mark.parametrize(("forge", "reason"), FORGED.values(), ids=FORGED.keys())
async def test_a_forged_report_of_an_active_binding_marks_it_lost_until_bound_again(
    scene: Scene, forge: Forge, reason: Rejection
) -> None:
    world = scene.world
    await world.bind(scene.node)
    assert (await scene.view()).state is State.ACTIVE
    await scene.gateway.relay(await forge(scene), scene.allocation.id)
    await world.work()
    lost = await scene.view()
    assert lost.state is State.ACTIVE
    assert [(c.type, c.reason) for c in lost.conditions] == [("Degraded", "BindingLost")]
    assert await scene.reasons() == [(scene.allocation.id, scene.node.id, reason.value)]
    if reason is Rejection.REVOKED:
        return
    await world.bind(scene.node)
    again = await scene.view()
    assert (again.state, again.conditions) == (State.ACTIVE, ())
    assert again.bindings[0].cdi_devices == GPUS


@pytest.mark.parametrize(
    "frame", [b"", b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x00" * 64, b"x" * (1 << 20)], ids=len
)
async def test_bytes_that_are_no_envelope_are_an_unsigned_report(
    scene: Scene, frame: bytes
) -> None:
    await scene.gateway.write(frame, scene.allocation.id, "some key")
    await scene.world.work()
    assert (await scene.view()).state is State.BINDING
    assert [reason for *_, reason in await scene.reasons()] == ["unsigned report"]


async def test_devices_may_be_named_in_any_order(scene: Scene) -> None:
    await scene.gateway.relay(await reporting(named(*reversed(GPUS)))(scene), scene.allocation.id)
    await scene.world.work()
    assert (await scene.view()).state is State.ACTIVE


async def test_the_signed_body_is_what_is_shown_whatever_the_row_says(scene: Scene) -> None:
    envelope = sealed(scene.node.key, scene.honest)
    await scene.gateway.relay(envelope, scene.allocation.id, number=77)
    await scene.world.work()
    (binding,) = (await scene.view()).bindings
    assert binding.attested
    assert binding.cdi_devices == GPUS
    assert binding.env_file == f"/run/bcd/allocations/{scene.allocation.id}.env"
    (row,) = await scene.world.rows(
        "SELECT bound_report, bound_sig_kid, bound_sig FROM allocations WHERE state = 'bound'"
    )
    assert bytes(row["bound_report"]) == envelope.SerializeToString()
    assert row["bound_sig_kid"] == envelope.key_id
    assert bytes(row["bound_sig"]) == envelope.signature


async def test_a_row_under_another_key_than_its_envelopes_does_not_count(scene: Scene) -> None:
    envelope = sealed(scene.node.key, scene.honest)
    await scene.gateway.write(envelope.SerializeToString(), scene.allocation.id, "another key")
    await scene.world.work()
    assert (await scene.view()).state is State.BINDING
    assert [reason for *_, reason in await scene.reasons()] == ["unknown key"]


async def test_a_certificate_within_the_offline_grace_still_vouches(scene: Scene) -> None:
    world, subject = scene.world, (Role.NODE, scene.node.id)
    key = await another_key(world.database, world.authority, subject, 7 * DAY_MS)
    await scene.gateway.relay(sealed(key, scene.honest), scene.allocation.id)
    await world.work()
    assert (await scene.view()).state is State.ACTIVE


# Replays and orders


async def test_an_older_report_is_a_replay(scene: Scene) -> None:
    world = scene.world
    old = sealed(scene.node.key, scene.honest)
    newer = sealed(scene.node.key, scene.honest)
    await scene.gateway.relay(newer, scene.allocation.id)
    await world.work()
    assert (await scene.view()).state is State.ACTIVE
    for replayed in (old, newer):
        await scene.gateway.relay(replayed, scene.allocation.id)
        await world.work()
    assert [reason for *_, reason in await scene.reasons()] == ["replayed", "replayed"]
    assert [c.reason for c in (await scene.view()).conditions] == ["BindingLost"]


async def test_a_binding_cannot_be_brought_back_by_replaying_its_report(scene: Scene) -> None:
    world = scene.world
    first = sealed(scene.node.key, scene.honest)
    await scene.gateway.relay(first, scene.allocation.id)
    await world.work()
    gone = scene.node.report(scene.allocation, Released(slice_empty=True))
    await scene.gateway.relay(sealed(scene.node.key, gone), scene.allocation.id)
    await world.work()
    await scene.gateway.relay(first, scene.allocation.id)
    await world.work()
    assert [c.reason for c in (await scene.view()).conditions] == ["BindingLost"]


@pytest.mark.parametrize("number", [2, 5_000], ids=["first", "last"])
async def test_reports_count_in_the_order_in_which_the_node_signed_them(
    scene: Scene, number: int
) -> None:
    """A gateway that holds back the older report and numbers its rows as it likes."""
    world = scene.world
    await world.bind(scene.node)
    lost = scene.node.report(scene.allocation, Released(slice_empty=True))
    again = scene.node.report(scene.allocation)
    gone = scene.node.report(scene.allocation, Released(slice_empty=True))
    for report, row in ((gone, 3_000), (lost, 2_000), (again, number)):
        await scene.gateway.relay(sealed(scene.node.key, report), scene.allocation.id, row)
    await world.work()
    assert [c.reason for c in (await scene.view()).conditions] == ["BindingLost"]


async def test_numbers_grow_for_each_key_by_itself(scene: Scene) -> None:
    world, subject = scene.world, (Role.NODE, scene.node.id)
    high = renumbered(scene.honest, 1 << 40)
    await scene.gateway.relay(sealed(scene.node.key, high), scene.allocation.id)
    await world.work()
    renewed = await another_key(world.database, world.authority, subject)
    low = replace(scene.honest, number=1, outcome=Released(slice_empty=True))
    await scene.gateway.relay(sealed(renewed, low), scene.allocation.id)
    await world.work()
    assert await scene.reasons() == []
    assert [c.reason for c in (await scene.view()).conditions] == ["BindingLost"]


async def test_a_rejected_report_does_not_use_up_its_number(scene: Scene) -> None:
    report = scene.honest
    forged = claiming(sealed(generate_key(), renumbered(report, 1 << 50)), scene.node.key)
    await scene.gateway.relay(forged, scene.allocation.id)
    await scene.gateway.relay(sealed(scene.node.key, report), scene.allocation.id)
    await scene.world.work()
    assert (await scene.view()).state is State.ACTIVE


async def test_forged_failures_and_releases_do_not_place_again(scene: Scene) -> None:
    for outcome in (Failed("device-unhealthy"), Released(slice_empty=True)):
        report = scene.node.report(scene.allocation, outcome)
        await scene.gateway.relay(sealed(generate_key(), report), scene.allocation.id)
    await scene.world.work()
    assert await scene.world.live(scene.reservation.id) == [scene.allocation]
    (row,) = await scene.world.rows("SELECT attempts FROM reservations")
    assert row["attempts"] == 0


# What is not about the reporting node


async def test_a_report_about_another_nodes_allocation_is_ignored(scene: Scene) -> None:
    world = scene.world
    report = replace(scene.other.report(scene.allocation), node_id=scene.other.id)
    envelope = sealed(scene.other.key, report)
    assert await world.send(scene.other, envelope, scene.allocation.id) == "unknown-allocation"
    await HostileGateway(world.database, scene.other.id).relay(envelope, scene.allocation.id)
    await world.work()
    assert (await scene.view()).state is State.BINDING
    assert await scene.reasons() == []
    (row,) = await world.rows("SELECT verdict FROM reports")
    assert row["verdict"] == Rejection.NOT_THIS_ALLOCATION


async def test_a_report_about_an_allocation_that_ended_moves_nothing(scene: Scene) -> None:
    world = scene.world
    failed = scene.node.report(scene.allocation, Failed("device-busy"))
    await scene.gateway.relay(sealed(scene.node.key, failed), scene.allocation.id)
    await world.work()
    (second,) = await world.live(scene.reservation.id)
    assert second.id != scene.allocation.id
    late = scene.node.report(scene.allocation)
    await scene.gateway.relay(sealed(scene.node.key, late), scene.allocation.id)
    await world.work()
    assert (await scene.view()).state is State.BINDING
    assert await world.live(scene.reservation.id) == [second]


async def test_one_hundred_reports_are_all_judged_in_order(scene: Scene) -> None:
    for _ in range(50):
        for outcome in (None, Released(slice_empty=True)):
            report = scene.node.report(scene.allocation, outcome)
            await scene.gateway.relay(
                sealed(scene.node.key, report), scene.allocation.id, report.number
            )
    last = sealed(scene.node.key, scene.honest)
    await scene.gateway.relay(last, scene.allocation.id)
    await scene.world.work()
    assert await scene.world.rows("SELECT id FROM reports WHERE verdict <> 'counted'") == []
    after = await scene.view()
    assert (after.state, after.conditions) == (State.ACTIVE, ())


async def test_a_rejection_is_one_line_for_operators(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old = sealed(scene.node.key, scene.honest)
    await scene.gateway.relay(await unsigned(scene), scene.allocation.id)
    await scene.world.bind(scene.node)
    await scene.gateway.relay(old, scene.allocation.id)
    await scene.world.work()
    lines = [vars(r) for r in caplog.records if r.getMessage() == "report rejected"]
    assert [(line["levelname"], line["reason"]) for line in lines] == [
        ("WARNING", "unsigned report"),
        ("INFO", "replayed"),
    ]
    for line in lines:
        assert line["node_id"] == scene.node.id
        assert line["allocation_id"] == scene.allocation.id
        assert line["reservation_id"] == scene.reservation.id


async def test_a_flood_of_rejected_reports_does_not_flood_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(200):
        await scene.gateway.relay(await unsigned(scene), scene.allocation.id)
    await scene.world.work()
    assert len(await scene.reasons()) == 200
    lines = [r for r in caplog.records if r.getMessage() == "report rejected"]
    assert 1 <= len(lines) <= 10


async def test_reports_in_any_number_count_in_the_order_in_which_they_were_signed(
    scene: Scene,
) -> None:
    """They are read in pages by their rows, which a hostile gateway wrote the other way round."""
    released = [scene.node.report(scene.allocation, Released(slice_empty=True)) for _ in range(149)]
    for report in reversed([*released, scene.honest]):
        envelope = sealed(scene.node.key, report)
        await scene.gateway.relay(envelope, scene.allocation.id, report.number)
    world, claims, judged = scene.world, list[Claim](), 1
    while judged:
        batch = await world.database.write(judge_node, scene.node.id)
        judged = batch.count
        claims += batch.claims
    reconciler = Reconciler(world.placements, world.signer)
    await world.database.write(reconciler.reconcile, claims[-1])
    after = await scene.view()
    assert (after.state, after.conditions) == (State.ACTIVE, ())
    assert await scene.world.rows("SELECT id FROM reports WHERE applied_ms IS NULL") == []


async def test_a_node_whose_reports_cannot_be_judged_does_not_stop_the_others(
    scene: Scene,
) -> None:
    """A certificate on record that cannot be read stands for whatever breaks."""
    world = scene.world
    second = await world.create(2, key="second")
    await world.work()
    held = {scene.node.id: scene.reservation, scene.other.id: second}
    broken, sound = sorted((scene.node, scene.other), key=lambda node: node.id)
    await world.database.write(
        lambda tx: tx.run(
            "UPDATE certificates SET der = :der WHERE subject_id = :id", der=b"x", id=broken.id
        )
    )
    await world.bind(broken, sound)
    assert (await world.view(held[sound.id].id)).state is State.ACTIVE
    assert (await world.view(held[broken.id].id)).state is State.BINDING


async def test_what_was_judged_stays_judged(scene: Scene) -> None:
    await scene.world.bind(scene.node)
    before = await scene.world.rows("SELECT * FROM reports")
    await scene.world.work()
    assert await scene.world.database.read(reports.nodes_with_unjudged) == []
    assert await scene.world.rows("SELECT * FROM reports") == before


async def test_nobody_can_squat_on_the_number_of_a_genuine_report(scene: Scene) -> None:
    report = scene.honest
    squatter = claiming(sealed(generate_key(), report), scene.node.key)
    await scene.gateway.relay(squatter, scene.allocation.id, report.number)
    sent = await scene.world.send(scene.node, sealed(scene.node.key, report), scene.allocation.id)
    assert sent == "stored"
    await scene.world.work()
    assert (await scene.view()).state is State.ACTIVE

"""Over the wire: renew, extend and reassign (spec 14, 15.1)."""

from typing import Any

import pytest

from bcd.model.errors import Reason
from bcd.placer.lifecycle.reassign import Handover, reassign
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.placer.api.conftest import Client, Site, is_refusal
from tests.placer.world import TENANT, dgx

HOUR_MS = 3_600_000


async def placed(site: Site, alice: Client, key: str = "k", **changes: Any) -> pb.Reservation:
    """A reservation for an hour from tomorrow on."""
    await site.world.add_node(dgx(key, 1))
    return await alice.create(key, start=site.clock.read() + 24 * HOUR_MS, **changes)


def extension(made: pb.Reservation, **longer: object) -> pb.ExtendReservationRequest:
    return pb.ExtendReservationRequest(
        **{"tenant_id": TENANT, "reservation_id": made.id, "idempotency_key": "e"} | longer  # type: ignore[arg-type]
    )


async def test_a_start_a_lease_and_their_moments_are_shown(site: Site, alice: Client) -> None:
    made = await placed(site, alice, lease_seconds=600, spot=True)
    assert made.during.start == made.request.start
    assert (made.request.lease_seconds, made.request.spot) == (600, True)
    renewal = pb.RenewReservationRequest(tenant_id=TENANT, reservation_id=made.id)
    renewed = (await alice.call(alice.reservations.RenewReservation, renewal)).reservation
    assert renewed.lease_until >= made.lease_until > 0
    assert renewed.during == made.during


async def test_an_extension_answers_with_the_reservation_or_with_what_is_in_the_way(
    site: Site, alice: Client
) -> None:
    extend = alice.reservations.ExtendReservation
    made = await placed(site, alice)
    answer = await alice.call(extend, extension(made, by="1h30m"))
    assert (answer.extended, answer.HasField("available_until")) == (True, False)
    end = made.during.end + 90 * 60_000
    assert answer.reservation.during.end == end
    reached = await alice.call(extend, extension(made, until=end))
    assert (reached.extended, reached.HasField("available_until")) == (False, False)
    await alice.create("next", start=end + HOUR_MS)
    blocked = await alice.call(extend, extension(made, by="2h"))
    assert (blocked.extended, blocked.available_until) == (False, end + HOUR_MS)


@pytest.mark.parametrize(
    ("longer", "field"),
    [
        ({}, "until"),
        ({"until": 1, "by": "1h"}, "until"),
        ({"by": "soon"}, "by"),
        ({"by": ""}, "by"),
        ({"until": -1}, "until"),
        ({"until": 1 << 62}, "until"),
        ({"by": "1h", "idempotency_key": ""}, "idempotencyKey"),
    ],
)
async def test_what_no_extension_can_be_names_its_field(
    alice: Client, longer: dict[str, object], field: str
) -> None:
    made = await alice.create()
    refused = await alice.refused(alice.reservations.ExtendReservation, extension(made, **longer))
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_a_pending_one_is_neither_renewed_nor_extended(alice: Client) -> None:
    made = await alice.create(lease_seconds=60)
    assert not made.HasField("lease_until")
    extend = await alice.refused(alice.reservations.ExtendReservation, extension(made, by="1h"))
    assert is_refusal(extend, Reason.INVALID_STATE, state="pending")
    renewal = pb.RenewReservationRequest(tenant_id=TENANT, reservation_id=made.id)
    renew = await alice.refused(alice.reservations.RenewReservation, renewal)
    assert is_refusal(renew, Reason.INVALID_STATE, state="pending")


async def test_strangers_learn_of_nothing(site: Site, alice: Client, stranger: Client) -> None:
    made = await placed(site, alice)
    for tenant in (TENANT, "other"):
        extend = extension(made, by="1h", tenant_id=tenant)
        refused = await stranger.refused(stranger.reservations.ExtendReservation, extend)
        assert is_refusal(refused, Reason.NOT_FOUND, reservationId=made.id)
        renewal = pb.RenewReservationRequest(tenant_id=tenant, reservation_id=made.id)
        refused = await stranger.refused(stranger.reservations.RenewReservation, renewal)
        assert is_refusal(refused, Reason.NOT_FOUND, reservationId=made.id)


async def test_only_administrators_hand_over_and_only_what_lives(
    site: Site, alice: Client, admin: Client
) -> None:
    made = [await placed(site, alice, key) for key in ("a", "b", "c")]
    over = pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=made[2].id)
    await alice.call(alice.reservations.ReleaseReservation, over)
    handover = pb.ReassignReservationsRequest(
        tenant_id=TENANT, from_owner=made[0].owner_identity_id, to_owner="i|bob", reason="left"
    )
    refused = await alice.refused(alice.reservations.ReassignReservations, handover)
    assert is_refusal(refused, Reason.ACCESS_DENIED)
    hand_over = admin.reservations.ReassignReservations
    assert (await admin.call(hand_over, handover)).reassigned == 2
    assert (await admin.call(hand_over, handover)).reassigned == 0
    listing = pb.ListReservationsRequest(tenant_id=TENANT, scope="all")
    listed = (await alice.call(alice.reservations.ListReservations, listing)).reservations
    owners = {one.id: one.owner_identity_id for one in listed}
    assert [owners[one.id] for one in made] == ["i|bob", "i|bob", made[2].owner_identity_id]
    told = (await site.world.events(made[0].id))[-1]  # type: ignore[arg-type]
    assert told.type == "reservation.reassigned"
    assert {key: told.data[key] for key in ("reservationId", "from", "to", "reason")} == {
        "reservationId": made[0].id,
        "from": made[0].owner_identity_id,
        "to": "i|bob",
        "reason": "left",
    }
    handover.to_owner = handover.from_owner
    assert is_refusal(
        await admin.refused(hand_over, handover), Reason.INVALID_INPUT, field="toOwner"
    )


@pytest.mark.parametrize("nobody", ["alice", "alice|", "|alice", "|"])
async def test_nothing_is_handed_to_an_owner_whom_nobody_can_be(
    site: Site, alice: Client, admin: Client, nobody: str
) -> None:
    made = await placed(site, alice)
    owner = made.owner_identity_id
    hand_over = admin.reservations.ReassignReservations
    for field, ends in (("toOwner", (owner, nobody)), ("fromOwner", (nobody, owner))):
        handover = pb.ReassignReservationsRequest(
            tenant_id=TENANT, from_owner=ends[0], to_owner=ends[1]
        )
        refused = await admin.refused(hand_over, handover)
        assert is_refusal(refused, Reason.INVALID_INPUT, field=field)
        assert "issuer|subject" in refused.message
    shown = pb.GetReservationRequest(tenant_id=TENANT, reservation_id=made.id)
    kept = (await alice.call(alice.reservations.GetReservation, shown)).reservation
    assert kept.owner_identity_id == owner


async def test_what_an_owner_whom_nobody_can_be_has_already_is_taken_from_it(
    site: Site, alice: Client, admin: Client
) -> None:
    made = await placed(site, alice)
    owner = made.owner_identity_id
    lost = Handover(tenant_id=TENANT, from_owner=owner, to_owner="alice", reason="")
    assert await reassign(site.world.database, site.world.signer, lost) == 1
    back = pb.ReassignReservationsRequest(tenant_id=TENANT, from_owner="alice", to_owner=owner)
    assert (await admin.call(admin.reservations.ReassignReservations, back)).reassigned == 1

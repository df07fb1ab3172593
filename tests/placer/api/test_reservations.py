"""The tenants' service over real TLS: what each caller sees, pages, ends."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bcd.model.errors import Reason
from bcd.model.texts import MAX_TEXT_BYTES
from bcd.placer.api import reservations
from bcd.placer.server import Placer
from bcd.placer.settings import ApiSettings, PlacerSettings, PolicySettings
from bcd.wire.compute.v1 import reservations_pb2 as pb
from tests.placer.api.conftest import Client, Site, creation, is_refusal
from tests.placer.world import TENANT, dgx


async def listed(client: Client, **changes: object) -> pb.ListReservationsResponse:
    request = pb.ListReservationsRequest(**{"tenant_id": TENANT} | changes)  # type: ignore[arg-type]
    answer: pb.ListReservationsResponse = await client.call(
        client.reservations.ListReservations, request
    )
    return answer


def ids(answer: pb.ListReservationsResponse) -> list[str]:
    return [reservation.id for reservation in answer.reservations]


async def get(client: Client, reservation_id: str, tenant: str = TENANT) -> pb.Reservation:
    answer = await client.call(
        client.reservations.GetReservation,
        pb.GetReservationRequest(tenant_id=tenant, reservation_id=reservation_id),
    )
    found: pb.Reservation = answer.reservation
    return found


async def state_reached(site: Site, client: Client, reservation_id: str, state: str) -> None:
    """Wait for the placer's loops to bring it there."""
    async with asyncio.timeout(20):
        while (await get(client, reservation_id)).state != state:  # noqa: ASYNC110
            await asyncio.sleep(0)


# What a reservation shows


async def test_a_create_answers_with_the_whole_reservation(site: Site, alice: Client) -> None:
    await site.world.add_node(dgx("a"))
    device = pb.DeviceRequest(**{"class": "gpu"}, count=4, topology="nvlink-all")
    made = await alice.create(devices=[device], duration="8h", labels={"team": "x"})
    assert made.state == "placed"
    assert made.request == pb.ReservationRequest(
        pool_id=alice.pool_id,
        devices=[device],
        duration="28800000ms",
        binding="hold",
        labels={"team": "x"},
    )
    assert made.during.end - made.during.start == 8 * 3_600_000
    assert made.operation == pb.Operation(id=made.id, state="succeeded")
    assert (made.tenant_id, made.pool_id) == (TENANT, alice.pool_id)
    assert made.owner_identity_id == f"https://{site.world.authority.domain}/placer|alice"
    assert made.idempotency_key == "k"
    assert made.HasField("host_share")
    assert not made.HasField("binding")
    assert (list(made.conditions), list(made.bindings)) == ([], [])
    assert made.version == 2
    await state_reached(site, alice, made.id, "binding")


async def test_an_active_one_shows_its_binding_first_and_in_the_list(
    site: Site, alice: Client
) -> None:
    node = await site.world.add_node(dgx("a"))
    made = await alice.create(count=2)
    await state_reached(site, alice, made.id, "binding")
    (allocation,) = await site.world.live(made.id)  # type: ignore[arg-type]
    await site.world.send(node, node.seal(node.report(allocation)), allocation.id)
    await state_reached(site, alice, made.id, "active")
    active = await get(alice, made.id)
    assert active.binding == active.bindings[0]
    assert list(active.binding.cdi_devices) == ["bcd.dev/gpu=GPU-a-0", "bcd.dev/gpu=GPU-a-1"]
    assert active.binding.env_file.endswith(f"/{allocation.id}.env")
    assert (active.binding.node_id, active.binding.attested) == (node.id, True)
    assert active.binding.cgroup_parent == f"bcd-alloc-{allocation.id}.slice"
    assert (await listed(alice)).reservations[0] == active


async def test_a_waiting_one_says_why_and_what_it_waits_for(site: Site, alice: Client) -> None:
    made = await alice.create()
    assert (made.state, made.operation.state) == ("pending", "succeeded")
    assert not made.HasField("during")
    (condition,) = made.conditions
    assert (condition.type, condition.status) == ("Unschedulable", "True")
    assert condition.message
    assert condition.last_transition_time > 0


# Refusals


async def test_another_tenant_finds_nothing_and_changes_nothing(
    site: Site, alice: Client, stranger: Client
) -> None:
    made = await alice.create()
    stub = stranger.reservations
    for tenant in (TENANT, "other"):
        named = {"tenant_id": tenant, "reservation_id": made.id}
        for method, request in (
            (stub.GetReservation, pb.GetReservationRequest(**named)),
            (stub.ReleaseReservation, pb.ReleaseReservationRequest(**named)),
            (stub.CancelReservation, pb.CancelReservationRequest(**named)),
        ):
            refused = await stranger.refused(method, request)
            assert is_refusal(refused, Reason.NOT_FOUND, reservationId=made.id)
    mine = pb.ListReservationsRequest(tenant_id="other", scope="all", cursor=made.id)
    unknown = await stranger.refused(stub.ListReservations, mine)
    assert is_refusal(unknown, Reason.INVALID_INPUT, field="cursor")
    theirs = await stranger.refused(
        stub.ListReservations, pb.ListReservationsRequest(tenant_id=TENANT)
    )
    assert theirs.reason is Reason.ACCESS_DENIED
    assert await get(alice, made.id) == made


async def test_somebody_of_two_tenants_finds_each_ones_own_only(site: Site, alice: Client) -> None:
    made = await alice.create()
    both = site.client("both", tenants=(TENANT, "other"))
    assert (await get(both, made.id)).id == made.id
    refused = await both.refused(
        both.reservations.GetReservation,
        pb.GetReservationRequest(tenant_id="other", reservation_id=made.id),
    )
    assert refused.reason is Reason.NOT_FOUND


async def test_an_administrator_without_a_tenant_reads_no_reservations(
    site: Site, alice: Client, admin: Client
) -> None:
    made = await alice.create()
    refused = await admin.refused(
        admin.reservations.GetReservation,
        pb.GetReservationRequest(tenant_id=TENANT, reservation_id=made.id),
    )
    assert refused.reason is Reason.NOT_FOUND


# Lists


async def many(client: Client, amount: int) -> list[str]:
    """Reservations' ids, newest first."""
    return [(await client.create(f"k{i:03}")).id for i in range(amount)][::-1]


async def test_a_list_is_mine_and_newest_first_unless_all_are_asked_for(
    site: Site, alice: Client
) -> None:
    bob = site.client("bob")
    mine = await many(alice, 3)
    his = await many(bob, 2)
    assert ids(await listed(alice)) == mine
    assert ids(await listed(alice, scope="mine")) == mine
    assert ids(await listed(alice, scope="all")) == his + mine
    agent = site.client("alice", actor="agent")
    assert ids(await listed(agent)) == mine, "an agent acts for its person"


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
async def test_pages_hold_everything_once_and_the_last_one_says_so(
    site: Site, alice: Client, limit: int
) -> None:
    mine = await many(alice, 6)
    pages: list[Sequence[str]] = []
    cursor = ""
    while True:
        page = await listed(alice, limit=limit, cursor=cursor)
        pages.append(ids(page))
        cursor = page.next_cursor
        if not cursor:
            break
    assert [one for page in pages for one in page] == mine
    assert len(pages) == -(-6 // limit)


async def test_a_page_of_large_reservations_ends_behind_the_one_that_fills_it(
    site: Site, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {f"{i:02}".ljust(MAX_TEXT_BYTES, "k"): "v" * MAX_TEXT_BYTES for i in range(32)}
    mine = [(await alice.create(f"k{i}", labels=labels)).id for i in range(5)][::-1]
    whole = await listed(alice)
    assert (ids(whole), whole.next_cursor) == (mine, "")
    monkeypatch.setattr(reservations, "MAX_PAGE_BYTES", whole.reservations[0].ByteSize())
    first = await listed(alice)
    assert (ids(first), first.next_cursor) == (mine[:2], mine[1])
    second = await listed(alice, cursor=mine[1])
    last = await listed(alice, cursor=second.next_cursor)
    assert ids(second) + ids(last) == mine[2:]
    assert last.next_cursor == ""


async def test_a_page_does_not_move_when_something_new_comes(site: Site, alice: Client) -> None:
    mine = await many(alice, 4)
    first = await listed(alice, limit=2)
    await alice.create("new")
    assert ids(await listed(alice, limit=2, cursor=first.next_cursor)) == mine[2:]


async def test_filters_narrow_a_list(site: Site, alice: Client) -> None:
    await site.world.add_node(dgx("a", 1))
    other = await site.world.add_pool("other")
    placed = await alice.create("1")
    waiting = await alice.create("2")
    elsewhere = await alice.create("3", pool_id=other)
    await state_reached(site, alice, placed.id, "binding")
    assert ids(await listed(alice, state="pending")) == [elsewhere.id, waiting.id]
    assert ids(await listed(alice, pool_id=other)) == [elsewhere.id]
    assert ids(await listed(alice, state="pending", pool_id=alice.pool_id)) == [waiting.id]
    assert ids(await listed(alice, state="failed")) == []
    assert ids(await listed(alice, pool_id="pool_none")) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": 201}, "limit"),
        ({"scope": "ours"}, "scope"),
        ({"state": "Active"}, "state"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "rsv_" + "a" * 52}, "cursor"),
    ],
    ids=str,
)
async def test_a_list_asked_for_wrongly_is_refused_by_its_field(
    site: Site, alice: Client, changes: dict[str, object], field: str
) -> None:
    request = pb.ListReservationsRequest(tenant_id=TENANT, **changes)  # type: ignore[arg-type]
    refused = await alice.refused(alice.reservations.ListReservations, request)
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_fifty_are_a_page_and_two_hundred_the_most(site: Site, alice: Client) -> None:
    mine = await many(alice, 16)
    for number in range(40):
        released = await alice.call(
            alice.reservations.ReleaseReservation,
            pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=mine[number % 16]),
        )
        assert released.reservation.state == "cancelled"
        if number >= 16:
            mine.insert(0, (await alice.create(f"more{number}")).id)
            await alice.call(
                alice.reservations.CancelReservation,
                pb.CancelReservationRequest(tenant_id=TENANT, reservation_id=mine[0]),
            )
    more = [(await alice.create(f"last{i}")).id for i in range(16)][::-1]
    mine = more + mine
    assert len(mine) == 56
    assert ids(await listed(alice)) == mine[:50]
    assert ids(await listed(alice, limit=200)) == mine


# Dry runs and waits


async def test_a_dry_run_answers_and_leaves_nothing(site: Site, alice: Client) -> None:
    await site.world.add_node(dgx("a"))
    rehearsed = await alice.create(dry_run=True, wait=pb.Wait(timeout_ms=30_000))
    assert rehearsed.state == "placed"
    assert ids(await listed(alice, scope="all")) == []
    made = await alice.create()
    assert (made.id, made.state) == (rehearsed.id, "placed")


async def test_a_wait_with_an_inline_placer_does_not_hold_the_answer(
    site: Site, alice: Client
) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    made = await alice.create(wait=pb.Wait(timeout_ms=30_000))
    assert made.state == "pending"
    again = await alice.create(wait=pb.Wait(timeout_ms=30_000))
    assert again.id == made.id
    assert loop.time() - begun < 10


# Policies


CAPS = """
@id("members")
permit (principal, action, resource) when { principal.tenants.contains(resource.tenant) };
@id("cap")
forbid (principal, action == Compute::Action::"compute:reservations:create", resource)
when { resource.gpus > 4 };
@id("keep")
forbid (principal, action == Compute::Action::"compute:reservations:release", resource)
when { resource.gpus > 2 };
@id("secret")
forbid (principal, action == Compute::Action::"compute:reservations:read", resource)
when { resource.labels.contains("secret=yes") };
"""


async def test_a_policy_decides_on_creates_reads_and_releases(
    site: Site, alice: Client, tmp_path: Path
) -> None:
    """A second placer over the same database, with caps."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "caps.cedar").write_text(CAPS)
    state = site.placer._settings.state
    settings = PlacerSettings(
        database="",
        state=state,
        api=ApiSettings(listen="127.0.0.1:0"),
        policy=PolicySettings(folder=folder),
    )
    capped = Placer(settings, site.world.database, site.placer._secrets)
    await capped.start()
    try:
        await use_capped(site, capped)
    finally:
        await capped.stop()


async def use_capped(site: Site, capped: Placer) -> None:
    site.placer.port, port = capped.port, site.placer.port
    client = site.client()
    site.placer.port = port
    create, stub = client.reservations.CreateReservation, client.reservations
    over = await client.refused(create, creation(client.pool_id, "over", 5))
    assert is_refusal(over, Reason.ACCESS_DENIED, caps="gpus")
    again = await client.refused(create, creation(client.pool_id, "over", 5))
    assert again.reason is Reason.ACCESS_DENIED
    assert again.details["reservationId"] == over.details["reservationId"]
    denied = await get(client, over.details["reservationId"])
    assert (denied.state, denied.operation.state) == ("denied", "failed")
    three = await client.create("three", 3)
    released = await client.refused(
        stub.ReleaseReservation,
        pb.ReleaseReservationRequest(tenant_id=TENANT, reservation_id=three.id),
    )
    assert released.reason is Reason.ACCESS_DENIED
    secret = await client.create("secret", labels={"secret": "yes"})
    hidden = await client.refused(
        stub.GetReservation,
        pb.GetReservationRequest(tenant_id=TENANT, reservation_id=secret.id),
    )
    assert hidden.reason is Reason.ACCESS_DENIED
    assert three.id in ids(await listed(client))
    assert secret.id not in ids(await listed(client))

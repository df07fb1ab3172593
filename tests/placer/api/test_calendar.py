"""A pool's calendar: when each device is taken, and whose it is to whom (spec 7.6)."""

from collections.abc import Sequence
from typing import Any

import pytest

from bcd.model.errors import Reason
from bcd.placer.api.calendar import MAX_TAKEN
from bcd.store.database import Transaction
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1 import maintenance_pb2, offers_pb2
from bcd.wire.compute.v1 import reservations_pb2 as rpb
from tests.placer.api.conftest import HOUR_MS, Client, Site, is_refusal
from tests.placer.world import TENANT, dgx, gpu

DAY_MS = 24 * HOUR_MS
# Clocks are moved on before they stand still: ahead of whatever was told before.
MINUTE_MS = 60_000


def asked(client: Client, **changes: Any) -> pb.GetCalendarRequest:
    return pb.GetCalendarRequest(**{"tenant_id": TENANT, "pool_id": client.pool_id} | changes)


async def calendar(client: Client, **changes: Any) -> pb.GetCalendarResponse:
    answer: pb.GetCalendarResponse = await client.call(
        client.capacity.GetCalendar, asked(client, **changes)
    )
    return answer


async def taken(client: Client, **changes: Any) -> list[list[pb.Taken]]:
    """What is taken of each device of the pool's nodes, in order."""
    answer = await calendar(client, **changes)
    return [list(device.taken) for node in answer.nodes for device in node.devices]


async def offer(admin: Client, tenant: str) -> None:
    request = offers_pb2.SetOfferRequest(
        pool_id=admin.pool_id,
        tenant_id=tenant,
        limits=[offers_pb2.OfferLimit(resource=name, limit=99) for name in ("gpu", "vcpu")],
    )
    await admin.call(admin.offers.SetOffer, request)


async def test_ones_own_reservations_are_named_and_others_only_held(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    site.clock.advance(MINUTE_MS)
    await site.world.add_node([gpu("G0")])
    await offer(admin, "other")
    mine = await alice.create("mine")
    theirs = await stranger.create("theirs", tenant_id="other", start=mine.during.end)
    now_ms = site.clock.read()
    first, second = (now_ms, now_ms + HOUR_MS), (now_ms + HOUR_MS, now_ms + 2 * HOUR_MS)

    def shown(*ids: str) -> list[list[pb.Taken]]:
        return [
            [
                pb.Taken(start=start, end=end, kind="reservation", reservation_id=id_)
                for (start, end), id_ in zip((first, second), ids, strict=True)
            ]
        ]

    assert await taken(alice) == shown(mine.id, "")
    assert await taken(stranger, tenant_id="other") == shown("", theirs.id)
    assert await taken(admin, tenant_id="") == shown(mine.id, theirs.id)


async def test_maintenance_is_marked_as_such(site: Site, admin: Client, alice: Client) -> None:
    node = await site.world.add_node(dgx("a", 2))
    request = maintenance_pb2.AddMaintenanceRequest(node_id=node.id, duration_ms=HOUR_MS)
    window = (await admin.call(admin.maintenance.AddMaintenance, request)).window
    one = pb.Taken(start=window.start, end=window.end, kind="maintenance")
    assert await taken(alice) == [[one], [one]]
    one.reservation_id = window.id
    assert await taken(admin) == [[one], [one]]


async def test_what_was_and_what_will_be_is_shown_where_it_touches_the_window(
    site: Site, alice: Client
) -> None:
    site.clock.advance(MINUTE_MS)
    await site.world.add_node([gpu("G0")])
    now_ms = site.clock.read()
    past = await alice.create("past", duration="10m")
    site.clock.advance(HOUR_MS)
    future = await alice.create("future", start=now_ms + 8 * DAY_MS)

    async def ids(**window: int) -> list[str]:
        (device,) = await taken(alice, **window)
        return [one.reservation_id for one in device]

    assert await ids() == []
    assert await ids(start=now_ms) == [past.id]
    assert await ids(start=now_ms, end=now_ms + 9 * DAY_MS) == [past.id, future.id]
    assert await ids(start=past.during.end, end=future.during.start) == []
    assert await ids(start=past.during.end - 1, end=future.during.start + 1) == [
        past.id,
        future.id,
    ]
    answer = await calendar(alice)
    shown = (answer.window.start, answer.window.end)
    assert shown == (site.clock.read(), site.clock.read() + 7 * DAY_MS)


async def test_a_gpu_is_taken_while_somebody_has_it_in_another_mode(
    site: Site, admin: Client, alice: Client
) -> None:
    await site.world.set_policy(sharing={"mode": "time-slice", "replicas": 2})
    await site.world.add_node([gpu("G0"), gpu("G1")])
    await site.world.grant("gpu.slot", 8)
    slot = rpb.DeviceRequest(**{"class": "gpu.slot"}, count=1)
    made = await alice.create("slot", devices=[slot])
    answer = await calendar(alice)
    (node,) = answer.nodes
    found = {device.id: [one.reservation_id for one in device.taken] for device in node.devices}
    lies_on = {device.id: device.gpu for device in node.devices}
    (booked,) = [id_ for id_, ids in found.items() if ids and "::" in id_]
    assert found.pop(booked) == found.pop(lies_on[booked]) == [made.id]
    assert len(found) == 4
    assert not any(found.values())


async def test_what_is_booked_of_a_host_is_added_up_over_time(site: Site, alice: Client) -> None:
    site.clock.advance(MINUTE_MS)
    await site.world.add_node([gpu("G0"), gpu("G1")])
    now_ms = site.clock.read()
    (share,) = {made.host_share.vcpu for made in [await alice.create("a", duration="2h")]}
    await alice.create("b", start=now_ms + HOUR_MS, duration="2h")
    (node,) = (await calendar(alice)).nodes
    steps = [(a.start - now_ms, a.end - now_ms, a.resources.vcpu) for a in node.amounts]
    assert steps == [
        (0, HOUR_MS, share),
        (HOUR_MS, 2 * HOUR_MS, 2 * share),
        (2 * HOUR_MS, 3 * HOUR_MS, share),
    ]
    assert node.host.vcpu >= 2 * share


async def test_a_booking_shown_at_many_devices_takes_as_much_room(
    site: Site, alice: Client
) -> None:
    """A GPU of 64 slots, booked as a whole, takes 65 entries each time."""
    site.clock.advance(MINUTE_MS)
    await site.world.set_policy(sharing={"mode": "time-slice", "replicas": 64})
    await site.world.add_node([gpu("G0")])
    start_ms = site.clock.read()
    await alice.create(duration="1m")
    fits = MAX_TAKEN // 65
    await site.world.database.write(fill, start_ms + 60_000, fits + 10, "AND mode = 0")
    (node,) = (await calendar(alice, start=start_ms)).nodes
    assert {len(device.taken) for device in node.devices} == {fits}
    assert node.told_until == start_ms + 60_000 + 1_000 * (fits - 1)


def fill(tx: Transaction, start_ms: int, count: int, which: str = "") -> int:
    """Book every atom of some kind for a moment of so many seconds, in the name of the only one."""
    booking = tx.one("SELECT allocation_id, reservation_id FROM bookings LIMIT 1")
    assert booking is not None
    rows: Sequence[dict[str, Any]] = [
        dict(atom) | dict(booking) | {"at": start_ms + 1_000 * second}
        for atom in tx.all(f"SELECT id, node_id, gpu_id FROM atoms WHERE 1 = 1 {which}")
        for second in range(count)
    ]
    return tx.many(
        "INSERT INTO bookings (allocation_id, reservation_id, node_id, atom_id, gpu_id, mode,"
        " start_ms, end_ms) VALUES (:allocation_id, :reservation_id, :node_id, :id, :gpu_id, 0,"
        " :at, :at + 1)",
        rows,
    )


async def test_nodes_come_in_pages_or_one_by_its_id(site: Site, alice: Client) -> None:
    made = [await site.world.add_node([gpu(f"G{n}")]) for n in range(3)]
    ids = sorted(node.id for node in made)
    first = await calendar(alice, limit=2)
    rest = await calendar(alice, limit=2, cursor=first.next_cursor)
    assert [node.id for node in first.nodes] == ids[:2]
    assert ([node.id for node in rest.nodes], rest.next_cursor) == (ids[2:], "")
    one = await calendar(alice, node_id=ids[1])
    assert ([node.id for node in one.nodes], one.next_cursor) == ([ids[1]], "")


async def test_a_full_calendar_is_told_in_parts(site: Site, alice: Client) -> None:
    """Answers are bounded: one that is cut says from where to ask on, and a page ends early."""
    site.clock.advance(MINUTE_MS)
    nodes = [await site.world.add_node([gpu(f"G{n}")]) for n in range(4)]
    start_ms = site.clock.read()
    await alice.create(duration="1m")
    (mine,) = await site.world.rows("SELECT node_id FROM bookings")
    end_ms = start_ms + 10 * DAY_MS
    count = MAX_TAKEN + 10
    await site.world.database.write(fill, start_ms + 60_000, count)
    page = await calendar(alice, start=start_ms, end=end_ms)
    assert len(page.nodes) < len(nodes)
    assert page.next_cursor == page.nodes[-1].id
    following = await calendar(alice, start=start_ms, end=end_ms, cursor=page.next_cursor)
    assert len(page.nodes) + len(following.nodes) == len(nodes)
    (node,) = (await calendar(alice, start=start_ms, end=end_ms, node_id=mine["node_id"])).nodes
    told = list(node.devices[0].taken)
    assert len(told) == MAX_TAKEN
    assert max(one.start for one in told) < node.told_until
    (node,) = (
        await calendar(alice, start=node.told_until, end=end_ms, node_id=mine["node_id"])
    ).nodes
    assert not node.HasField("told_until")
    assert len(told) + len(node.devices[0].taken) == count + 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"start": -1}, "start"),
        ({"start": 1 << 62}, "start"),
        ({"start": 1_000, "end": 1_000}, "end"),
        ({"start": 1_000, "end": 999}, "end"),
        ({"start": 1_000, "end": 1_001 + 92 * DAY_MS}, "end"),
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"cursor": "x" * 513}, "cursor"),
        ({"node_id": "x"}, "nodeId"),
    ],
    ids=str,
)
async def test_a_calendar_asked_for_wrongly_is_refused_by_its_field(
    alice: Client, changes: dict[str, Any], field: str
) -> None:
    refused = await alice.refused(alice.capacity.GetCalendar, asked(alice, **changes))
    assert is_refusal(refused, Reason.INVALID_INPUT, field=field)


async def test_a_calendar_is_for_those_who_may_book_in_the_pool(
    site: Site, admin: Client, alice: Client, stranger: Client
) -> None:
    node = await site.world.add_node([gpu("G0")])
    foreign = asked(stranger, tenant_id="other")
    refused = await stranger.refused(stranger.capacity.GetCalendar, foreign)
    assert refused.reason is Reason.NOT_FOUND
    for tenant in (TENANT, ""):
        request = asked(stranger, tenant_id=tenant)
        refused = await stranger.refused(stranger.capacity.GetCalendar, request)
        assert refused.reason is Reason.ACCESS_DENIED
    other_pool = await site.world.add_pool("other")
    elsewhere = asked(alice, pool_id=other_pool, node_id=node.id)
    refused = await alice.refused(alice.capacity.GetCalendar, elsewhere)
    assert refused.reason is Reason.NOT_FOUND
    assert len((await calendar(admin, tenant_id="")).nodes) == 1

"""A preview that fits is a create that fits, on the same nodes at the same time (spec 4.5, 7.6).

Random pools with random pasts; at each step a preview is asked for, and then the create is made.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from bcd.model.ids import ReservationId
from bcd.model.pool import PlacerKind, PoolPolicy, SharingMode, SharingPolicy, SpotPolicy
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2 as rpb
from tests.clock import DatabaseClock
from tests.conftest import Rounds
from tests.placer.api.conftest import Client, Site
from tests.placer.api.test_pools import reached
from tests.placer.records import assert_no_overlap
from tests.placer.world import TENANT, World, dgx, gpu, mig

MINUTE_MS = 60_000
GRID = 8
TURNAROUND_MS = 7 * MINUTE_MS
PLACED = ("placed", "binding", "active")

SHARED = SharingPolicy(mode=SharingMode.TIME_SLICE, replicas=4)
POOLS = {
    "plain": PoolPolicy(),
    "gaps": PoolPolicy(turnaround_ms=TURNAROUND_MS, spot=SpotPolicy(grace_seconds=90)),
    "queued": PoolPolicy(placer=PlacerKind.QUEUED),
    "slots": PoolPolicy(sharing=SHARED, turnaround_ms=MINUTE_MS),
}


@dataclass
class Story:
    """What happens to a pool; every choice is the seed's."""

    site: Site
    client: Client
    pool: str
    random: random.Random
    made: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @property
    def world(self) -> World:
        return self.site.world

    @property
    def clock(self) -> DatabaseClock:
        return self.site.clock

    async def begin(self) -> None:
        """Two hosts of whole GPUs, and one of MIG instances."""
        self.clock.advance(MINUTE_MS)  # ahead of whatever was told before it stood still
        self.client.pool_id = await self.world.add_pool(self.pool, POOLS[self.pool])
        for name in ("gpu", "gpu.mig", "gpu.slot", "vcpu", "memoryGiB"):
            await self.world.grant(name, 1_000_000)
        instances = [mig(f"MIG-{n}", "GPU-m", "1g.10gb") for n in range(3)]
        for devices in (dgx("a", 4), dgx("b", 2), [gpu("GPU-n"), *instances]):
            await self.world.add_node(devices, self.client.pool_id)
        await self.settle()

    async def settle(self) -> None:
        """Until the placer has done all that is due: it must not act between two calls."""

        async def nothing_is_due() -> bool:
            due = "SELECT key FROM work WHERE wake_ms <= :now_ms"
            return not await self.world.rows(due, now_ms=self.clock.read())

        await reached(nothing_is_due)

    async def pass_time(self) -> None:
        self.clock.advance(self.random.choice([1, MINUTE_MS, 20 * MINUTE_MS, 60 * MINUTE_MS]))
        for node in self.world.nodes:
            await self.world.connect(node)

    async def end(self) -> None:
        """Somebody who has a place goes, or gives up waiting for one."""
        request = rpb.ReleaseReservationRequest(
            tenant_id=TENANT, reservation_id=self.random.choice(self.made)
        )
        await self.client.call(self.client.reservations.ReleaseReservation, request)

    def request(self) -> dict[str, Any]:
        """The fields of a create that a preview takes too."""
        kinds = ["gpu", "gpu", "gpu", "gpu.mig", "gpu.slot" if self.pool == "slots" else "gpu"]
        kind = self.random.choice(kinds)
        topology = self.random.choice(["", "nvlink-all"]) if kind == "gpu" else ""
        device = rpb.DeviceRequest(
            **{"class": kind}, count=self.random.choice([1, 1, 2, 2, 3, 4]), topology=topology
        )
        asked: dict[str, Any] = {
            "devices": [device],
            "duration": f"{self.random.choice([5, 30, 60, 180])}m",
        }
        if self.random.random() < 0.4:
            asked["start"] = self.clock.read() + self.random.randrange(1, 240) * MINUTE_MS
        if self.random.random() < 0.3:
            asked["gang"] = rpb.Gang(size=2)
        if self.random.random() < 0.4:
            asked["spot"] = True
        if self.random.random() < 0.3:
            asked["resources"] = rpb.Resources(vcpu=self.random.choice([1, 20, 40]))
        return asked

    async def preview(self, asked: dict[str, Any]) -> pb.PreviewCapacityResponse:
        request = pb.PreviewCapacityRequest(tenant_id=TENANT, pool_id=self.client.pool_id, **asked)
        answer: pb.PreviewCapacityResponse = await self.client.call(
            self.client.capacity.PreviewCapacity, request
        )
        return answer

    async def dry_run(self, asked: dict[str, Any], **changes: Any) -> rpb.Reservation:
        return await self.client.create("dry", dry_run=True, **asked | changes)

    async def create(self, asked: dict[str, Any]) -> rpb.Reservation:
        made = await self.client.create(
            f"k{len(self.made)}", wait=rpb.Wait(timeout_ms=10_000), **asked
        )
        self.made.append(made.id)
        return made


async def assert_same(
    story: Story, told: pb.PreviewCapacityResponse, made: rpb.Reservation
) -> None:
    """What was told is what was made."""
    assert told.fits == (made.state in PLACED)
    assert told.host_share == made.host_share
    live = await story.world.live(ReservationId(made.id))
    assert list(told.node_ids) == sorted(one.node_id for one in live)
    if told.fits:
        assert told.window == made.during
        booked = await story.world.rows(
            "SELECT vcpu, memory_gib, hugepages_1gi FROM host_bookings WHERE reservation_id = :id",
            id=made.id,
        )
        wanted = told.resources
        amounts = (wanted.vcpu, wanted.memory_gib, wanted.hugepages_1gi)
        assert {tuple(row.values()) for row in booked} == ({amounts} if any(amounts) else set())
    else:
        assert made.conditions[0].message.startswith(told.reason)
        assert sum(count.nodes for count in told.rejected) > 0


async def assert_earliest(
    story: Story, asked: dict[str, Any], told: pb.PreviewCapacityResponse
) -> None:
    """With the start that was told a create is placed, and with none before it."""
    wanted_ms = max(asked.get("start", 0), story.clock.read())
    if told.fits:
        assert told.earliest_start == told.window.start
        return
    first_ms = told.earliest_start or wanted_ms + 400 * 24 * 60 * MINUTE_MS
    if told.earliest_start:
        made = await story.dry_run(asked, start=first_ms)
        assert (made.state, made.during.start) == ("placed", first_ms)
        story.seen.add("fits later")
    step_ms = max(1, (first_ms - wanted_ms) // GRID)
    for start_ms in (*range(wanted_ms, first_ms, step_ms), first_ms - 1):
        assert (await story.dry_run(asked, start=start_ms)).state == "pending"


async def assert_longest(
    story: Story, asked: dict[str, Any], told: pb.PreviewCapacityResponse
) -> None:
    """For that long it is placed where it was asked for, for longer only if others yield."""
    wanted_ms = max(asked.get("start", 0), story.clock.read())
    if told.longest_free_ms:
        made = await story.dry_run(asked, duration=f"{told.longest_free_ms}ms")
        assert (made.state, made.during.start) == ("placed", wanted_ms)
    longer = {"duration": f"{told.longest_free_ms + 1}ms", "spot": True}  # spot displaces nobody
    ten_years = told.longest_free_ms > 9 * 365 * 24 * 60 * MINUTE_MS
    if not ten_years:
        assert (await story.dry_run(asked, **longer)).state == "pending"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pool", POOLS)
async def test_what_is_previewed_is_what_is_created(
    site: Site, pool: str, seed: int, rounds: Rounds
) -> None:
    story = Story(site, site.client("alice"), pool, random.Random(f"{pool} {seed}"))
    await story.begin()
    for _ in range(rounds(16, 80)):
        deed = story.random.random()
        if story.made and deed < 0.25:
            await story.end()
        elif deed < 0.45:
            await story.pass_time()
        await story.settle()
        asked = story.request()
        told = await story.preview(asked)
        await assert_longest(story, asked, told)
        await assert_earliest(story, asked, told)
        await assert_same(story, told, await story.create(asked))
        if told.displaced:
            story.seen.add("displaced")
        story.seen.add("fits" if told.fits else "does not fit")
    await assert_no_overlap(site.world.database)
    assert {"fits", "does not fit"} <= story.seen, story.seen

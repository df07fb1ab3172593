"""A fleet: simulated hosts in one process, each with a daemon, an identity and GPUs of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bcd.model.errors import BcdError
from bcd.model.report import Bound
from bcd.node.settings import GatewaySettings
from bcd.sim.fleet import Fleet, Member
from bcd.wire.inventory import decode_inventory
from tests.node.fake_gateway import FakeGateway
from tests.node.world import alloc_id, assignment, node_id

pytestmark = pytest.mark.asyncio(loop_scope="module")
COUNT = 3


@pytest_asyncio.fixture(loop_scope="module")
async def gateway() -> AsyncIterator[FakeGateway]:
    running = FakeGateway()
    await running.start()
    yield running
    await running.stop()


def settings(gateway: FakeGateway) -> GatewaySettings:
    return GatewaySettings(
        address=gateway.address, enroll_address=gateway.enroll_address, spread_seconds=0.05
    )


def members(gateway: FakeGateway) -> list[Member]:
    return [
        Member(name=f"sim-{i}", profile="l40s-pcie", token=gateway.token(node_id(i)))
        for i in range(COUNT)
    ]


async def test_every_host_enrols_and_is_a_machine_of_its_own(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, settings(gateway), members(gateway))
    await fleet.start()
    await gateway.until(lambda: len(gateway.inventories) == COUNT)
    inventories = [decode_inventory(frame)[0] for frame in gateway.inventories.values()]
    assert {i.host.hostname for i in inventories} == {"sim-0", "sim-1", "sim-2"}
    assert len({device.id for i in inventories for device in i.devices}) == 4 * COUNT
    assert len({i.host.boot_id for i in inventories}) == COUNT
    await fleet.stop()
    assert sorted(gateway.goodbyes) == ["stopped"] * COUNT


async def test_holds_are_made_on_the_host_that_was_meant(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, settings(gateway), members(gateway))
    await fleet.start()
    await gateway.until(lambda: len(gateway.inventories) == COUNT)
    for number in range(COUNT):
        device = decode_inventory(gateway.inventories[node_id(number)])[0].devices[0]
        gateway.want(node_id(number), assignment(number, device), generation=1)
    await gateway.until(lambda: len(gateway.said(Bound)) == COUNT)
    await fleet.stop()
    assert specs(tmp_path) == [
        f"sim-{number}/etc/cdi/bcd-{alloc_id(number)}.json" for number in range(COUNT)
    ]


def specs(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/etc/cdi/*.json"))


async def test_a_second_start_needs_no_token(gateway: FakeGateway, tmp_path: Path) -> None:
    first = Fleet(tmp_path, settings(gateway), members(gateway))
    await first.start()
    await first.stop()
    again = Fleet(tmp_path, settings(gateway), [Member(name="sim-0", profile="l40s-pcie")])
    await again.start()
    await gateway.until(lambda: len(gateway.hellos) > 0 and bool(gateway.streams))
    assert again.daemons[0].identity.node_id == node_id(0)
    await again.stop()


async def test_credentials_serve_where_there_is_no_token(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    member = Member(name="given", credentials=gateway.node_credentials(node_id(9)))
    fleet = Fleet(tmp_path, settings(gateway), [member])
    await fleet.start()
    await gateway.until(lambda: bool(gateway.inventories))
    await fleet.stop()
    assert list(gateway.inventories) == [node_id(9)]


async def test_a_host_that_cannot_enrol_is_said(gateway: FakeGateway, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, settings(gateway), [Member(name="sim-0", token="nonsense")])
    with pytest.raises(BcdError, match=r"id\.secret\.pin"):
        await fleet.start()
    await fleet.stop()

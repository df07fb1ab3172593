"""Two daemons with one identity: the newer has the node, the older ends and stays ended."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bcd.model.report import Bound
from bcd.node.daemon import EXIT_SUPERSEDED
from tests.node.clock import HandClock
from tests.node.fake_gateway import FakeGateway
from tests.node.process import start_bcd
from tests.node.world import Site, alloc_id, assignment, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
UNIT = Path(__file__).parents[2] / "systemd/bcd.service"


@pytest_asyncio.fixture(loop_scope="module")
async def gateway() -> AsyncIterator[FakeGateway]:
    running_gateway = FakeGateway()
    await running_gateway.start()
    yield running_gateway
    await running_gateway.stop()


def twins(gateway: FakeGateway, folder: Path) -> tuple[Site, Site]:
    """Two hosts, one a copy of the other's credentials."""
    first = Site(folder / "first", gateway)
    second = Site(folder / "second", gateway, enrolled=False)
    shutil.copytree(first.state, second.state)
    return first, second


async def test_exactly_one_of_two_is_left_and_nobody_comes_back(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    first, second = twins(gateway, tmp_path)
    clock = first.clock = second.clock = HandClock()
    gateway.want(first.node_id, assignment(1, first.devices()[0]), generation=1)
    async with running(first.open()) as older:
        await gateway.until(lambda: bool(gateway.said(Bound)))
        async with running(second.open()) as newer:
            async with asyncio.timeout(20):
                assert await older == EXIT_SUPERSEDED
            for _ in range(60):
                await clock.advance(1, settle_s=0.005)
            assert not newer.done()
            assert len(gateway.fencings) == 1
            assert len(gateway.hellos) == 2
    assert first.specs() == [f"bcd-{alloc_id(1)}.json"]


async def test_the_loser_ends_with_a_code_that_systemd_does_not_restart(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    first, second = twins(gateway, tmp_path)
    older = await start_bcd(first)
    await gateway.until(lambda: len(gateway.hellos) == 1 and bool(gateway.streams))
    newer = await start_bcd(second)
    assert await older.wait() == EXIT_SUPERSEDED, older.log()
    assert "another daemon has this node" in older.log()
    assert newer.process.returncode is None
    assert await newer.end() == 0, newer.log()
    assert [a != b for a, b in gateway.fencings] == [True]
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert str(EXIT_SUPERSEDED) in codes.split()

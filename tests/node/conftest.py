"""A gateway in this process and a simulated host that knows it.

All tests here share one event loop: gRPC delivers events to the loop of the process, and those
of a loop that was closed meanwhile end as errors in the log of another test.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.node.fake_gateway import FakeGateway
from tests.node.world import Site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if pytest_asyncio.is_async_test(item) and item.path.is_relative_to(here):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[FakeGateway]:
    """A running gateway."""
    running = FakeGateway()
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
def site(gateway: FakeGateway, tmp_path: Path) -> Site:
    """An enrolled host; its daemon does not run yet."""
    return Site(tmp_path / "host", gateway)

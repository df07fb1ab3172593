"""The stub, compiled once, and hosts on it."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.node.fake_gateway import FakeGateway
from tests.node.world import Site
from tests.nvml.stub import Host, State, build

MakeHost = Callable[..., Host]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub of an old driver."""
    return build(tmp_path_factory.mktemp("nvml-old"), old=True)


@pytest.fixture
def host(tmp_path: Path, library: Path) -> MakeHost:
    """Make a host with a state."""
    return lambda **state: Host(tmp_path, library, State(**state))


@pytest_asyncio.fixture(loop_scope="session")
async def gateway() -> AsyncIterator[FakeGateway]:
    """A running gateway."""
    started = FakeGateway()
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
def site(gateway: FakeGateway, tmp_path: Path) -> Site:
    """An enrolled host; its daemon does not run yet."""
    return Site(tmp_path / "host", gateway)

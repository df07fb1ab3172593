"""A running system on each chosen engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.system import System
from tests.postgres import Cluster

MakeSystem = Callable[..., System]


@pytest.fixture
def make_system(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> MakeSystem:
    """Declare a system: on PostgreSQL with a gateway process under its restricted role."""

    if engine == "sqlite":
        urls = (f"sqlite:///{tmp_path}/bcd.db", "")
    else:
        cluster: Cluster = request.getfixturevalue("postgresql")
        url = cluster.new_database()
        urls = (url, cluster.gateway_url(url))

    def make(**options: Any) -> System:
        return System(tmp_path, *urls, **options)

    return make


@pytest.fixture
def system(make_system: MakeSystem) -> Iterator[System]:
    """A system whose placer and gateway run, without pools and nodes."""
    with make_system() as running:
        yield running

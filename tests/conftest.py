"""Options and fixtures of the whole suite: which engines, how many rounds, which extras.

A test that asks for ``database`` or ``database_url`` runs once on each chosen engine, or on the one
that its folder is named after. A folder named after an option is collected only with that option,
so that nothing is ever skipped.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.journeys.system import System
from tests.postgres import Cluster

Rounds = Callable[[int, int], int]
MakeSystem = Callable[..., System]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("better-compute")
    group.addoption("--engine", choices=("sqlite", "postgresql", "all"), default="sqlite")
    group.addoption("--rounds", choices=("ci", "bench"), default="ci")
    group.addoption("--podman", action="store_true", help="also run containers (needs podman)")
    group.addoption("--slurm", action="store_true", help="also run Slurm (needs root and Slurm)")
    group.addoption("--promtool", action="store_true", help="also judge alert rules (Prometheus)")
    group.addoption("--readme", action="store_true", help="also follow the README (needs PyPI)")
    group.addoption("--hardware", action="store_true", help="also check the GPUs of this host")
    group.addoption("--vm", action="store_true", help="also emulate a host (needs qemu, root)")
    group.addoption(
        "--package", action="store_true", help="also build and install packages (root, Debian 12)"
    )
    group.addoption("--bench", action="store_true", help="also measure")


def chosen_engines(config: pytest.Config) -> tuple[str, ...]:
    """The engines that ``--engine`` asks for."""
    chosen = str(config.getoption("--engine"))
    return ("sqlite", "postgresql") if chosen == "all" else (chosen,)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    engines = chosen_engines(config)
    asked_for = {
        "sqlite": "sqlite" in engines,
        "postgresql": "postgresql" in engines,
        "podman": bool(config.getoption("--podman")),
        "slurm": bool(config.getoption("--slurm")),
        "promtool": bool(config.getoption("--promtool")),
        "readme": bool(config.getoption("--readme")),
        "hardware": bool(config.getoption("--hardware")),
        "vm": bool(config.getoption("--vm")),
        "package": bool(config.getoption("--package")),
        "bench": bool(config.getoption("--bench")),
    }
    return None if asked_for.get(collection_path.name, True) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        folder = metafunc.definition.path.parent.name
        chosen = chosen_engines(metafunc.config)
        engines = (folder,) if folder in chosen else chosen
        metafunc.parametrize("engine", engines, scope="session")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Rounds:
    """``rounds(ci, bench)`` gives the count that ``--rounds`` asks for."""
    bench = request.config.getoption("--rounds") == "bench"
    return lambda for_ci, for_bench: for_bench if bench else for_ci


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Cluster]:
    """A PostgreSQL server of this run's own, with its durability on."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def database_url(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty, migrated database of this test's own."""
    if engine == "sqlite":
        yield f"sqlite:///{tmp_path}/bcd.db"
        return
    cluster: Cluster = request.getfixturevalue("postgresql")
    url = cluster.new_database()
    yield url
    cluster.give_back(url)


@pytest.fixture
def clock(database_url: str) -> DatabaseClock:
    """The database's clock, real until the test moves it."""
    return DatabaseClock(database_url)


@pytest.fixture
async def database(clock: DatabaseClock) -> AsyncIterator[Database]:
    """An open store."""
    opened = clock.open()
    yield opened
    await opened.close()


@pytest.fixture
def make_system(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> MakeSystem:
    """Declare a system: on PostgreSQL with a gateway process under its restricted role."""

    if engine == "sqlite":
        urls = (f"sqlite:///{tmp_path}/placer.db", "")
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

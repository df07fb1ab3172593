"""Options and fixtures of the whole suite: which engines, how many rounds, which extras.

A test that asks for ``database`` or ``database_url`` runs once on each chosen engine, or on the one
that its folder is named after. A folder named after an option is collected only with that option,
so that nothing is ever skipped; naming its path without the option is refused.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bcd.store.database import Database
from tests.clock import DatabaseClock
from tests.journeys.system import System
from tests.postgres import Cluster

HERE = Path(__file__).parent
ENGINES = ("sqlite", "postgresql")
EXTRAS = ("podman", "slurm", "promtool", "readme", "hardware", "vm", "package", "bench")
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
    return ENGINES if chosen == "all" else (chosen,)


def folders_asked_for(config: pytest.Config) -> dict[str, str]:
    """Folders named after an option: which one collects each; empty when it was given."""
    engines = chosen_engines(config)
    found = {name: "" if name in engines else f"--engine {name}" for name in ENGINES}
    return found | {name: "" if config.getoption(f"--{name}") else f"--{name}" for name in EXTRAS}


def pytest_configure(config: pytest.Config) -> None:
    """A path that only an option makes mean anything says so, instead of finding no test."""
    missing = folders_asked_for(config)
    for argument in config.args:
        path = (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        if path.is_relative_to(HERE):
            for name in path.relative_to(HERE).parts:
                if missing.get(name):
                    raise pytest.UsageError(f"{argument}: add {missing[name]}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if folders_asked_for(config).get(collection_path.name) else None


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

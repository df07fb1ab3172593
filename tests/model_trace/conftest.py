"""A stage for histories on the chosen engine, in memory where there is a place for that."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_trace.machine import Trace
from tests.model_trace.stage import FIRST_MS, PostgresqlStage, SqliteStage, Stage
from tests.placer.world import new_authority
from tests.postgres import Cluster

_MEMORY = Path("/dev/shm")


@pytest.fixture
def stage(engine: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Databases for one history after another."""
    if engine == "postgresql":
        cluster: Cluster = request.getfixturevalue("postgresql")
        made = PostgresqlStage(cluster.new_database())
        yield made
        made.close()
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield SqliteStage(Path(folder))


@pytest.fixture
def traces(stage: Stage) -> Iterator[type[Trace]]:
    """The machine on that stage, with nothing reached yet."""
    with asyncio.Runner() as loop:
        loop.run(asyncio.sleep(0))

        class StagedTrace(Trace):
            """This test's own."""

        StagedTrace.stage = stage
        StagedTrace.runner = loop
        StagedTrace.authority = new_authority(FIRST_MS)
        StagedTrace.steps = Counter()
        StagedTrace.histories = []
        StagedTrace.found = []
        yield StagedTrace

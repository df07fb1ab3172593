"""A daemon that is killed after every single step of a bind and of a release.

Real processes and a real SIGKILL: each step of the whole sequence, from the persisted state to
the acknowledged report, is once the last thing that a daemon did. The next daemon comes to the
same end, and every report that is owed arrives.
"""

import os
import shutil
import signal
import stat
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from bcd.model.assignment import AssignedDevice, Assignment, Sharing, SharingMode
from bcd.model.device import DeviceClass
from bcd.model.report import Bound, Released
from bcd.node.steps import StepName
from tests.node.fake_gateway import FakeGateway
from tests.node.process import start_killed
from tests.node.world import Site, alloc_id, assignment, eventually, limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

_REPORTED = [StepName.SEND_REPORT, StepName.SEND_ACK, StepName.DROP_REPORTS]


@dataclass(frozen=True)
class Shape:
    """A kind of hold, the steps that it takes, and its spec files."""

    name: str
    bind: list[StepName]
    release: list[StepName]
    files: list[str]


# Both together take every kind of step that there is.
SHAPES = [
    Shape(
        "limits and two classes",
        [
            StepName.PERSIST_STATE,
            StepName.ENSURE_SLICE,
            StepName.PREPARE_DEVICES,
            StepName.WRITE_ENV,
            StepName.WRITE_SPEC,
            StepName.WRITE_SPEC,
            StepName.OWE_REPORTS,
            *_REPORTED,
        ],
        [
            StepName.PERSIST_STATE,
            StepName.OWE_RELEASES,
            StepName.REMOVE_SPEC,
            StepName.REMOVE_SPEC,
            StepName.REMOVE_ENV,
            StepName.FREE_RELEASE,
            StepName.STOP_SLICE,
            *_REPORTED,
        ],
        [f"bcd-{alloc_id(1)}.gpu.mig.json", f"bcd-{alloc_id(1)}.json"],
    ),
    Shape(
        "a slot by MPS",
        [
            StepName.PERSIST_STATE,
            StepName.ENSURE_MPS,
            StepName.PREPARE_DEVICES,
            StepName.WRITE_ENV,
            StepName.WRITE_SPEC,
            StepName.OWE_REPORTS,
            *_REPORTED,
        ],
        [
            StepName.PERSIST_STATE,
            StepName.OWE_RELEASES,
            StepName.REMOVE_SPEC,
            StepName.REMOVE_ENV,
            StepName.FREE_RELEASE,
            StepName.STOP_MPS,
            *_REPORTED,
        ],
        [f"bcd-{alloc_id(1)}.json"],
    ),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway() -> AsyncIterator[FakeGateway]:
    running = FakeGateway()
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
def site(gateway: FakeGateway, tmp_path: Path) -> Site:
    return Site(tmp_path / "host", gateway, profile="hgx-a100-mig")


@dataclass
class Rounds:
    """The same host, put back to where it was before every round."""

    site: Site
    gateway: FakeGateway
    backup: Path

    async def keep(self, wanted: tuple[Assignment, ...]) -> None:
        """Apply generation 1; from here the rounds begin."""
        self.gateway.desired.clear()
        self.gateway.acks.clear()
        self.gateway.want(self.site.node_id, *wanted, generation=1)
        daemon = await start_killed(self.site, 0, self.site.root / "first.log")
        await self.quiet(1)
        assert await daemon.end() == 0, daemon.log()
        shutil.copytree(self.site.root, self.backup, symlinks=True, copy_function=clone)

    def begin(self, wanted: tuple[Assignment, ...]) -> None:
        """A fresh start; the gateway remembers nothing but the state of generation 1."""
        shutil.rmtree(self.site.root)
        shutil.copytree(self.backup, self.site.root, symlinks=True, copy_function=clone)
        for records in (self.gateway.acks, self.gateway.reports, self.gateway.hellos):
            records.clear()
        self.gateway.desired.clear()
        self.gateway.want(self.site.node_id, *wanted, generation=1)

    async def quiet(self, generation: int) -> None:
        """The daemon of this moment has applied a state, and no report of it is left."""
        await self.gateway.until(lambda: any(a.generation == generation for a in self.gateway.acks))
        outbox = self.site.state / "outbox.bin"
        await eventually(lambda: not outbox.exists() or len(outbox.read_bytes()) < 100)

    async def killed_after(self, count: int, then: tuple[Assignment, ...]) -> list[str]:
        """A daemon that takes in generation 2 and dies after ``count`` steps of it."""
        log = self.site.root / "steps.log"
        daemon = await start_killed(self.site, count, log)
        await self.quiet(1)
        await eventually(Path(f"{log}.acked").exists)
        self.gateway.want(self.site.node_id, *then, generation=2)
        if count:
            assert await daemon.wait() == -signal.SIGKILL, daemon.log()
        else:
            await self.quiet(2)
            assert await daemon.end() == 0, daemon.log()
        return log.read_text().split()

    async def finish(self) -> None:
        """Another daemon, until everything is settled."""
        self.gateway.acks.clear()
        daemon = await start_killed(self.site, 0, self.site.root / "last.log")
        await self.quiet(2)
        assert await daemon.end() == 0, daemon.log()

    def disk(self) -> dict[str, bytes]:
        """Everything that a hold consists of."""
        made = self.site.root / "run/bcd-sim"
        places = [self.site.cdi, self.site.env, made / "slices", made / "mps"]
        files = [path for place in places if place.exists() for path in place.iterdir()]
        return {path.name: path.read_bytes() for path in sorted(files)}


def clone(source: str, target: str) -> str:
    """Copy a file or a device node."""
    found = os.lstat(source)
    if stat.S_ISCHR(found.st_mode):
        os.mknod(target, found.st_mode, found.st_rdev)
        return target
    return shutil.copy2(source, target, follow_symlinks=False)


def wanted(site: Site, shape: Shape) -> tuple[Assignment, ...]:
    gpu, mig = site.devices()[0], site.devices(DeviceClass.MIG)[0]
    if StepName.ENSURE_MPS in shape.bind:
        slot = AssignedDevice(f"{gpu.id}::1", DeviceClass.SLOT)
        return (assignment(1, slot, sharing=Sharing(SharingMode.MPS, 4)),)
    return (assignment(1, gpu, mig, limits=limits(cpus="0-3", mems="0")),)


def same_steps(seen: list[str], steps: list[StepName]) -> bool:
    """Whether all steps were taken, those of the pass in order.

    The report, the Ack and the forgetting of the report go their own ways once it is durable.
    """
    after = {StepName.SEND_REPORT, StepName.SEND_ACK, StepName.DROP_REPORTS}
    ordered = [name for name in seen if name not in after]
    return ordered == [name for name in steps if name not in after] and Counter(seen) == Counter(
        steps
    )


async def test_every_step_is_taken_by_one_of_the_holds() -> None:
    taken = {name for shape in SHAPES for name in (*shape.bind, *shape.release)}
    assert taken == set(StepName)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_every_step_of_a_bind_may_be_the_last(
    gateway: FakeGateway, site: Site, tmp_path: Path, shape: Shape
) -> None:
    hold = wanted(site, shape)
    rounds = Rounds(site, gateway, tmp_path / "backup")
    await rounds.keep(())
    rounds.begin(())
    seen = await rounds.killed_after(0, hold)
    assert same_steps(seen, shape.bind), seen
    whole = rounds.disk()
    assert [name for name in whole if name.startswith("bcd-") and name.endswith(".json")] == (
        shape.files
    )
    kills = 0
    for count in range(1, len(shape.bind) + 1):
        rounds.begin(())
        seen = await rounds.killed_after(count, hold)
        assert len(seen) == count
        kills += 1
        await rounds.finish()
        assert rounds.disk() == whole
        reports = [received.report for received in gateway.reports]
        assert {type(report.outcome) for report in reports} == {Bound}
        assert {report.allocation_id for report in reports} == {alloc_id(1)}
    assert kills == len(shape.bind)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_every_step_of_a_release_may_be_the_last(
    gateway: FakeGateway, site: Site, tmp_path: Path, shape: Shape
) -> None:
    hold = wanted(site, shape)
    rounds = Rounds(site, gateway, tmp_path / "backup")
    await rounds.keep(hold)
    rounds.begin(hold)
    seen = await rounds.killed_after(0, ())
    assert same_steps(seen, shape.release), seen
    kills = 0
    for count in range(1, len(shape.release) + 1):
        rounds.begin(hold)
        seen = await rounds.killed_after(count, ())
        assert len(seen) == count
        kills += 1
        await rounds.finish()
        assert rounds.disk() == {}
        last = gateway.reports[-1].report
        assert (last.allocation_id, last.outcome) == (alloc_id(1), Released(slice_empty=True))
    assert kills == len(shape.release)

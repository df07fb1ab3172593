"""A thousand binds and releases, watched by a reader: no name twice, and no half-written file."""

import json
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bcd.model.assignment import Assignment
from bcd.model.device import Device
from bcd.model.report import Bound
from bcd.node.cdi_format import problem_of
from bcd.node.host.cdi import SpecFolders
from bcd.node.ports import Ports
from bcd.node.reports import Reports
from tests.conftest import Rounds
from tests.node.memory import MIG, SLOTS, WHOLE, MemoryHostWorld
from tests.node.passes import FAST, Node, state
from tests.node.world import assignment, limits

POOL = (*WHOLE, *MIG, *SLOTS)


@dataclass
class RealFolders(MemoryHostWorld):
    """A host in memory whose specs lie in real folders."""

    folders: SpecFolders | None = None

    def ports(self) -> Ports:
        assert self.folders is not None
        return replace(super().ports(), cdi=self.folders)


@dataclass
class Reader(threading.Thread):
    """Reads the folder as a runtime does, again and again, and writes down what is wrong."""

    folder: Path
    scans: int = 0
    wrong: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread.__init__(self, daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self.done.is_set():
            self.scan()
            self.scans += 1

    def scan(self) -> None:
        seen: dict[str, int] = {}
        opened: list[int] = []
        try:
            for name in os.listdir(self.folder):
                if not name.endswith((".json", ".yaml")):
                    continue
                try:
                    descriptor = os.open(self.folder / name, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                opened.append(descriptor)
                self._take(name, descriptor, seen)
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _take(self, name: str, descriptor: int, seen: dict[str, int]) -> None:
        text = os.read(descriptor, 1 << 20)
        try:
            document = json.loads(text)
        except ValueError:
            self.wrong.append(f"{name} holds {text[:100]!r}")
            return
        problem = problem_of(document)
        if problem is not None:
            self.wrong.append(f"{name}: {problem}")
            return
        for entry in document["devices"]:
            key = f"{document['kind']}={entry['name']}"
            # Both stood at once if the first is still linked now that the second is open.
            if key in seen and os.fstat(seen[key]).st_nlink:
                self.wrong.append(f"{key} stands in two files")
            seen[key] = descriptor


@pytest.fixture
def fast() -> Iterator[Path]:
    """A folder on a disk that syncs at once."""
    made = Path(tempfile.mkdtemp(dir=FAST))
    yield made
    shutil.rmtree(made)


def holds(chance: random.Random, number: int, before: list[Assignment]) -> list[Assignment]:
    """Some of the holds that stood, and new ones on what they leave free."""
    kept = [hold for hold in before if chance.random() < 0.5]
    taken = {device.id for hold in kept for device in hold.devices}
    free: list[Device] = [device for device in POOL if device.id not in taken]
    chance.shuffle(free)
    made = list(kept)
    for at in range(chance.randrange(1, 4)):
        some, free = free[: chance.randrange(1, 4)], free[4:]
        if some:
            limited = limits(memory_gib=1) if chance.random() < 0.3 else None
            made.append(assignment(number * 4 + at, *some, limits=limited))
    return made


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_reader_never_sees_a_name_twice_or_half_a_file(fast: Path, rounds: Rounds) -> None:
    chance = random.Random(16)
    folder = fast / "cdi"
    folders = SpecFolders(folder, fast / "dynamic")
    node = Node(RealFolders(folders=folders))
    reader = Reader(folder)
    before = descriptors()
    reader.start()
    wanted: list[Assignment] = []
    bound = 0
    try:
        for number in range(1, rounds(1_000, 5_000) + 1):
            wanted = holds(chance, number, wanted)
            node.run(state(*wanted, generation=number))
            forget(node.reports)
            bound += sum(isinstance(outcome, Bound) for outcome in node.outcomes.values())
            names = {spec.allocation_id for spec in folders.read().own}
            assert names <= {hold.allocation_id for hold in wanted}
        node.settle(state(generation=number + 1))
    finally:
        reader.done.set()
        reader.join()
    assert reader.wrong == []
    assert reader.scans > 100
    assert bound > number
    assert os.listdir(folder) == []
    assert node.world.state() == ({}, {}, {}, {})
    assert descriptors() == before


def forget(reports: Reports) -> None:
    """The gateway acknowledges every report."""
    for entry in list(reports.outbox.pending()):
        reports.outbox.acknowledge(entry.number)
    reports.outbox.flush()


def test_the_reader_notices_a_name_in_two_files_and_half_a_file(fast: Path) -> None:
    node = Node(RealFolders(folders=SpecFolders(fast / "cdi", fast / "dynamic")))
    node.run(state(assignment(1, WHOLE[0])))
    reader = Reader(fast / "cdi")
    reader.scan()
    assert reader.wrong == []
    [spec] = (fast / "cdi").iterdir()
    (fast / "cdi/other.json").write_bytes(spec.read_bytes())
    reader.scan()
    assert reader.wrong == ["bcd.dev/gpu=GPU-0 stands in two files"]
    (fast / "cdi/other.json").write_bytes(spec.read_bytes()[:-20])
    reader.scan()
    assert "other.json holds" in reader.wrong[-1]

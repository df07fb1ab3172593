"""Runs passes over a world in memory, and ends them in the middle of a step."""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bcd.model.assignment import Assignment, DesiredState, HostReserve
from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome
from bcd.node import steps
from bcd.node.converge import plan
from bcd.node.execute import Executor
from bcd.node.observe import observe
from bcd.node.outbox import Outbox
from bcd.node.plan import Place, Plan
from bcd.node.reports import Reports
from bcd.signing.keyfile import Credentials
from bcd.signing.keys import generate_key
from tests.node.memory import GIB, MemoryHostWorld
from tests.node.world import alloc_id, node_id

PLACE = Place(
    node_id=node_id(),
    cdi_folder="/etc/cdi",
    env_folder="/run/bcd/allocations",
    run_folder="/run/bcd",
    annotate=True,
)
KEY = Credentials(generate_key(), (), ())
RESERVE = HostReserve(2, 4 * GIB)
# Written a thousand times and never needed again.
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Killed(BaseException):
    """The process ended here."""


def state(*assignments: Assignment, generation: int = 1) -> DesiredState:
    """A desired state of this node."""
    return DesiredState(
        node_id=node_id(),
        epoch=1,
        generation=generation,
        host_reserve=RESERVE,
        assignments=assignments,
    )


@dataclass(repr=False)
class Node:
    """A node without its network: passes over a world, with an outbox on a fast disk."""

    world: MemoryHostWorld = field(default_factory=MemoryHostWorld)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(dir=FAST)))
    done: list[steps.StepName] = field(default_factory=list)
    outcomes: dict[AllocationId, Outcome] = field(default_factory=dict)
    last: Plan | None = None
    overdue: frozenset[AllocationId] = frozenset()
    after_step: Callable[[steps.StepName], None] = lambda _: None

    def __post_init__(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.folder, True)
        self.start()

    def start(self) -> None:
        """A process begins: memory is empty, the outbox is what the disk says."""
        outbox = Outbox.load(self.folder, 1_000_000)
        self.reports = Reports(outbox, self.world.clock, node_id(), lambda: KEY)

    def plan(self, desired: DesiredState | None) -> Plan:
        """What a pass would do now."""
        ports = self.world.ports()
        return plan(desired, observe(ports, self.reports, desired, self.overdue), PLACE)

    def run(self, desired: DesiredState | None) -> Plan:
        """One pass."""
        made = self.plan(desired)
        self.last = made

        def after(name: steps.StepName) -> None:
            self.done.append(name)
            self.after_step(name)

        execution = Executor(self.world.ports(), self.reports, after).run(made)
        outcomes = dict(made.outcomes)
        outcomes |= {id_: f for id_, f in execution.failed.items() if id_ in made.outcomes}
        self.reports.settle(outcomes, everything=False)
        self.outcomes = outcomes
        return made

    def settle(self, desired: DesiredState | None, passes: int = 4) -> None:
        """Pass until a pass has nothing to do."""
        for _ in range(passes):
            if not self.run(desired).steps:
                return
        assert self.last is not None
        raise AssertionError(f"never comes to rest: {self.last.steps}")

    def restart(self) -> None:
        """The process ends and another one begins."""
        self.start()

    def copy(self) -> "Node":
        """The same node in a world of its own."""
        folder = Path(tempfile.mkdtemp(dir=FAST))
        for path in self.folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return Node(self.world.copy(), folder)


def bound(node: Node, number: int) -> bool:
    """Whether an allocation's last outcome is a hold that stands."""
    return isinstance(node.outcomes.get(alloc_id(number)), Bound)


def failure(node: Node, number: int) -> str:
    """Why an allocation's last outcome is none; fails where it is one."""
    outcome = node.outcomes[alloc_id(number)]
    assert isinstance(outcome, Failed), outcome
    return outcome.reason


def conditions(node: Node) -> list[str]:
    """The types of the last pass's conditions, in order."""
    assert node.last is not None
    return [condition.type for condition in node.last.conditions]


def releases(node: Node) -> list[tuple[str, bool]]:
    """(allocation, was its slice empty) of every release that is owed."""
    return [
        (entry.allocation_id, bool(entry.slice_empty))
        for entry in node.reports.outbox.pending()
        if entry.slice_empty is not None
    ]

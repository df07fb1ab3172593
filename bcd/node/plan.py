"""What the planner is given and what it answers: values only, without a rule in them.

``observe`` fills in what is there, ``converge`` plans, ``execute`` and ``holds`` carry it out.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bcd.model.host import HostFacts
from bcd.model.ids import AllocationId
from bcd.model.report import Outcome
from bcd.node import steps
from bcd.node.condition import NodeCondition
from bcd.node.others import OtherHold
from bcd.node.ports import CdiFiles, GpuSnapshot, MachinesUse, MpsState, SliceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What specs, env files and reports say of this host beside the hold."""

    node_id: str
    cdi_folder: str
    env_folder: str
    run_folder: str
    annotate: bool

    def env_path(self, allocation_id: AllocationId) -> str:
        """The env file's absolute path."""
        return f"{self.env_folder}/{allocation_id}.env"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Disk and hardware at the start of a pass.

    ``bound`` are allocations whose last outcome was Bound: their release is owed even when a
    person took the spec away. ``owed`` have a release in the outbox, ``held`` one that waits for
    the removal of its files. ``busy`` are devices of new holds that a compute process uses,
    ``overdue`` new holds that have waited as long as they may.
    """

    gpus: GpuSnapshot
    host: HostFacts
    machines: MachinesUse
    cdi: CdiFiles
    env: Mapping[AllocationId, bytes | None]
    slices: Mapping[AllocationId, SliceState]
    slice_problem: str
    mps: Mapping[str, MpsState]
    bound: frozenset[AllocationId] = frozenset()
    owed: frozenset[AllocationId] = frozenset()
    held: frozenset[AllocationId] = frozenset()
    busy: frozenset[str] = frozenset()
    overdue: frozenset[AllocationId] = frozenset()

    def without(self, ids: frozenset[AllocationId]) -> "Observed":
        """The same as if nothing of these allocations were there."""
        own = tuple(spec for spec in self.cdi.own if spec.allocation_id not in ids)
        return replace(
            self,
            cdi=replace(self.cdi, own=own),
            env={id_: content for id_, content in self.env.items() if id_ not in ids},
            slices={id_: state for id_, state in self.slices.items() if id_ not in ids},
            held=self.held - ids,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in order; what becomes of each wanted allocation if all of its steps succeed.

    ``waits_for``: the additions of an allocation need the removals of these to have succeeded.
    ``waiting``: allocations without an outcome yet, and for what they wait. ``held``: the ids of
    all devices in holds, and of the GPUs that slots in holds lie on.
    """

    steps: tuple[steps.Step, ...]
    outcomes: Mapping[AllocationId, Outcome]
    waits_for: Mapping[AllocationId, frozenset[AllocationId]] = field(default_factory=dict)
    waiting: Mapping[AllocationId, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    conditions: tuple[NodeCondition, ...] = ()
    others: tuple[OtherHold, ...] = ()

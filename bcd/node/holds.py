"""One pass over the node's holds: judge what arrived, observe, plan, execute, report.

A pass is synchronous and runs in a worker thread, one at a time, so that a slow disk or driver
never stops the stream. ``daemon`` calls it; nothing in here waits or retries: the next pass
observes again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bcd.durable import why
from bcd.model.ids import AllocationId
from bcd.model.printable import counted
from bcd.model.report import Bound, Failed, Outcome
from bcd.node import desired as desired_states
from bcd.node.condition import NodeCondition
from bcd.node.converge import plan
from bcd.node.desired import Accepted, Refused, Trust
from bcd.node.execute import AfterStep, Execution, Executor
from bcd.node.inventory import LatestInventory
from bcd.node.observe import observe
from bcd.node.others import bookable
from bcd.node.patience import Patience
from bcd.node.plan import Observed, Place, Plan
from bcd.node.ports import Ports
from bcd.node.reports import Reports
from bcd.node.steps import StepName
from bcd.wire.node.v1 import desired_pb2, gateway_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass came to. ``ack`` answers a desired state, or tells that its outcome changed.

    ``unwritten`` when a state or reports could not be made durable: the next pass tries again.
    """

    ack: gateway_pb2.Ack | None
    refused: Refused | None
    outcomes: Mapping[AllocationId, Outcome]
    waiting: Mapping[AllocationId, str]
    conditions: tuple[NodeCondition, ...]
    steps: int
    inventory_changed: bool
    reports: int
    unwritten: bool

    @property
    def sentence(self) -> str:
        """The one sentence that ends the pass in the log."""
        bound = sum(isinstance(outcome, Bound) for outcome in self.outcomes.values())
        return (
            f"{bound} of {len(self.outcomes)} holds bound,"
            f" {counted(self.steps, 'step')} done, {counted(self.reports, 'report')} made,"
            f" {counted(len(self.conditions), 'condition')}"
        )


@dataclass(slots=True)
class Holds:
    """The node's holds and the state they follow."""

    ports: Ports
    folder: Path
    place: Place
    trust: Callable[[], Trust]
    reports: Reports
    after_step: AfterStep
    stopping: bool = False
    accepted: Accepted | None = None
    inventory: LatestInventory = field(default_factory=LatestInventory)
    applied: Accepted | None = None
    _acked: gateway_pb2.Ack | None = None
    _unwritten: desired_pb2.SignedDesiredState | None = None
    _everything: bool = False
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._patience = Patience(self.ports.clock)

    def load(self) -> None:
        """Read the last accepted state; raises BrokenFile."""
        self.accepted = desired_states.load(self.folder, self.trust())

    def run(
        self, frame: desired_pb2.SignedDesiredState | None, *, everything: bool = False
    ) -> PassResult | None:
        """One pass; ``everything`` reports all holds anew, as a new session wants it.

        None when ``stopping`` was set meanwhile: the next start does the rest, as after a crash.

        What cannot be made durable, a state or reports, is kept for the next pass and told in a
        condition; the pass goes on with the state accepted before. Raises OSError when a folder
        of holds cannot be read.
        """
        troubles: list[NodeCondition] = []
        offered = frame or self._unwritten
        refused = self._accept(offered, troubles) if offered is not None else None
        answered = offered is not None and refused is None and self._unwritten is None
        desired = self.accepted.state if self.accepted is not None else None
        observed = observe(self.ports, self.reports, desired, self._patience.overdue())
        self.reports.boot_id = observed.host.boot_id
        made = plan(desired, observed, self.place)
        execution = Executor(self.ports, self.reports, self.after_step).run(
            made, lambda: self.stopping
        )
        if not execution.complete:
            return None
        self._patience.keep(made.waiting, observed.overdue & made.outcomes.keys())
        outcomes = dict(made.outcomes) | {
            id_: failed for id_, failed in execution.failed.items() if id_ in made.outcomes
        }
        self._everything = self._everything or everything
        queued = self._report(outcomes, troubles)
        self.applied = self.accepted
        return PassResult(
            ack=_rejection(refused) if refused else self._ack(outcomes, answered or everything),
            refused=refused,
            outcomes=outcomes,
            conditions=(*troubles, *made.conditions, *_removal_failures(made, execution)),
            steps=len(execution.done),
            waiting=made.waiting,
            inventory_changed=self._tell(observed, made),
            reports=queued,
            unwritten=bool(troubles),
        )

    def _accept(
        self, frame: desired_pb2.SignedDesiredState, troubles: list[NodeCondition]
    ) -> Refused | None:
        verdict = desired_states.judge(
            frame, self.trust(), self.accepted, self.ports.clock.wall_ms()
        )
        if isinstance(verdict, Refused):
            if frame is self._unwritten:
                self._unwritten = None
            log.warning(
                "desired state refused",
                extra={
                    "reason": str(verdict.reason),
                    "detail": verdict.detail,
                    "epoch": verdict.epoch,
                    "generation": verdict.generation,
                },
            )
            return verdict
        if verdict is not self.accepted:
            try:
                desired_states.persist(self.folder, verdict)
            except OSError as error:
                self._unwritten = frame
                troubles.append(file_trouble("StateNotWritten", error))
                return None
            self.accepted, self._unwritten = verdict, None
            self.after_step(StepName.PERSIST_STATE)
        return None

    def _tell(self, observed: Observed, made: Plan) -> bool:
        """Take the inventory in; before the first look at the GPUs there is none to tell.

        An inventory without devices would take every reservation of the host for lost.
        """
        gpus = observed.gpus
        if gpus.waiting:
            return False
        devices = bookable(gpus, made.others, gpus.in_use - made.held)
        return self.inventory.update(observed.host, devices)

    def _report(
        self, outcomes: Mapping[AllocationId, Outcome], troubles: list[NodeCondition]
    ) -> int:
        try:
            queued = self.reports.settle(outcomes, everything=self._everything)
        except OSError as error:
            troubles.append(file_trouble("ReportsNotWritten", error))
            return 0
        self._everything = False
        if queued:
            self.after_step(StepName.OWE_REPORTS)
        return queued

    def _ack(self, outcomes: Mapping[AllocationId, Outcome], asked: bool) -> gateway_pb2.Ack | None:
        """The Ack of the accepted state, when it was asked for or says something new."""
        if self.accepted is None:
            return None
        errors = [
            gateway_pb2.AckError(allocation_id=id_, reason=outcome.reason)
            for id_, outcome in sorted(outcomes.items())
            if isinstance(outcome, Failed)
        ]
        ack = gateway_pb2.Ack(
            epoch=self.accepted.state.epoch,
            generation=self.accepted.state.generation,
            hash=self.accepted.hash,
            status=gateway_pb2.ACK_STATUS_PARTIAL if errors else gateway_pb2.ACK_STATUS_APPLIED,
            errors=errors,
        )
        if ack == self._acked and not asked:
            return None
        self._acked = ack
        return ack


def file_trouble(type_: str, error: OSError) -> NodeCondition:
    """A file or folder of ours that cannot be used now, with the remedy."""
    path = str(error.filename or "")
    return NodeCondition(
        type_,
        path,
        f"{path}: {why(error)}; holds stay; make room there or mend that path, it is tried again",
    )


def failure_of(error: Exception) -> NodeCondition:
    """Why a whole pass came to nothing."""
    if isinstance(error, OSError):
        return file_trouble("PassFailed", error)
    problem = f"{type(error).__name__}: {error}; this is a fault of bcd, see its log"
    return NodeCondition("PassFailed", "", problem[:512])


def _rejection(refused: Refused) -> gateway_pb2.Ack:
    return gateway_pb2.Ack(
        epoch=refused.epoch,
        generation=refused.generation,
        hash=refused.hash,
        status=gateway_pb2.ACK_STATUS_REJECTED,
        errors=[gateway_pb2.AckError(reason=refused.reason)],
    )


def _removal_failures(made: Plan, execution: Execution) -> tuple[NodeCondition, ...]:
    """What could not be taken away: no outcome tells of it, so a condition does."""
    return tuple(
        NodeCondition("RemovalFailed", str(id_), failed.message)
        for id_, failed in sorted(execution.failed.items())
        if id_ not in made.outcomes
    )

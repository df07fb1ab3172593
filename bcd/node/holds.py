"""One pass over the node's holds: judge what arrived, observe, plan, execute, report.

A pass is synchronous and runs in a worker thread, one at a time, so that a slow disk or driver
never stops the stream. ``daemon`` calls it; nothing in here waits or retries: the next pass
observes again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome
from bcd.node import desired as desired_states
from bcd.node.converge import NodeCondition, Place, Plan, plan
from bcd.node.desired import Accepted, Refused, Trust
from bcd.node.execute import AfterStep, Execution, Executor
from bcd.node.inventory import LatestInventory
from bcd.node.observe import observe
from bcd.node.others import bookable
from bcd.node.ports import Ports
from bcd.node.reports import Reports
from bcd.node.steps import StepName
from bcd.wire.node.v1 import desired_pb2, gateway_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass came to. ``ack`` answers a desired state, or tells that its outcome changed."""

    ack: gateway_pb2.Ack | None
    refused: Refused | None
    outcomes: Mapping[AllocationId, Outcome]
    conditions: tuple[NodeCondition, ...]
    steps: int
    inventory_changed: bool
    reports: int

    @property
    def sentence(self) -> str:
        """The one sentence that ends the pass in the log."""
        bound = sum(isinstance(outcome, Bound) for outcome in self.outcomes.values())
        return (
            f"{bound} of {len(self.outcomes)} holds stand after {self.steps} steps,"
            f" {self.reports} reports queued, {len(self.conditions)} conditions"
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
    accepted: Accepted | None = None
    inventory: LatestInventory = field(default_factory=LatestInventory)
    applied: Accepted | None = None
    _acked: gateway_pb2.Ack | None = None

    def load(self) -> None:
        """Read the last accepted state; raises BrokenFile."""
        self.accepted = desired_states.load(self.folder, self.trust())

    def run(
        self, frame: desired_pb2.SignedDesiredState | None, *, everything: bool = False
    ) -> PassResult:
        """One pass; ``everything`` reports all holds anew, as a new session wants it.

        Raises OSError when state or outbox cannot be written: then nothing was acted on, or
        not reported, and the caller offers the same again with the next pass.
        """
        refused = self._accept(frame) if frame is not None else None
        observed = observe(self.ports, self.reports)
        self.reports.boot_id = observed.host.boot_id
        desired = self.accepted.state if self.accepted is not None else None
        made = plan(desired, observed, self.place)
        execution = Executor(self.ports, self.reports, self.after_step).run(made)
        outcomes = dict(made.outcomes) | {
            id_: failed for id_, failed in execution.failed.items() if id_ in made.outcomes
        }
        queued = self.reports.settle(outcomes, everything=everything)
        if queued:
            self.after_step(StepName.OWE_REPORTS)
        self.applied = self.accepted
        answered = frame is not None and refused is None
        return PassResult(
            ack=_rejection(refused) if refused else self._ack(outcomes, answered or everything),
            refused=refused,
            outcomes=outcomes,
            conditions=made.conditions + _removal_failures(made, execution),
            steps=len(execution.done),
            inventory_changed=self.inventory.update(
                observed.host, bookable(observed.gpus.devices, made.others)
            ),
            reports=queued,
        )

    def _accept(self, frame: desired_pb2.SignedDesiredState) -> Refused | None:
        verdict = desired_states.judge(
            frame, self.trust(), self.accepted, self.ports.clock.wall_ms()
        )
        if isinstance(verdict, Refused):
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
            desired_states.persist(self.folder, verdict)
            self.accepted = verdict
            self.after_step(StepName.PERSIST_STATE)
        return None

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

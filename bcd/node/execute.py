"""Runs a plan's steps through the ports, one by one, and never decides anything itself."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from bcd.model.ids import AllocationId
from bcd.model.report import Failed, FailureReason
from bcd.node import steps
from bcd.node.plan import Plan
from bcd.node.ports import Ports
from bcd.node.reports import Reports

log = logging.getLogger(__name__)

# Additions that must not happen before what they take the place of is gone.
_NEEDS_ROOM = steps.EnsureSlice | steps.EnsureMps | steps.PrepareDevices | steps.WriteSpec

AfterStep = Callable[[steps.StepName], None]


def no_observer(_step: steps.StepName) -> None:
    """Nobody watches the steps."""


def never() -> bool:
    """Nobody stops the run."""
    return False


@dataclass(slots=True)
class Execution:
    """What a plan's run came to: steps that succeeded, and the first failure of each allocation.

    Not ``complete`` when it was told to stop: outcomes of the plan then mean nothing.
    """

    done: list[steps.Step] = field(default_factory=list)
    failed: dict[AllocationId, Failed] = field(default_factory=dict)
    complete: bool = True


class Executor:
    """A failed step ends its own allocation's steps, and those of allocations that wait for it."""

    def __init__(self, ports: Ports, reports: Reports, after_step: AfterStep) -> None:
        self._ports = ports
        self._reports = reports
        self._after_step = after_step

    def run(self, plan: Plan, stopping: Callable[[], bool] = never) -> Execution:
        """Run every step once; expected failures end up in the result.

        ``stopping`` is asked before every step: what a plan has done so far is always safe to
        leave, and the next plan goes on from there.
        """
        execution = Execution()
        for step in plan.steps:
            if stopping():
                execution.complete = False
                break
            failed = self._blocked(step, plan.waits_for, execution) or self._attempt(step)
            if failed is None:
                execution.done.append(step)
                self._log(step)
                self._after_step(step.name)
            else:
                self._fail(step, failed, execution)
        return execution

    def _blocked(
        self,
        step: steps.Step,
        waits_for: Mapping[AllocationId, frozenset[AllocationId]],
        execution: Execution,
    ) -> Failed | None:
        if isinstance(step, steps.OweReleases | steps.StopMps):
            return None
        if step.allocation_id in execution.failed:
            return execution.failed[step.allocation_id]
        if isinstance(step, _NEEDS_ROOM):
            for other in waits_for.get(step.allocation_id, ()):
                if other in execution.failed:
                    return Failed(
                        FailureReason.DEVICE_IN_USE,
                        f"the spec of {other} could not be removed",
                    )
        return None

    def _attempt(self, step: steps.Step) -> Failed | None:
        try:
            return self._perform(step)
        except OSError as error:
            return Failed(
                FailureReason.WRITE_FAILED,
                f"{step.name}: {error.filename or ''}: {error.strerror or error}",
            )

    def _perform(self, step: steps.Step) -> Failed | None:
        match step:
            case steps.OweReleases(releases):
                self._reports.owe(releases)
            case steps.RemoveSpec(_, file):
                self._ports.cdi.remove(file)
            case steps.RemoveEnv(id_):
                self._ports.env.remove(id_)
            case steps.FreeRelease(id_):
                self._reports.free(id_)
            case steps.StopSlice(id_):
                self._ports.slices.stop(id_)  # a late process keeps it for the next pass
            case steps.EnsureSlice(id_, limits):
                return self._ports.slices.ensure(id_, limits)
            case steps.EnsureMps(_, gpu, share):
                return self._ports.mps.ensure(gpu, share)
            case steps.StopMps(gpu):
                self._ports.mps.stop(gpu)  # one that is in use is for the next pass
            case steps.PrepareDevices(_, device_ids):
                return self._ports.gpus.prepare(device_ids)
            case steps.WriteEnv(id_, content):
                self._ports.env.write(id_, content)
            case steps.WriteSpec(_, file, content):
                self._ports.cdi.write(file, content)
            case _:
                assert_never(step)
        return None

    def _fail(self, step: steps.Step, failed: Failed, execution: Execution) -> None:
        if isinstance(step, steps.OweReleases):
            for id_, _ in step.releases:
                execution.failed.setdefault(id_, failed)
        elif isinstance(step, steps.StopMps):
            pass  # no allocation's failure; the next pass tries again
        elif step.allocation_id in execution.failed:
            return
        else:
            execution.failed[step.allocation_id] = failed
        log.warning(
            "step failed",
            extra={
                "step": str(step.name),
                "allocation": getattr(step, "allocation_id", ""),
                "reason": failed.reason,
                "detail": failed.message,
            },
        )

    def _log(self, step: steps.Step) -> None:
        log.info(
            "step done",
            extra={
                "step": str(step.name),
                "allocation": getattr(step, "allocation_id", ""),
                "why": step.reason,
            },
        )

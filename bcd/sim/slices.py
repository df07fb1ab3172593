"""Simulated slices: files in the scratch root, which outlive the daemon as real slices do.

They lie below ``run``, so that a simulated reboot (its removal) takes them away.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bcd.model.assignment import Limits, allocation_of_slice, slice_name
from bcd.model.ids import AllocationId
from bcd.model.report import Failed, FailureReason
from bcd.node.limits import enforced
from bcd.node.ports import SliceState
from bcd.sim.faults import FaultFile


class SimulatedSlices:
    """Implements the ``Slices`` port."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "run/bcd-sim/slices"
        self._faults = FaultFile(root)

    def problem(self) -> str:
        """A simulated host can always do it."""
        return ""

    def read(self) -> Mapping[AllocationId, SliceState]:
        """Every slice, with the limits that were written last."""
        populated = self._faults.read().populated
        found: dict[AllocationId, SliceState] = {}
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                id_ = allocation_of_slice(path.name)
                if id_ is None:
                    continue
                try:
                    limits = msgspec.json.decode(path.read_bytes(), type=Limits)
                except (OSError, msgspec.DecodeError):
                    limits = Limits(cpu_millis=0, memory_bytes=0, hugepages_1gi=0)
                found[id_] = SliceState(limits, id_ not in populated)
        return found

    def ensure(self, allocation_id: AllocationId, limits: Limits) -> Failed | None:
        """Create a slice, or write its limits again."""
        failure = self._faults.read().failing_slices
        if failure:
            return Failed(FailureReason.SLICE_FAILED, failure)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / slice_name(allocation_id)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(enforced(limits)))
        os.replace(temporary, path)
        return None

    def stop(self, allocation_id: AllocationId) -> bool:
        """Remove a slice without processes."""
        if allocation_id in self._faults.read().populated:
            return False
        (self._folder / slice_name(allocation_id)).unlink(missing_ok=True)
        return True

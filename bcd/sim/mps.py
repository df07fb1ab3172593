"""Simulated MPS daemons: files in the scratch root, which outlive the daemon as real ones do."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bcd.model.report import Failed, FailureReason
from bcd.node.ports import MpsState
from bcd.node.sharing import UNKNOWN_SHARE, MpsShare, unknown_memory
from bcd.sim.faults import FaultFile


class SimulatedMps:
    """Implements the ``Mps`` port."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "run/bcd-sim/mps"
        self._faults = FaultFile(root)

    def read(self) -> Mapping[str, MpsState]:
        """Every one that was started; a file that cannot be read is one that does not answer."""
        found: dict[str, MpsState] = {}
        in_use = self._faults.read().in_use
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.glob("GPU-*.json"):
                try:
                    share = msgspec.json.decode(path.read_bytes(), type=MpsShare)
                except (OSError, msgspec.DecodeError):
                    found[path.stem] = MpsState(UNKNOWN_SHARE, ready=False)
                else:
                    found[path.stem] = MpsState(share, ready=True, busy=path.stem in in_use)
        return found

    def ensure(self, gpu: str, share: MpsShare) -> Failed | None:
        """Start one at once, or fail as the faults say; one that is in use stays as it is."""
        failure = self._faults.read().failing_mps
        if failure:
            return Failed(FailureReason.SHARING_FAILED, failure)
        if not share.memory_bytes:
            return unknown_memory(gpu)
        there = self.read().get(gpu)
        if there is not None and there.busy and there.share != share:
            text = f"the MPS daemon of {gpu} gives other shares, and has clients; end them"
            return Failed(FailureReason.SHARING_FAILED, text)
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f"{gpu}.new"
        temporary.write_bytes(msgspec.json.encode(share))
        os.replace(temporary, self._folder / f"{gpu}.json")
        return None

    def stop(self, gpu: str) -> bool:
        """Stop one, unless the faults say that its GPU is in use."""
        if gpu in self._faults.read().in_use:
            return False
        (self._folder / f"{gpu}.json").unlink(missing_ok=True)
        return True

"""The GPUs of a real host: implements the ``Gpus`` port on what the NVML child says.

The supervisor's thread makes a whole new snapshot whenever something changed; the daemon's threads
only take the newest. While NVML cannot be used the last devices stay, of unknown health.
"""

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bcd.model.report import Failed, FailureReason
from bcd.node.edits import NO_EDITS, DeviceEdits, together
from bcd.node.host.kernel_module import kernel_version
from bcd.node.host.nvml import messages
from bcd.node.host.nvml.conditions import (
    Unavailable,
    driver_conditions,
    files_hang,
    gpu_conditions,
    unavailable,
)
from bcd.node.host.nvml.devices import devices_of, in_use, last_places, placed
from bcd.node.host.nvml.health import Policy, Trouble, record, settle, trouble_of
from bcd.node.host.nvml.messages import GpuReading, MigReading
from bcd.node.host.nvml.plausible import Plausible, plausible, printable
from bcd.node.host.nvml.process import Launch
from bcd.node.host.nvml.supervisor import Periods, Supervisor
from bcd.node.host.pci import PciGpu, numa_with_cpus, pci_gpus
from bcd.node.ports import GpuSnapshot
from bcd.node.settings import NvmlSettings

log = logging.getLogger(__name__)

WAITING = "NVML has not answered yet"
# NVML takes in a GPU that came back only when it is started anew; not too often, see ``process``.
_STALE_READINGS = 5
# A hang is known within one and a half deadlines, this part of one before it is even asked for.
_PINGS = 0.4
# nvml.h: nvmlEventTypeXidCriticalError.
_XID = 0x8


_NOTHING = Plausible(())


class Driver(Protocol):
    """Where the driver's nodes and files lie; ``host.driver`` implements it.

    Called by the supervisor's thread and by those of the port, one at a time.
    """

    def common(self, driver_version: str) -> DeviceEdits:
        """What every container needs, of this version only."""
        ...

    def gpu(self, minor: int, pci_address: str) -> DeviceEdits:
        """What a whole GPU needs."""
        ...

    def mig(self, minor: int, pci_address: str, gi: int, ci: int, *, graphics: bool) -> DeviceEdits:
        """What a MIG instance needs; ``minor`` and ``pci_address`` are its GPU's."""
        ...

    def problem(self, edits: DeviceEdits) -> Failed | None:
        """The first node, mount or hook that is not there now."""
        ...

    def fingerprint(self) -> object:
        """Something cheap that differs when the answers may differ."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All that is known; one snapshot follows from it and the driver's files."""

    versions: messages.Ready | None = None
    lives: int = 0
    gpus: tuple[GpuReading, ...] = ()
    left_out: Plausible = _NOTHING
    pci: tuple[PciGpu, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    uuids: Mapping[str, str]
    unavailable: Unavailable | None = None


class NvmlGpus:
    """Implements the ``Gpus`` port, and hears the supervisor."""

    def __init__(
        self,
        root: Path,
        driver: Driver,
        settings: NvmlSettings,
        launch: Launch | None = None,
        periods: Periods | None = None,
    ) -> None:
        self._root = root
        self._driver = driver
        self._settings = settings
        self._policy = Policy(frozenset(settings.fatal_xids), frozenset(settings.ignored_xids))
        self._periods = periods or Periods(
            deadline=settings.deadline_seconds,
            init=settings.init_seconds,
            probe=settings.probe_seconds,
            ping=_PINGS * settings.deadline_seconds,
        )
        self._supervisor = Supervisor(
            root, launch or Launch(), self._periods, settings.ignored_processes, self
        )
        self._files = threading.Lock()
        self._wake: Callable[[], None] = lambda: None
        self._seen = _Seen(uuids={})
        self._stamp: object = None
        self._hung_files = False
        self._readings = itertools.count(1)
        self._number = 0
        self._snapshot = GpuSnapshot(waiting=WAITING)

    # The port.

    def snapshot(self) -> GpuSnapshot:
        """The newest; a number and a reference, never a call."""
        return self._snapshot

    def busy(self, device_ids: Iterable[str]) -> frozenset[str]:
        """Asks NVML now, for at most a deadline; slots of shared GPUs are never busy."""
        if not self._settings.busy_check or self._snapshot.unavailable is not None:
            return frozenset()
        known = {device.id for device in self._snapshot.devices}
        return self._supervisor.count(tuple(id_ for id_ in device_ids if id_ in known))

    def prepare(self, device_ids: tuple[str, ...]) -> Failed | None:
        """Whether NVML still names the devices and all their nodes and files are there now.

        Whether NVML answers at all counts too: a driver that begins to hang tells of no process
        either. Looking at the files takes no longer than a deadline, whatever they lie on.
        """
        snapshot = self._snapshot
        if snapshot.unavailable is not None:
            return snapshot.unavailable
        if snapshot.waiting:
            return Failed(FailureReason.DRIVER_UNAVAILABLE, snapshot.waiting)
        if not self._supervisor.answers():
            text = "NVML has not answered the last question; see nvidia-smi and the kernel's log"
            return Failed(FailureReason.DRIVER_UNAVAILABLE, text)
        answer: list[Failed | None] = []

        def look() -> None:
            with self._files:
                answer.append(self._lacking(snapshot, device_ids))

        looking = threading.Thread(target=look, name="driver-files", daemon=True)
        if self._files.acquire(timeout=self._periods.deadline):
            self._files.release()
            looking.start()
            looking.join(self._periods.deadline)
        return answer[0] if answer else self._slow().failed

    def _lacking(self, snapshot: GpuSnapshot, device_ids: tuple[str, ...]) -> Failed | None:
        wanted = []
        for id_ in device_ids:
            edits = snapshot.edits.get(id_.partition("::")[0])
            if edits is None:
                return Failed(FailureReason.UNKNOWN_DEVICE, f"NVML does not name {id_[:200]}")
            if not edits.nodes:
                return _without_node(id_)
            wanted.append(edits)
        # At once: what the kernel says of all nodes is read once.
        return self._driver.problem(together((*wanted, snapshot.common)))

    def fingerprint(self) -> object:
        """The number of the newest snapshot."""
        return self._number

    def start(self, wake: Callable[[], None]) -> None:
        """Start NVML in its child."""
        self._wake = wake
        self._supervisor.start()

    def close(self) -> None:
        """End the child."""
        self._wake = lambda: None
        self._supervisor.close()

    # The supervisor's words, in its thread.

    def ready(self, ready: messages.Ready) -> None:
        """Keep the versions; the reading that follows shows them."""
        self._seen = replace(self._seen, versions=ready, lives=self._seen.lives + 1)

    def reading(self, reading: messages.Reading) -> bool:
        """Take in all GPUs; True when NVML should be started anew, since one of them is lost."""
        seen, found = self._seen, plausible(reading.gpus)
        gpus = placed(found.gpus, seen.uuids)
        before = {gpu.uuid: gpu for gpu in seen.gpus if gpu.uuid}
        after = {gpu.uuid: gpu for gpu in gpus if gpu.uuid}
        now = time.monotonic()
        if seen.unavailable is not None:
            log.info("NVML can be used again", extra={"gpus": len(after)})
        self._seen = replace(
            seen,
            gpus=gpus,
            left_out=found,
            pci=pci_gpus(self._root),
            troubles=settle(seen.troubles, before, after, now, self._periods.probe),
            uuids=last_places(seen.uuids, gpus),
            unavailable=None,
        )
        self._publish()
        missing = any(c.type == "GpuMissing" for c in self._snapshot.conditions)
        return missing and next(self._readings) % _STALE_READINGS == 0

    def event(self, event: messages.Event) -> bool:
        """Health at once; every event is worth a reading, which tells the rest."""
        trouble = trouble_of(event, self._policy, time.monotonic())
        if trouble is None:
            return event.kind != _XID
        again = any(other.repeats(trouble) for other in self._seen.troubles)
        self._seen = replace(self._seen, troubles=record(self._seen.troubles, trouble))
        if not again:
            log.warning(
                "a GPU is in trouble",
                extra={"gpu": event.uuid, "problem": trouble.health.reason},
            )
            if not self._snapshot.waiting:  # else it would say that there are no GPUs
                self._publish()
        return True

    def failed(self, failure: messages.Failure) -> None:
        """Say so, and keep what was seen last."""
        found = unavailable(failure, kernel_version(self._root))
        if found != self._seen.unavailable:
            log.warning(
                "NVML cannot be used; holds stay, new ones fail",
                extra={"condition": found.condition.type, "problem": found.failed.message},
            )
        self._seen = replace(self._seen, unavailable=found)
        self._publish()

    def idle(self) -> None:
        """Look whether the driver's files changed; the bus is looked at with each reading."""
        with self._looking():
            changed = self._driver.fingerprint() != self._stamp
        if (changed or self._hung_files) and not self._snapshot.waiting:
            self._publish()

    # The snapshot.

    def _publish(self) -> None:
        with self._looking():
            self._stamp = self._driver.fingerprint()
            made = self._make()
        self._hung_files = False
        self._show(made)

    def _show(self, made: GpuSnapshot) -> None:
        changed, self._snapshot = made != self._snapshot, made
        if not changed:
            return
        self._number += 1
        self._wake()

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """While the driver's files are looked at: that it takes too long is said meanwhile."""
        timer = threading.Timer(self._periods.deadline, self._say_slow)
        timer.daemon = True
        timer.start()
        try:
            with self._files:
                yield
        finally:
            timer.cancel()
            timer.join()

    def _say_slow(self) -> None:
        found, seen = self._slow(), self._seen
        self._hung_files = True
        self._show(
            replace(
                self._snapshot,
                devices=devices_of(seen.gpus, {}, seen.troubles, found.condition.type),
                in_use=frozenset(),
                unavailable=found.failed,
                waiting="",
                conditions=(found.condition,),
            )
        )

    def _slow(self) -> Unavailable:
        return files_hang(self._periods.deadline)

    def _make(self) -> GpuSnapshot:
        seen, old = self._seen, self._snapshot
        trouble = seen.unavailable
        numa = {gpu.address: numa_with_cpus(self._root, gpu.numa_node) for gpu in seen.pci}
        unknown = trouble.condition.type if trouble is not None else ""
        devices = devices_of(seen.gpus, numa, seen.troubles, unknown)
        if trouble is not None:
            # The files of a driver that is being replaced are not those of what runs.
            return replace(
                old,
                devices=devices,
                in_use=frozenset(),
                unavailable=trouble.failed,
                waiting="",
                conditions=(trouble.condition,),
            )
        versions = seen.versions
        driver_version = (versions.driver if versions else "") or kernel_version(self._root)
        edits, common = dict(self._edits(seen.gpus)), self._driver.common(driver_version)
        lacking = self._driver.problem(common) if edits else None
        return GpuSnapshot(
            driver_version=printable(driver_version),
            cuda_version=printable(versions.cuda if versions is not None else ""),
            devices=devices,
            edits=edits,
            common=common,
            in_use=in_use(seen.gpus),
            restarts=max(seen.lives - 1, 0),
            problems={
                id_: failed
                for id_, own in edits.items()
                if (failed := self._problem(own, id_) or lacking) is not None
            },
            conditions=(
                *driver_conditions(lacking),
                *seen.left_out.conditions,
                *gpu_conditions(seen.gpus, seen.pci, seen.uuids, seen.left_out.addresses),
            ),
        )

    def _edits(self, gpus: Iterable[GpuReading]) -> Iterable[tuple[str, DeviceEdits]]:
        for gpu in gpus:
            if not gpu.uuid:
                continue
            known = gpu.minor >= 0
            yield gpu.uuid, self._driver.gpu(gpu.minor, gpu.address) if known else NO_EDITS
            for mig in gpu.migs:
                yield mig.uuid, self._mig(gpu, mig) if known else NO_EDITS

    def _mig(self, gpu: GpuReading, mig: MigReading) -> DeviceEdits:
        graphics = "+gfx" in mig.profile
        return self._driver.mig(gpu.minor, gpu.address, mig.gi, mig.ci, graphics=graphics)

    def _problem(self, edits: DeviceEdits, id_: str) -> Failed | None:
        return self._driver.problem(edits) if edits.nodes else _without_node(id_)


def _without_node(id_: str) -> Failed:
    return Failed(FailureReason.DEVICE_NODE_MISSING, f"NVML does not say which node {id_} has")

"""The daemon's loop: runs a pass when something changed and on a tick, beside the link.

The CLI runs one in a process; ``sim.fleet`` runs many on one event loop. Signals, logs and the
exit are the caller's.
"""

import asyncio
import contextlib
import logging
import math
import os
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcd
from bcd.model.ids import AllocationId
from bcd.model.report import Failed, FailureReason, Outcome
from bcd.node.answers import Answers
from bcd.node.condition import NodeCondition
from bcd.node.holds import Holds, PassResult, failure_of
from bcd.node.identity import Identity
from bcd.node.link import Link, Superseded
from bcd.node.metrics import PassTimes
from bcd.node.session import Session, ack_fields
from bcd.node.settings import Settings, settled
from bcd.node.steps import StepName
from bcd.node.watchdog import Watchdog
from bcd.sdnotify import notify
from bcd.wire.bounds import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from bcd.wire.node.v1 import desired_pb2, gateway_pb2, inventory_pb2

log = logging.getLogger(__name__)

EXIT_SUPERSEDED = 4  # bcd.service does not restart on it
_CLOSE_S = 5.0
# Acknowledgements come in a row: one write for all of them, or none if a report comes first.
_FLUSH_AFTER_S = 0.1
# What a new hold waits for, such as the end of a process, often tells nobody that it came.
_WAITING_S = 3.0
_READY_AFTER_S = 60.0


class Daemon:
    """One node's daemon; ``run`` until ``stop``, or until another daemon takes the node over."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        holds: Holds,
        *,
        claimed: int,
        status_socket: Path | None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.ports = holds.ports
        self.instance = str(uuid.uuid4())
        self.counters: Counter[str] = Counter()
        self.outcomes: Mapping[AllocationId, Outcome] = {}
        self.waiting: Mapping[AllocationId, str] = {}
        self.last_pass = ""
        self.pass_times = PassTimes(holds.ports.clock)
        self.session: Session | None = None
        self.link = Link(
            settings.gateway,
            identity,
            holds.ports.clock,
            holds.reports.outbox,
            self,
            self.instance,
            holds.after_step,
            unknown=self.counters,
        )
        self._holds = holds
        self._claimed = claimed
        self._answers = Answers(self, holds)
        self._listening = self._answers.listening(status_socket, settings.metrics.listen)
        self._of_pass: tuple[NodeCondition, ...] = ()
        self._wake = asyncio.Event()
        self._watchdog = Watchdog(holds.ports.clock)
        self._ready = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = False
        self._frame: desired_pb2.SignedDesiredState | None = None
        self._everything = False
        self._due = False
        self._troubled = 0  # passes in a row that failed, or left something unwritten
        self._seen: object = None
        self._flush_at = math.inf

    async def run(self) -> int:
        """Make every hold stand, then stay connected and keep them; returns the exit code.

        systemd hears READY with the first pass that ends well: before, no hold is sure to stand. A
        first pass that takes long is not waited for: what it has not made yet is held down by the
        slices' drop-in, and a workload manager that waits for ever would be no better.
        Neither waits for the status socket or the port of metrics.
        """
        try:
            self._tasks.append(asyncio.create_task(self._listening.run()))
            self._listen_to_hardware()
            await self._first_pass()
            link = asyncio.create_task(self.link.run())
            self._tasks.append(link)
            link.add_done_callback(lambda _: self._wake.set())
            code = await self._loop(link)
            notify("STOPPING=1")
            await self.link.close("superseded" if code else "stopped")
            if self.session is not None:
                await asyncio.wait({link}, timeout=_CLOSE_S)
            return code
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._listening.stop()
            await asyncio.to_thread(self._flush)
            self.ports.gpus.close()
            os.close(self._claimed)

    async def _first_pass(self) -> None:
        first = asyncio.create_task(self._pass())
        slow = asyncio.create_task(self.ports.clock.sleep(_READY_AFTER_S))
        await asyncio.wait({first, slow}, return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        if not first.done():
            log.warning("the first pass takes long; holds that it has not reached are held down")
            self._say_ready()
        await first

    def _say_ready(self) -> None:
        if not self._ready:
            self._ready = True
            notify("READY=1")
            # systemd begins to watch with READY, not before.
            self._tasks.append(asyncio.create_task(self._watchdog.run()))

    def _listen_to_hardware(self) -> None:
        """A change that the GPUs' driver tells of gets a pass at once, not with the next look."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            self._due = True
            self._wake.set()

        def wake_from_thread() -> None:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                loop.call_soon_threadsafe(wake)

        self.ports.gpus.start(wake_from_thread)

    def stop(self) -> None:
        """Let ``run`` end, a pass after its current step; every hold stays."""
        self._stopping = self._holds.stopping = True
        self._wake.set()

    def reload(self, settings: Settings) -> tuple[str, ...]:
        """Take over what may change while running; returns the settings that take a restart."""
        self.settings, kept = settled(self.settings, settings)
        annotate = self.settings.cdi.annotations == "always"
        self._holds.place = replace(self._holds.place, annotate=annotate)
        self._seen = None
        self._wake.set()
        return kept

    # The loop.

    async def _loop(self, link: "asyncio.Task[Superseded | None]") -> int:
        clock = self.ports.clock
        tick = clock.monotonic() + self._until_tick()
        look = 0.0
        while not self._stopping:
            if link.done():
                return self._end_of(link)
            await self._pause(min(look, tick, self._flush_at) - clock.monotonic())
            now = clock.monotonic()
            changed = now >= look and self._fingerprint() != self._seen
            if now >= look:
                look = now + self.settings.passes.watch_seconds
            if changed or self._due or now >= tick:
                await self._pass()
                tick = clock.monotonic() + self._until_tick()
            if now >= self._flush_at:
                self._flush_at = math.inf
                with self._watchdog.work():
                    await asyncio.to_thread(self._flush)
        return 0

    def _end_of(self, link: "asyncio.Task[Superseded | None]") -> int:
        superseded = link.result()
        if superseded is None:
            return 0
        log.error(
            "another daemon has this node's identity and took its session; stopping,"
            " every hold stays: find the other one before starting this one again",
            extra={"process_instance": superseded.process_instance[:64]},
        )
        return EXIT_SUPERSEDED

    async def _pause(self, seconds: float) -> None:
        """Sleep until something happens, at most so long."""
        woken = asyncio.ensure_future(self._wake.wait())
        timer = asyncio.ensure_future(self.ports.clock.sleep(seconds))
        await asyncio.wait({woken, timer}, return_when=asyncio.FIRST_COMPLETED)
        for task in (woken, timer):
            task.cancel()
        await asyncio.gather(woken, timer, return_exceptions=True)
        self._wake.clear()

    def _fingerprint(self) -> object:
        ports = self.ports
        return ports.cdi.fingerprint(), ports.env.fingerprint(), ports.gpus.fingerprint()

    async def _pass(self) -> None:
        frame, self._frame = self._frame, None
        everything, self._everything = self._everything, False
        self._due = False
        self.counters["passes"] += 1
        # Taken before the pass looks: what changes meanwhile, by a person or by the pass itself,
        # gets a pass of its own with the next look.
        self._seen = self._fingerprint()
        try:
            with self._watchdog.work(), self.pass_times.measured():
                result = await asyncio.to_thread(self._holds.run, frame, everything=everything)
        except Exception as error:  # the pass boundary: holds stay, the next tick tries again
            self._frame = self._frame or frame
            self._everything = self._everything or everything
            self._fail(error)
            return
        if result is not None:
            self._take(result)

    def _fail(self, error: Exception) -> None:
        self.counters["failed passes"] += 1
        self._troubled += 1
        condition = failure_of(error)
        self._of_pass = (condition,)
        log.error(
            "pass failed; holds stay as they are, the next pass tries again",
            extra={"problem": condition.message},
            exc_info=None if isinstance(error, OSError) else error,
        )

    def _until_tick(self) -> float:
        """Seconds to the next pass when nothing happens: sooner after trouble, then ever later."""
        every = self.settings.passes.every_seconds
        if self.waiting or any(map(_may_pass, self.outcomes.values())):
            every = min(every, _WAITING_S)
        return min(every, 2.0 ** min(self._troubled - 1, 16)) if self._troubled else every

    def _take(self, result: PassResult) -> None:
        self._troubled = self._troubled + 1 if result.unwritten else 0
        self._of_pass = result.conditions
        self.outcomes = result.outcomes
        self.waiting = result.waiting
        self.last_pass = result.sentence
        if result.refused is not None:
            self.counters["refused desired states"] += 1
        session = self.session
        if session is not None:
            session.send_reports()
            if result.ack is not None:
                session.send_ack(result.ack)
            if result.inventory_changed:
                session.send_inventory()
        log.log(
            logging.INFO if result.steps or result.reports or result.refused else logging.DEBUG,
            "pass ended",
            extra={"result": result.sentence, "generation": self._version()[1]},
        )
        notify(f"STATUS={result.sentence}")
        self._say_ready()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):  # losing it only sends a report twice
            if self._holds.reports.outbox.flush():
                self._holds.after_step(StepName.DROP_REPORTS)

    # What the link asks and tells.

    def hello(self) -> gateway_pb2.Hello:
        """Who we are and what we have applied."""
        epoch, generation = self._version()
        capabilities = ["attested-reports"]
        if not self.ports.slices.problem():
            capabilities.append("devices.limits")
        applied = self._holds.applied
        return gateway_pb2.Hello(
            node_id=self.identity.node_id,
            protocol_version=PROTOCOL_VERSION,
            min_protocol_version=MIN_PROTOCOL_VERSION,
            daemon_version=bcd.__version__,
            boot_id=self._holds.reports.boot_id,
            process_instance=self.instance,
            capabilities=capabilities,
            applied_epoch=epoch,
            applied_generation=generation,
            applied_hash=applied.hash if applied is not None else "",
            inventory_hash=self._holds.inventory.hash,
        )

    def inventory(self) -> inventory_pb2.Inventory:
        """The newest inventory."""
        return self._holds.inventory.frame

    def on_session(self, session: Session | None) -> None:
        """A new session gets every hold reported anew."""
        self.session = session
        if session is not None:
            self.counters["sessions"] += 1
            self._everything = self._due = True
            self._wake.set()

    def on_desired(self, frame: desired_pb2.SignedDesiredState) -> None:
        """Keep the newest until the next pass, which starts now."""
        self._frame = frame
        self._due = True
        self._wake.set()

    def on_report_ack(self, ack: gateway_pb2.ReportAck) -> None:
        """Forget an answered report; an answer that is not "stored" is worth a line.

        Also when a newer outcome has replaced the report meanwhile.
        """
        if ack.status != gateway_pb2.REPORT_ACK_STATUS_STORED:
            self.counters["reports not stored"] += 1
            log.warning("report not stored", extra=ack_fields(ack))
        if not self._holds.reports.outbox.acknowledge(ack.number):
            return
        if self._flush_at == math.inf:
            self._flush_at = self.ports.clock.monotonic() + _FLUSH_AFTER_S
            self._wake.set()

    def _version(self) -> tuple[int, int]:
        applied = self._holds.applied
        return applied.state.version if applied is not None else (0, 0)

    # What people ask.

    @property
    def conditions(self) -> tuple[NodeCondition, ...]:
        """What a person should look at: the last pass's, and what does not listen now."""
        return (*self._of_pass, *self._listening.conditions)

    def status(self) -> dict[str, Any]:
        """The answer to ``bcd status``."""
        return self._answers.status()

    def inventory_document(self) -> dict[str, Any]:
        """The answer to ``bcd inventory``."""
        return self._answers.inventory()


def _may_pass(outcome: Outcome) -> bool:
    """A driver that answers again tells nobody, unless something else changed with it."""
    return isinstance(outcome, Failed) and outcome.reason == FailureReason.DRIVER_UNAVAILABLE

"""The daemon's loop: runs a pass when something changed and on a tick, beside the link.

The CLI runs one in a process; ``sim.fleet`` runs many on one event loop. Signals, logs and the
exit are the caller's.
"""

import asyncio
import contextlib
import logging
import os
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import bcd
from bcd.model.ids import NodeId
from bcd.model.report import Failed, Outcome
from bcd.node.converge import NodeCondition, Place
from bcd.node.execute import AfterStep, no_observer
from bcd.node.holds import Holds, PassResult
from bcd.node.host.folder import claim
from bcd.node.host.systemd import notify, watchdog_seconds
from bcd.node.identity import Identity, load_identity
from bcd.node.link import Link, Superseded
from bcd.node.outbox import Outbox
from bcd.node.ports import Ports
from bcd.node.reports import Reports
from bcd.node.session import Session
from bcd.node.settings import Paths, Settings, paths_of
from bcd.node.status import StatusServer
from bcd.node.steps import StepName
from bcd.signing.certificates import validity_ms
from bcd.wire.bounds import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from bcd.wire.document import to_document
from bcd.wire.node.v1 import desired_pb2, gateway_pb2, inventory_pb2

log = logging.getLogger(__name__)

EXIT_SUPERSEDED = 4  # bcd.service does not restart on it
_CLOSE_S = 5.0

MakePorts = Callable[[Paths, NodeId], Ports]


def open_daemon(
    settings: Settings,
    make_ports: MakePorts,
    *,
    after_step: AfterStep = no_observer,
    serve_status: bool = True,
) -> "Daemon":
    """Claim the daemon's folder, read what is in it, and make the daemon; nothing runs yet.

    Raises BcdError naming the file or setting that cannot be used; no hold has been touched.
    """
    paths = paths_of(settings.paths)
    descriptor = claim(paths.state)
    try:
        identity = load_identity(paths.state)
        ports = make_ports(paths, identity.node_id)
        daemon = Daemon(settings, paths, identity, ports, after_step, serve_status)
    except BaseException:
        os.close(descriptor)
        raise
    daemon.claimed = descriptor
    return daemon


class Daemon:
    """One node's daemon; ``run`` until ``stop``, or until another daemon takes the node over."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        identity: Identity,
        ports: Ports,
        after_step: AfterStep = no_observer,
        serve_status: bool = True,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.ports = ports
        self.instance = str(uuid.uuid4())
        self.counters: Counter[str] = Counter()
        self.conditions: tuple[NodeCondition, ...] = ()
        self.outcomes: dict[str, Outcome] = {}
        self.claimed: int | None = None
        self._after_step = after_step
        self._outbox = Outbox.load(paths.state, ports.clock.wall_ms())
        self._holds = Holds(
            ports=ports,
            folder=paths.state,
            place=Place(
                node_id=identity.node_id,
                env_folder=str(paths.env),
                annotate=settings.cdi.annotations == "always",
            ),
            trust=identity.trust,
            reports=Reports(self._outbox, ports.clock, identity.node_id, lambda: identity.current),
            after_step=after_step,
        )
        self._holds.load()
        self._link = Link(
            settings.gateway,
            identity,
            ports.clock,
            self._outbox,
            self,
            self.instance,
            after_step,
            unknown=self.counters,
        )
        questions = {"status": self.status, "inventory": self.inventory_document}
        self._status = StatusServer(paths.socket, questions) if serve_status else None
        self._wake = asyncio.Event()
        self._stopping = False
        self._frame: desired_pb2.SignedDesiredState | None = None
        self._everything = False
        self._session: Session | None = None
        self._seen: object = None
        self._last = ""

    async def run(self) -> int:
        """Make every hold stand, then stay connected and keep them; returns the exit code.

        Raises BadConfiguration when the status socket cannot be made.
        """
        link: asyncio.Task[Superseded | None] | None = None
        try:
            if self._status is not None:
                await self._status.start()
            await self._pass()
            notify("READY=1")
            link = asyncio.create_task(self._link.run())
            link.add_done_callback(lambda _: self._wake.set())
            code = await self._loop(link)
            notify("STOPPING=1")
            await self._link.close("superseded" if code else "stopped")
            if self._session is not None:
                await asyncio.wait({link}, timeout=_CLOSE_S)
            return code
        finally:
            if link is not None:
                link.cancel()
                await asyncio.gather(link, return_exceptions=True)
            if self._status is not None:
                await self._status.stop()
            await asyncio.to_thread(self._flush)
            if self.claimed is not None:
                os.close(self.claimed)
                self.claimed = None

    def stop(self) -> None:
        """Let ``run`` end; every hold stays."""
        self._stopping = True
        self._wake.set()

    def reload(self, settings: Settings) -> None:
        """Take over what may change while running: pass times and how specs are written."""
        self.settings = settings
        annotate = settings.cdi.annotations == "always"
        self._holds.place = replace(self._holds.place, annotate=annotate)
        self._seen = None
        self._wake.set()

    # The loop.

    async def _loop(self, link: "asyncio.Task[Superseded | None]") -> int:
        due = self.ports.clock.monotonic() + self.settings.passes.every_seconds
        watch = watchdog_seconds()
        while not self._stopping:
            if link.done():
                return self._end_of(link)
            pause = min(self.settings.passes.watch_seconds, watch / 3 if watch else 3_600)
            await self._pause(pause)
            now = self.ports.clock.monotonic()
            if self._frame is not None or self._everything or now >= due or self._changed():
                await self._pass()
                due = now + self.settings.passes.every_seconds
            if self._outbox.dirty:
                await asyncio.to_thread(self._flush)
            if watch is not None:
                notify("WATCHDOG=1")
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

    def _changed(self) -> bool:
        return self._fingerprint() != self._seen

    def _fingerprint(self) -> object:
        ports = self.ports
        return ports.cdi.fingerprint(), ports.env.fingerprint(), ports.gpus.fingerprint()

    async def _pass(self) -> None:
        frame, self._frame = self._frame, None
        everything, self._everything = self._everything, False
        self.counters["passes"] += 1
        # Taken before the pass looks: what changes meanwhile, by a person or by the pass itself,
        # gets a pass of its own with the next look.
        self._seen = self._fingerprint()
        try:
            result = await asyncio.to_thread(self._holds.run, frame, everything=everything)
        except Exception as error:  # the pass boundary: holds stay, the next tick tries again
            self.counters["failed passes"] += 1
            self._frame = self._frame or frame
            self._everything = self._everything or everything
            problem = f"{type(error).__name__}: {error}"
            self.conditions = (NodeCondition("PassFailed", "", problem[:512]),)
            log.exception("pass failed; holds stay as they are, the next pass tries again")
            await self.ports.clock.sleep(min(1.0, self.settings.passes.every_seconds))
            return
        self._take(result)

    def _take(self, result: PassResult) -> None:
        self.conditions = result.conditions
        self.outcomes = {str(id_): outcome for id_, outcome in result.outcomes.items()}
        self._last = result.sentence
        if result.refused is not None:
            self.counters["refused desired states"] += 1
        session = self._session
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

    def _flush(self) -> None:
        with contextlib.suppress(OSError):  # losing it only sends a report twice
            if self._outbox.flush():
                self._after_step(StepName.DROP_REPORTS)

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
        self._session = session
        if session is not None:
            self.counters["sessions"] += 1
            self._everything = True
            self._wake.set()

    def on_desired(self, frame: desired_pb2.SignedDesiredState) -> None:
        """Keep the newest until the next pass, which starts now."""
        self._frame = frame
        self._wake.set()

    def on_report_ack(self, ack: gateway_pb2.ReportAck) -> None:
        """Forget an answered report; an answer that is not "stored" is worth a line."""
        if not self._outbox.acknowledge(ack.number):
            return
        if ack.status != gateway_pb2.REPORT_ACK_STATUS_STORED:
            self.counters["reports not stored"] += 1
            log.warning(
                "report not stored",
                extra={"number": ack.number, "status": ack.status, "reason": ack.reason[:256]},
            )
        self._wake.set()

    def _version(self) -> tuple[int, int]:
        applied = self._holds.applied
        return applied.state.version if applied is not None else (0, 0)

    # What people ask.

    def status(self) -> dict[str, Any]:
        """The answer to ``bcd status``."""
        since_ms, until_ms = validity_ms(self.identity.current.leaf)
        epoch, generation = self._version()
        session = self._session
        return {
            "nodeId": self.identity.node_id,
            "version": bcd.__version__,
            "processInstance": self.instance,
            "gateway": {
                "address": self.settings.gateway.address,
                "connected": session is not None,
                "problem": self._link.problem,
                "sessionEpoch": session.welcome.session_epoch if session is not None else 0,
            },
            "certificate": {
                "notBefore": since_ms,
                "notAfter": until_ms,
                "renewAt": self.identity.renew_at_ms(),
            },
            "desired": {"epoch": epoch, "generation": generation},
            "holds": [_hold_document(id_, o) for id_, o in sorted(self.outcomes.items())],
            "conditions": [
                {"type": c.type, "subject": c.subject, "message": c.message}
                for c in self.conditions
            ],
            "reports": {"waiting": len(self._outbox), "nextNumber": self._outbox.next_number},
            "counters": dict(self.counters),
            "lastPass": self._last,
        }

    def inventory_document(self) -> dict[str, Any]:
        """The answer to ``bcd inventory``."""
        return to_document(self.inventory())


def _hold_document(allocation_id: str, outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Failed):
        return {
            "allocationId": allocation_id,
            "state": "failed",
            "reason": outcome.reason,
            "message": outcome.message,
        }
    return {
        "allocationId": allocation_id,
        "state": "bound",
        "devices": list(getattr(outcome, "cdi_devices", ())),
        "envFile": getattr(outcome, "env_file", ""),
        "cgroupParent": getattr(outcome, "cgroup_parent", ""),
    }

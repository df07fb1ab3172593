"""What people and programs may ask a running daemon: documents made from what it knows.

``daemon`` holds one, which serves them: ``status`` to the command, ``scrape`` to Prometheus.
Nothing here looks at the machine: an answer costs no file system or driver call.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import bcd
from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome, Released
from bcd.node.condition import NodeCondition
from bcd.node.exposition import exposition
from bcd.node.holds import Holds
from bcd.node.identity import Identity
from bcd.node.link import Link
from bcd.node.listening import Listening
from bcd.node.metrics import Measured, PassTimes, families
from bcd.node.scrape import ScrapeServer
from bcd.node.session import Session
from bcd.node.settings import Settings
from bcd.node.status import StatusServer
from bcd.signing.certificates import validity_ms
from bcd.wire.document import to_document
from bcd.wire.inventory import device_states


class Running(Protocol):
    """What of a daemon its answers show, as its last pass and its link left it."""

    settings: Settings
    identity: Identity
    instance: str
    link: Link
    session: Session | None
    counters: Counter[str]
    outcomes: Mapping[AllocationId, Outcome]
    waiting: Mapping[AllocationId, str]
    last_pass: str
    pass_times: PassTimes

    @property
    def conditions(self) -> tuple[NodeCondition, ...]:
        """What a person should look at now."""
        ...


class Answers:
    """The answers of one daemon; each call shows the moment."""

    def __init__(self, daemon: Running, holds: Holds) -> None:
        self._daemon = daemon
        self._holds = holds

    def listening(self, socket: Path | None, listen: str) -> Listening:
        """What serves the answers: a Unix socket, and a port for metrics unless it is empty."""
        questions = {"status": self.status, "inventory": self.inventory}
        status = () if socket is None else (StatusServer(socket, questions),)
        metrics = (ScrapeServer(listen, self.metrics),) if listen else ()
        return Listening((*status, *metrics), self._holds.ports.clock)

    def status(self) -> dict[str, Any]:
        """The answer to ``bcd status``."""
        daemon, outbox = self._daemon, self._holds.reports.outbox
        applied = self._holds.applied
        epoch, generation = applied.state.version if applied is not None else (0, 0)
        session, host = daemon.session, self._holds.inventory.frame.host
        return {
            "nodeId": daemon.identity.node_id,
            "version": bcd.__version__,
            "processInstance": daemon.instance,
            "gateway": {
                "address": daemon.settings.gateway.address,
                "connected": session is not None,
                "problem": daemon.link.problem,
                "sessionEpoch": session.welcome.session_epoch if session is not None else 0,
            },
            "certificate": certificate_document(daemon.identity),
            "driver": {"driverVersion": host.driver_version, "cudaVersion": host.cuda_version},
            "desired": {"epoch": epoch, "generation": generation},
            "holds": [
                *(hold_document(id_, outcome) for id_, outcome in sorted(daemon.outcomes.items())),
                *(waiting_document(id_, reason) for id_, reason in sorted(daemon.waiting.items())),
            ],
            "conditions": [condition_document(condition) for condition in daemon.conditions],
            "reports": {"waiting": len(outbox), "nextNumber": outbox.next_number},
            "counters": self._counters(),
            "lastPass": daemon.last_pass,
        }

    def _counters(self) -> dict[str, int]:
        restarts = self._holds.ports.gpus.snapshot().restarts
        return {**self._daemon.counters, "nvml restarts": restarts}

    def inventory(self) -> dict[str, Any]:
        """The answer to ``bcd inventory``: the frame that the control plane gets."""
        return to_document(self._holds.inventory.frame)

    def metrics(self) -> str:
        """The page of metrics for Prometheus."""
        return exposition(families(self._measured()))

    def _measured(self) -> Measured:
        daemon, frame = self._daemon, self._holds.inventory.frame
        outcomes = list(daemon.outcomes.values())
        holds = Counter(type(outcome).__name__.lower() for outcome in outcomes)
        until_ms = validity_ms(daemon.identity.current.leaf)[1]
        return Measured(
            version=bcd.__version__,
            node_id=daemon.identity.node_id,
            driver_version=frame.host.driver_version,
            cuda_version=frame.host.cuda_version,
            holds=holds | Counter(waiting=len(daemon.waiting)),
            failures=Counter(o.reason for o in outcomes if isinstance(o, Failed)),
            conditions=Counter(condition.type for condition in daemon.conditions),
            devices=Counter(device_states(frame)),
            counters=self._counters(),
            reports_waiting=len(self._holds.reports.outbox),
            connected=daemon.session is not None,
            certificate_seconds_left=(until_ms - self._holds.ports.clock.wall_ms()) / 1000,
            last_pass_seconds=daemon.pass_times.ended_ms / 1000,
            passes=daemon.pass_times.histogram(),
        )


def certificate_document(identity: Identity) -> dict[str, Any]:
    """The current certificate's dates, epoch milliseconds."""
    since_ms, until_ms = validity_ms(identity.current.leaf)
    return {"notBefore": since_ms, "notAfter": until_ms, "renewAt": identity.renew_at_ms()}


def hold_document(allocation_id: AllocationId, outcome: Outcome) -> dict[str, Any]:
    """One allocation as the last pass left it."""
    match outcome:
        case Bound(cdi_devices, env_file, cgroup_parent):
            detail: dict[str, Any] = {
                "state": "bound",
                "devices": list(cdi_devices),
                "envFile": env_file,
                "cgroupParent": cgroup_parent,
            }
        case Failed(reason, message):
            detail = {"state": "failed", "reason": reason, "message": message}
        case Released():
            detail = {"state": "released"}
    return {"allocationId": allocation_id} | detail


def waiting_document(allocation_id: AllocationId, reason: str) -> dict[str, Any]:
    """An allocation that cannot be made yet."""
    return {"allocationId": allocation_id, "state": "waiting", "message": reason}


def condition_document(condition: NodeCondition) -> dict[str, str]:
    """One condition."""
    return {"type": condition.type, "subject": condition.subject, "message": condition.message}

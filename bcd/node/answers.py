"""What people and programs may ask a running daemon: documents made from what it knows.

``daemon`` holds one and serves it on its Unix socket (``status``). Nothing here looks at the
machine: an answer costs no file system or driver call.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import bcd
from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, Outcome, Released
from bcd.node.condition import NodeCondition
from bcd.node.holds import Holds
from bcd.node.identity import Identity
from bcd.node.link import Link
from bcd.node.session import Session
from bcd.node.settings import Settings
from bcd.signing.certificates import validity_ms
from bcd.wire.document import to_document


class Running(Protocol):
    """What of a daemon its answers show, as its last pass and its link left it."""

    settings: Settings
    identity: Identity
    instance: str
    link: Link
    session: Session | None
    counters: Counter[str]
    conditions: tuple[NodeCondition, ...]
    outcomes: Mapping[AllocationId, Outcome]
    last_pass: str


class Answers:
    """The answers of one daemon; each call shows the moment."""

    def __init__(self, daemon: Running, holds: Holds) -> None:
        self._daemon = daemon
        self._holds = holds

    def status(self) -> dict[str, Any]:
        """The answer to ``bcd status``."""
        daemon, outbox = self._daemon, self._holds.reports.outbox
        applied = self._holds.applied
        epoch, generation = applied.state.version if applied is not None else (0, 0)
        session = daemon.session
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
            "desired": {"epoch": epoch, "generation": generation},
            "holds": [hold_document(id_, o) for id_, o in sorted(daemon.outcomes.items())],
            "conditions": [condition_document(condition) for condition in daemon.conditions],
            "reports": {"waiting": len(outbox), "nextNumber": outbox.next_number},
            "counters": dict(daemon.counters),
            "lastPass": daemon.last_pass,
        }

    def inventory(self) -> dict[str, Any]:
        """The answer to ``bcd inventory``: the frame that the control plane gets."""
        return to_document(self._holds.inventory.frame)


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


def condition_document(condition: NodeCondition) -> dict[str, str]:
    """One condition."""
    return {"type": condition.type, "subject": condition.subject, "message": condition.message}

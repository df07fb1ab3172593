"""``bcd holds``: what is handed over on this host, as the disk and the daemon say."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bcd.cli.program import load_settings
from bcd.cli.say import say
from bcd.durable import why
from bcd.model.assignment import Limits
from bcd.model.errors import BcdError, Unavailable
from bcd.model.ids import AllocationId
from bcd.model.printable import printable
from bcd.node.host.standing import SliceFound, StandingHold, cgroup_slices, standing_holds
from bcd.node.settings import Paths, Settings, paths_of
from bcd.node.status import ask
from bcd.sim.machine import profile_of
from bcd.sim.slices import SimulatedSlices

_GIB = 1 << 30
_MAX_LINE = 4096


class _Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """What the daemon says of an allocation; a newer one may say more."""

    allocation_id: str
    state: str
    reason: str = ""
    message: str = ""


def run(config: Path, *, as_json: bool) -> int:
    """Print every hold; raises BcdError when a folder cannot be read."""
    paths = paths_of(load_settings(config, Settings).paths)
    holds = found_holds(paths)
    outcomes = _outcomes(paths)
    documents = [*_documents(holds, outcomes or ())]
    if as_json:
        answer = {"daemon": outcomes is not None, "holds": documents}
        say([json.dumps(answer, indent=2)])
        return 0
    say(printable(line, _MAX_LINE) for document in documents for line in _lines(document))
    if not documents:
        print("bcd: no holds on this host", file=sys.stderr)
    return 0


def found_holds(paths: Paths) -> tuple[StandingHold, ...]:
    """The holds on disk below the settings' paths; raises Unavailable for a folder."""
    try:
        return standing_holds(paths, found_slices(paths.root))
    except OSError as error:
        raise Unavailable(
            f"{error.filename}: cannot be read ({why(error)}); run it as root"
        ) from error


def found_slices(root: Path) -> Mapping[AllocationId, SliceFound]:
    """The host's slices, simulated ones where the host is simulated."""
    if profile_of(root) is None:
        return cgroup_slices(root)
    return {id_: SliceFound(state.empty) for id_, state in SimulatedSlices(root).read().items()}


def _outcomes(paths: Paths) -> tuple[_Outcome, ...] | None:
    """What the last pass came to; None, and a word on stderr, when no daemon says so."""
    try:
        document = ask(paths.socket, "status")
        return msgspec.convert(document["holds"], tuple[_Outcome, ...])
    except (BcdError, LookupError, TypeError, msgspec.ValidationError):
        print("bcd: no running daemon says more; this is what lies on disk", file=sys.stderr)
        return None


def _documents(
    holds: tuple[StandingHold, ...], outcomes: tuple[_Outcome, ...]
) -> Iterator[dict[str, Any]]:
    unmade = {o.allocation_id: o for o in outcomes if o.state in ("failed", "waiting")}
    for hold in holds:
        outcome = unmade.pop(str(hold.allocation_id), None)
        yield _document(hold) | _failure(outcome)
    for id_, outcome in sorted(unmade.items()):
        yield {"allocationId": id_, "state": outcome.state, "devices": []} | _failure(outcome)


def _failure(outcome: _Outcome | None) -> dict[str, Any]:
    return {} if outcome is None else {"reason": outcome.reason, "message": outcome.message}


def _document(standing: StandingHold) -> dict[str, Any]:
    hold, found = standing.hold, standing.found
    document: dict[str, Any] = {
        "allocationId": standing.allocation_id,
        "nodeId": standing.node_id,
        "state": str(standing.state),
        "devices": [device.cdi_name for device in hold.devices] if hold is not None else [],
        "specs": list(standing.specs),
        "envFile": standing.env_file,
    }
    if hold is not None and hold.limits is not None:
        document["limits"] = msgspec.to_builtins(hold.limits)
    if standing.slice:
        document["slice"] = {
            "name": standing.slice,
            "active": found is not None,
            "empty": found is None or found.empty,
            "processes": msgspec.to_builtins(found.runners) if found is not None else [],
        }
    return document | {"problems": list(standing.problems)}


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"{document['allocationId']}  {document['state']}"
    for device in document["devices"]:
        yield f"  device   {device}"
    if "limits" in document:
        yield f"  limits   {_limits(msgspec.convert(document['limits'], Limits))}"
    if "slice" in document:
        yield f"  slice    {_slice(document['slice'])}"
    if document.get("specs"):
        yield f"  env      {document['envFile']}"
    for problem in document.get("problems", ()):
        yield f"  problem  {problem}"
    if document.get("message") or document.get("reason"):
        why = ": ".join(filter(None, (document["reason"], document["message"])))
        yield f"  because  {why}"


def _limits(limits: Limits) -> str:
    cpus = f"{limits.cpu_millis / 1000:g} CPUs" if limits.cpu_millis else "any CPU time"
    memory = f"{limits.memory_bytes / _GIB:g} GiB" if limits.memory_bytes else "any memory"
    text = f"{cpus}, {memory}, {limits.hugepages_1gi} pages of 1 GiB"
    text += f", on CPUs {limits.cpus}" if limits.cpus else ""
    return text + (f", memory of NUMA nodes {limits.mems}" if limits.mems else "")


def _slice(found: dict[str, Any]) -> str:
    if not found["active"]:
        return f"{found['name']}, not active"
    if found["empty"]:
        return f"{found['name']}, empty"
    runners = ", ".join(f"{runner['command']} ({runner['pid']})" for runner in found["processes"])
    return f"{found['name']}, in it: {runners or 'processes'}"

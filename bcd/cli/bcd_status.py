"""``bcd status`` and ``bcd inventory``: what the running daemon sees, for people and programs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcd
from bcd.cli.program import load_settings
from bcd.cli.say import say
from bcd.model.errors import Unavailable
from bcd.model.printable import printable
from bcd.node.settings import Settings, paths_of
from bcd.node.status import ask

_GIB = 1 << 30
_MAX_LINE = 4096


def run(config: Path, question: str, *, as_json: bool) -> int:
    """Ask and print; raises Unavailable when no daemon answers."""
    document = ask(paths_of(load_settings(config, Settings).paths).socket, question)
    say([json.dumps(document, indent=2)] if as_json else _lines(document, question))
    return 0


def _lines(document: Any, question: str) -> list[str]:
    """The answer for people; what came from elsewhere cannot steer their terminal."""
    lines = _status(document) if question == "status" else _inventory(document)
    try:
        return [printable(line, _MAX_LINE) for line in lines]
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Unavailable(
            f"the answer of the daemon is not what this bcd {bcd.__version__} expects; after an"
            " upgrade restart the daemon, or see all of it with -o json"
        ) from error


def _status(document: dict[str, Any]) -> Iterator[str]:
    gateway = document["gateway"]
    yield f"node         {document['nodeId']}"
    state = "connected" if gateway["connected"] else f"not connected: {gateway['problem']}"
    yield f"gateway      {gateway['address']}, {state}"
    yield f"certificate  until {_time(document['certificate']['notAfter'])}"
    desired = document["desired"]
    yield f"desired      epoch {desired['epoch']}, generation {desired['generation']}"
    yield f"reports      {document['reports']['waiting']} waiting"
    yield f"last pass    {document['lastPass']}"
    for hold in document["holds"]:
        detail = _failure(hold) or ", ".join(hold.get("devices", ()))
        yield f"hold         {hold['allocationId']}  {hold['state']}  {detail}"
    for condition in document["conditions"]:
        yield f"condition    {condition['type']} {condition['subject']}: {condition['message']}"


def _failure(hold: dict[str, Any]) -> str:
    return ": ".join(filter(None, (hold.get("reason"), hold.get("message"))))


def _inventory(document: dict[str, Any]) -> Iterator[str]:
    host = document.get("host", {})
    yield f"host    {host.get('hostname', '')}, kernel {host.get('kernel', '')}"
    yield f"cpus    {host.get('onlineCpus', '')}"
    yield f"memory  {host.get('memoryBytes', 0) // _GIB} GiB"
    for node in host.get("numaNodes", []):
        memory = node.get("memoryBytes", 0) // _GIB
        yield f"numa {node.get('id', 0):<3}{memory} GiB, cpus {node.get('cpus') or 'none'}"
    for device in document.get("devices", []):
        health = device.get("health", {})
        state = "healthy" if health.get("state") == 1 else health.get("reason") or "unhealthy"
        profile = f" {device['profile']}" if device.get("profile") else ""
        yield f"{device['deviceClass']:<8}{device['id']}  {device['model']}{profile}  {state}"


def _time(epoch_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_ms / 1000))

"""``bcd status`` and ``bcd inventory``: what the running daemon sees, for people and programs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcd
from bcd.cli.bcd_inventory import driver
from bcd.cli.bcd_inventory import lines as inventory
from bcd.cli.program import load_settings
from bcd.cli.say import say
from bcd.model.errors import Unavailable
from bcd.model.printable import printable
from bcd.node.settings import Settings, paths_of
from bcd.node.status import ask

_MAX_LINE = 4096


def run(config: Path, question: str, *, as_json: bool) -> int:
    """Ask and print; raises Unavailable when no daemon answers."""
    socket = paths_of(load_settings(config, Settings).paths).socket
    document = ask(socket, question)
    if as_json:
        say([json.dumps(document, indent=2)])
    else:
        status = document if question == "status" else ask(socket, "status")
        say(_lines(document, question, status))
    return 0


def _lines(document: Any, question: str, status: Any) -> list[str]:
    """The answer for people; what came from elsewhere cannot steer their terminal."""
    try:
        lines = _status(document) if question == "status" else inventory(document, _held(status))
        return [printable(line, _MAX_LINE) for line in lines]
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Unavailable(
            f"the answer of the daemon is not what this bcd {bcd.__version__} expects; after an"
            " upgrade restart the daemon, or see all of it with -o json"
        ) from error


def _status(document: dict[str, Any]) -> Iterator[str]:
    gateway = document["gateway"]
    yield f"node         {document['nodeId']}, bcd {document['version']}"
    state = "connected" if gateway["connected"] else f"not connected: {gateway['problem']}"
    yield f"gateway      {gateway['address']}, {state}"
    yield f"certificate  until {_time(document['certificate']['notAfter'])}"
    desired = document["desired"]
    yield f"desired      epoch {desired['epoch']}, generation {desired['generation']}"
    yield f"driver       {driver(document['driver'])}"
    waiting = document["reports"]["waiting"]
    yield f"reports      {waiting or 'none'} waiting for the gateway"
    yield f"last pass    {document['lastPass'] or 'none has ended well yet'}"
    for hold in document["holds"]:
        detail = _failure(hold) or ", ".join(hold.get("devices", ()))
        yield f"hold         {hold['allocationId']}  {hold['state']}  {detail}"
    for condition in document["conditions"]:
        about = " ".join(filter(None, (condition["type"], condition["subject"])))
        yield f"condition    {about}: {condition['message']}"


def _failure(hold: dict[str, Any]) -> str:
    return ": ".join(filter(None, (hold.get("reason"), hold.get("message"))))


def _held(status: dict[str, Any]) -> dict[str, str]:
    """Allocations by the CDI names of the devices that they have."""
    holds = (hold for hold in status["holds"] if hold["state"] == "bound")
    return {name: hold["allocationId"] for hold in holds for name in hold["devices"]}


def _time(epoch_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_ms / 1000))

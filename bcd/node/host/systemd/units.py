"""systemd's operations, one connection each; org.freedesktop.systemd1(5).

Nothing but ``child`` may import this module: pystemd belongs in a process of its own.
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from pystemd.dbusexc import DBusBaseError
from pystemd.dbuslib import DBusAddress, apply_signature

_SERVICE = b"org.freedesktop.systemd1"
_PATH = b"/org/freedesktop/systemd1"
_MANAGER = b"org.freedesktop.systemd1.Manager"
_UNIT = b"org.freedesktop.systemd1.Unit"
# PID 1 that re-executes itself drops its connections.
_DROPPED = (-errno.ECONNRESET, -errno.ENOTCONN)
_LOOK_S = 0.02
_PATIENCE_S = 15.0
_CLOSE = (-1, None)


class _Stuck(RuntimeError):
    """A job that does not come to its end."""


class _Manager:
    """systemd's manager object, on one connection."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus

    def state(self, name: bytes) -> str:
        """ActiveState of a unit, which is loaded for it when need be."""
        path = self.call(b"LoadUnit", b"s", name).body
        return str(self._bus.get_property(_SERVICE, path, _UNIT, b"ActiveState", b"s").decode())

    def wait_for(self, name: bytes, *states: str) -> None:
        """Return once the unit is in one of the states; raises _Stuck."""
        deadline = time.monotonic() + _PATIENCE_S
        while (state := self.state(name)) not in states:
            if time.monotonic() > deadline:
                raise _Stuck(f"{name.decode()} stays {state} and does not become {states[0]}")
            time.sleep(_LOOK_S)

    def wait_for_jobs(self, name: bytes) -> None:
        """Return once nothing is under way for the unit any more; raises _Stuck."""
        path = self.call(b"LoadUnit", b"s", name).body
        deadline = time.monotonic() + _PATIENCE_S
        while self._bus.get_property(_SERVICE, path, _UNIT, b"Job", b"(uo)")[0]:
            if time.monotonic() > deadline:
                raise _Stuck(f"{name.decode()} does not come to its start")
            time.sleep(_LOOK_S)

    def call(self, method: bytes, signature: bytes, *values: object) -> Any:
        """Call a method whose arguments are plain."""
        return self._call(method, apply_signature(signature, list(values)))

    def start_transient(self, name: bytes) -> None:
        """StartTransientUnit with a description only."""
        arguments = apply_signature(b"ss", [name, b"fail"])
        arguments += _properties([["Description", "s", "GPU reservation"]])
        arguments += [(ord("a"), b"(sa(sv))"), _CLOSE]
        self._call(b"StartTransientUnit", arguments)

    def set_properties(self, name: bytes, properties: list[Any]) -> None:
        """SetUnitProperties until the next boot."""
        arguments = apply_signature(b"sb", [name, True]) + _properties(properties)
        self._call(b"SetUnitProperties", arguments)

    def _call(self, method: bytes, arguments: list[Any]) -> Any:
        return self._bus.call_method(_SERVICE, _PATH, _MANAGER, method, arguments)


def _properties(entries: list[Any]) -> list[Any]:
    """``a(sv)`` in the flat form that pystemd appends to a message."""
    flat: list[Any] = [(ord("a"), b"(sv)")]
    for name, signature, value in entries:
        given = value.encode() if isinstance(value, str) else value
        flat += [(ord("r"), b"sv"), (ord("s"), name.encode()), (ord("v"), signature.encode())]
        flat += apply_signature(signature.encode(), [given])
        flat += [_CLOSE, _CLOSE]
    return [*flat, _CLOSE]


def _apply(manager: _Manager, request: dict[str, Any]) -> None:
    name = request["name"].encode()
    if manager.state(name) != "active":
        try:
            manager.start_transient(name)
        except DBusBaseError as error:
            if error.errno != -errno.EEXIST:
                raise
            # A fragment of an earlier life: start what is there, the properties follow.
            manager.call(b"StartUnit", b"ss", name, b"fail")
        manager.wait_for(name, "active")
    manager.set_properties(name, request["properties"])
    # PID 1 writes the control files before it takes the next message: this answer says they are.
    manager.state(name)


def _running(manager: _Manager, request: dict[str, Any]) -> None:
    name = request["name"].encode()
    state = manager.state(name)
    # Before systemd starts one again it has ended all that was left of the last.
    if state not in ("inactive", "failed", "activating"):
        raise _Stuck(f"{name.decode()} is {state}")


def _start(manager: _Manager, request: dict[str, Any]) -> None:
    name = request["name"].encode()
    # Nothing becomes of it when the unit is active: what runs goes on.
    manager.call(b"StartUnit", b"ss", name, b"replace")
    manager.wait_for_jobs(name)
    if manager.state(name) != "active":
        # It would try again and again, whoever wants it still.
        manager.call(b"StopUnit", b"ss", name, b"replace")
        manager.wait_for(name, "inactive", "failed")
        raise _Stuck(f"{name.decode()} failed; see journalctl -u {name.decode()}")


def _stop(manager: _Manager, request: dict[str, Any]) -> None:
    name = request["name"].encode()
    if manager.state(name) not in ("inactive", "failed"):
        manager.call(b"StopUnit", b"ss", name, b"fail")
        manager.wait_for(name, "inactive", "failed")
    if manager.state(name) == "failed":
        manager.call(b"ResetFailedUnit", b"s", name)
    if request.get("revert"):
        manager.call(b"RevertUnitFiles", b"as", [name])


_OPERATIONS: dict[str, Callable[[_Manager, dict[str, Any]], None]] = {
    "apply": _apply,
    "running": _running,
    "start": _start,
    "stop": _stop,
}


def operate(request: dict[str, Any]) -> str:
    """Run an operation; says what went wrong, for people, or nothing."""
    try:
        try:
            _converse(request)
        except DBusBaseError as error:
            if error.errno not in _DROPPED:
                raise
            _converse(request)
    except DBusBaseError as error:
        said = error.err_message
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        return f"systemd says: {text or os.strerror(-error.errno)} ({os.strerror(-error.errno)})"
    except _Stuck as error:
        return str(error)
    return ""


def _converse(request: dict[str, Any]) -> None:
    with DBusAddress(request["address"].encode(), peer_to_peer=True) as bus:
        _OPERATIONS[request["operation"]](_Manager(bus), request)

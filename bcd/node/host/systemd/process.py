"""The daemon's end of one child that speaks to systemd: starts it, asks, and lets go of it.

A child that does not answer is killed and never waited for; ``gone`` reaps it once it has ended.
"""

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from bcd.node.host.systemd.child import MAX_LINE

_PIECE = 1 << 16
_VARIABLES = ("PATH", "LANG", "LD_LIBRARY_PATH")
COMMAND = (sys.executable, "-P", "-m", "bcd.node.host.systemd.child")


class Silent(Exception):
    """No answer came within the deadline."""


class Ended(Exception):
    """The child ended without an answer; ``str()`` says how."""


class Nonsense(Exception):
    """The child said what is no answer; ``str()`` says what about it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a child is started; none of the daemon's secrets is among its variables."""

    command: tuple[str, ...] = COMMAND

    def environment(self) -> dict[str, str]:
        """The child's variables: it finds the modules that the daemon finds."""
        kept = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class ChildProcess:
    """One child that runs. Every method is for one thread at a time."""

    def __init__(self, launch: Launch) -> None:
        """Start it; raises OSError when the host cannot."""
        self._process = subprocess.Popen(
            launch.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=launch.environment(),
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)
        self.asked = 0

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, request: dict[str, Any], until: float) -> str:
        """What the child says before the monotonic time ``until``.

        Raises Silent, Ended or Nonsense; then it is of no more use.
        """
        self.asked += 1
        self._write(json.dumps(request | {"number": self.asked}).encode() + b"\n", until)
        return _said(self._line(until), self.asked)

    def let_go(self) -> None:
        """Close its pipes, which ends one that waits for a request."""
        self._in.close()
        self._out.close()

    def kill(self) -> None:
        """End it, as far as the kernel can, and close its pipes; never waits."""
        self._process.kill()
        self.let_go()

    def gone(self, wait_s: float = 0.0) -> bool:
        """Whether it has ended, within so long, and is reaped."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _write(self, data: bytes, until: float) -> None:
        while data:
            _await(self._in.fileno(), select.POLLOUT, until)
            try:
                data = data[os.write(self._in.fileno(), data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Ended(self._how()) from error

    def _line(self, until: float) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            _await(self._out.fileno(), select.POLLIN, until)
            try:
                piece = os.read(self._out.fileno(), _PIECE)
            except BlockingIOError:
                continue
            if not piece:
                raise Ended(self._how())
            line += piece
            if len(line) > MAX_LINE:
                raise Nonsense(f"it sent more than {MAX_LINE} bytes")
        return line

    def _how(self) -> str:
        code = self._process.poll()
        return "it ended by itself" + ("" if code is None else f" with code {code}")


def _await(descriptor: int, event: int, until: float) -> None:
    """Return once a pipe can be used, or has no other end any more; raises Silent."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise Silent


def _said(line: bytes, number: int) -> str:
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise Nonsense("it sent what is no answer") from error
    if isinstance(answer, dict):
        if isinstance(answer.get("ended"), str):
            raise Ended(answer["ended"])
        if answer.get("number") == number and isinstance(answer.get("said"), str):
            return str(answer["said"])
    raise Nonsense("it sent what is no answer")

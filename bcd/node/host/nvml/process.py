"""The daemon's end of one NVML child: starts it, talks to it, and lets go of it without waiting.

A child that hangs in the driver may survive SIGKILL for as long as the driver likes. It is killed
and counted among the ``Abandoned``, never waited for.
"""

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bcd.node.host.nvml import messages

_PIECE = 1 << 16
# A hung child holds memory and a process of the host; more of them would tell nothing new.
MAX_ABANDONED = 3
_LOOK_S = 0.01
_VARIABLES = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")


class Lost(Exception):
    """The child is of no more use; ``failure`` says why."""

    def __init__(self, failure: messages.Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Launch:
    """How a child is started: its arguments, where its library lies (empty: where the loader
    looks), and further variables. ``kill`` ends it."""

    arguments: tuple[str, ...] = (sys.executable, "-P", "-m", "bcd.node.host.nvml.child")
    library_folder: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    kill: Callable[["subprocess.Popen[bytes]"], None] = field(default=subprocess.Popen.kill)

    def environment(self) -> dict[str, str]:
        """The child's variables; none of the daemon's secrets is among them."""
        kept = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        if self.library_folder:
            kept["LD_LIBRARY_PATH"] = self.library_folder
        return kept | dict(self.variables)


class ChildProcess:
    """One child that runs; every method is for one thread."""

    def __init__(self, launch: Launch) -> None:
        """Start it; raises OSError when the host cannot."""
        self._launch = launch
        self._process = subprocess.Popen(
            launch.arguments,
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
        os.set_blocking(self._out.fileno(), False)
        self._inbox = messages.Inbox()
        self._answers: deque[messages.Answer] = deque()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, request: messages.Request) -> None:
        """Ask; one question at a time fits into the pipe. Raises Lost."""
        try:
            self._in.write(messages.frame(request))
        except OSError as error:
            raise self._ended() from error

    def receive(self, until: float, wake: int) -> messages.Answer | None:
        """The next answer, None at the monotonic time ``until`` or when ``wake`` is readable.

        Raises Lost when the child has ended or talks nonsense.
        """
        out = self._out.fileno()
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not self._answers:
            left = until - time.monotonic()
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, left) * 1000)]
            if out in ready:
                self._read()
            elif ready or left <= 0:
                return None
        return self._answers.popleft()

    def _read(self) -> None:
        try:
            piece = os.read(self._out.fileno(), _PIECE)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._ended() from error
        if not piece:
            raise self._ended()
        try:
            self._answers.extend(messages.answer(body) for body in self._inbox.take(piece))
        except messages.Malformed as error:
            text = f"the NVML process sent what is no message: {error}"
            raise Lost(messages.Failure(code=messages.ENDED, text=text)) from error

    def _ended(self) -> Lost:
        code = self._process.poll()
        how = "" if code is None else f" with code {code}"
        return Lost(
            messages.Failure(code=messages.ENDED, text=f"the NVML process ended by itself{how}")
        )

    def abandon(self) -> None:
        """Kill it and close its pipes; never waits."""
        self._launch.kill(self._process)
        self._in.close()
        self._out.close()

    def gone(self) -> bool:
        """Whether it has ended and is reaped."""
        return self._process.poll() is not None


class Abandoned:
    """Children that were killed and have perhaps not ended yet."""

    def __init__(self) -> None:
        self._children: list[ChildProcess] = []

    def __len__(self) -> int:
        """How many have not ended."""
        self._children = [child for child in self._children if not child.gone()]
        return len(self._children)

    def add(self, child: ChildProcess) -> None:
        """Kill one and keep it in mind until it is gone."""
        child.abandon()
        self._children.append(child)

    def full(self) -> bool:
        """Whether so many hang that no other may be started."""
        return len(self) >= MAX_ABANDONED

    def settle(self, seconds: float) -> None:
        """Give the last ones so long to end, so that they leave no zombies."""
        until = time.monotonic() + seconds
        while len(self) and time.monotonic() < until:
            time.sleep(_LOOK_S)

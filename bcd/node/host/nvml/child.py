"""The NVML child: ``python -m bcd.node.host.nvml.child [DRIVER_ROOT]``.

Requests come on stdin, answers go to stdout; the library is that of the driver root, if given.

NVML is started once and stays so. The main thread makes the calls and may hang in one; another
reads stdin and ends the process when it closes, because then the daemon is gone, however it ended.
Signals that a service manager or a terminal sends to all are left to the daemon.
"""

import os
import queue
import signal
import sys
import threading
import time
from types import TracebackType
from typing import NoReturn

import pynvml

from bcd.node.host.nvml import messages
from bcd.node.host.nvml.calls import Errors, explain
from bcd.node.host.nvml.events import EventThread
from bcd.node.host.nvml.library import load_below, load_problem, loaded_library
from bcd.node.host.nvml.reading import Reader

_MAX_TEXT = 500
_LOOK_S = 0.1
_NO_LIBRARY = 12  # nvml.h


class _Out:
    """Sends answers from several threads, each whole."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: messages.Answer) -> None:
        """Write a message; a daemon that is gone ends the child."""
        left = memoryview(messages.frame(message))
        try:
            with self._lock:
                while left:
                    left = left[os.write(self._descriptor, left) :]
        except OSError:
            os._exit(0)


class _Calls:
    """Tells the daemon which call is under way, a few times a second.

    A call that is over before anybody looks is not told of: there may be thousands in a reading.
    One that hangs is, by the thread that looks; each later call has a time of its own.
    """

    def __init__(self, out: _Out) -> None:
        self._out = out
        self._now: tuple[int, str] = (0, "")
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, call: str) -> None:
        """A call begins, and the one before it is over."""
        self._now = self._now[0] + 1, call

    def _run(self) -> NoReturn:
        told = 0
        while True:
            time.sleep(_LOOK_S)
            number, call = self._now
            if number != told:
                told = number
                self._out.send(messages.Progress(call=call))


def main() -> NoReturn:
    """Serve until stdin closes or NVML cannot be used."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A library that prints must not write into our messages.
    out = _Out(os.dup(1))
    os.dup2(2, 1)

    def report(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        text = f"{kind.__name__}: {error}"[:_MAX_TEXT]
        out.send(messages.Failure(code=messages.ENDED, text=text))

    sys.excepthook = report
    requests: queue.SimpleQueue[messages.Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    try:
        _serve(requests, out)
    except pynvml.NVMLError as error:
        out.send(_failure(error))
    os._exit(1)


def _listen(requests: "queue.SimpleQueue[messages.Request]") -> None:
    inbox = messages.Inbox()
    try:
        while piece := os.read(0, 1 << 16):
            for body in inbox.take(piece):
                requests.put(messages.request(body))
    except (OSError, messages.Malformed):
        pass
    os._exit(0)


def _serve(requests: "queue.SimpleQueue[messages.Request]", out: _Out) -> NoReturn:
    begin = _Calls(out).begin
    # Loading a library keeps all threads waiting, so that the one that looks could not tell of it.
    out.send(messages.Progress(call="nvmlInit"))
    if sys.argv[1:]:
        load_below(sys.argv[1])
    pynvml.nvmlInit()
    out.send(_ready())
    reader, events = Reader(begin), EventThread(out.send, begin)
    while True:
        match requests.get():
            case messages.Read(ignored=ignored):
                reading = messages.Reading(gpus=reader.read(frozenset(ignored)))
                events.watch(reader.gpus)
                out.send(reading)
            case messages.Count(ids=ids, ignored=ignored):
                out.send(messages.Counts(busy=reader.busy(ids, frozenset(ignored))))
            case messages.Ping():
                reader.ping()
                out.send(messages.Pong())


def _ready() -> messages.Ready:
    ask = Errors().optional
    cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2) or 0
    return messages.Ready(
        driver=str(ask(pynvml.nvmlSystemGetDriverVersion) or ""),
        nvml=str(ask(pynvml.nvmlSystemGetNVMLVersion) or ""),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        library=loaded_library(),
    )


def _failure(error: "pynvml.NVMLError") -> messages.Failure:
    """The version is told by a library that does not fit the driver, too."""
    if error.value == _NO_LIBRARY:
        return messages.Failure(code=_NO_LIBRARY, text=load_problem(*sys.argv[1:2])[:_MAX_TEXT])
    nvml = Errors().optional(pynvml.nvmlSystemGetNVMLVersion)
    return messages.Failure(
        code=int(error.value), text=explain(error), nvml=str(nvml or ""), library=loaded_library()
    )


if __name__ == "__main__":
    main()

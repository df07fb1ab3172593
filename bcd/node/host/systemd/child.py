"""The child that speaks to systemd: ``python -m bcd.node.host.systemd.child``.

Reads one operation per line of standard input as JSON, and answers each with one line that says
what went wrong, or nothing. Ends when standard input closes, because then the daemon let go of it
or is gone, however it ended; a call that hangs meanwhile is ended by the kernel's alarm.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO

import bcd

MAX_LINE = 1 << 16
# Beyond the daemon's own deadline: only a child that nobody kills lives so long. The alarm's
# default action needs no interpreter, which pystemd blocks.
ALARM_S = 60.0
_MAX_TEXT = 500
UPGRADING = "systemd was not asked: bcd is being upgraded; restart it with systemctl restart bcd"
Operate = Callable[[dict[str, Any]], str]


def serve(operate: Operate, requests: BinaryIO, answers: int, alarm_s: float = ALARM_S) -> None:
    """Answer one request after the other, until there is none or nobody listens any more.

    Nothing is done for a daemon of another version: it was there before this child was installed,
    and may mean something else by what it asks.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while line := requests.readline(MAX_LINE):
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, alarm_s)
        said = operate(request) if request.get("version") == bcd.__version__ else UPGRADING
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not _send(answers, {"number": request["number"], "said": said[:_MAX_TEXT]}):
            return


def prepare() -> int:
    """Leave signals to the daemon, and keep the answers free of what libraries print.

    Returns where answers go. What ends the child is told there as well.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)

    def report(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
        _send(answers, {"ended": f"{kind.__name__}: {error}"[:_MAX_TEXT]})

    sys.excepthook = report
    return answers


def _send(answers: int, answer: dict[str, Any]) -> bool:
    """Short enough that a pipe takes it whole; False when the daemon is gone."""
    try:
        os.write(answers, json.dumps(answer).encode() + b"\n")
    except OSError:
        return False
    return True


def main() -> None:
    """Serve systemd's operations; a host without pystemd gets to know it."""
    answers = prepare()
    from bcd.node.host.systemd.units import operate

    serve(operate, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()

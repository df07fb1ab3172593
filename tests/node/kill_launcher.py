"""Runs ``bcd`` in a process of its own that kills itself after a step, for tests that want that.

``python -m tests.node.kill_launcher CONFIG PROFILE COUNT LOG``: from the first persisted state on,
every step's name goes to LOG; the step with number COUNT is the last thing the process does (0:
none is). An Ack before that makes LOG.acked: a test must not go on while it is under way, since
its step would be counted with those that follow. SIGKILL is the one end that runs no clean-up, as
power loss does.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from bcd.cli.bcd_run import run
from bcd.node.steps import StepName


def main() -> None:
    config, profile, count, log = sys.argv[1:]
    steps, lock = 0, threading.Lock()

    def after_step(name: StepName) -> None:
        nonlocal steps
        with lock:  # passes run in one thread, the session in another
            if not steps and name is not StepName.PERSIST_STATE:
                if name is StepName.SEND_ACK:
                    Path(f"{log}.acked").touch()
                return
            steps += 1
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{name}\n".encode())
            os.close(descriptor)
            if steps == int(count):
                os.kill(os.getpid(), signal.SIGKILL)

    raise SystemExit(run(Path(config), profile, after_step))


if __name__ == "__main__":
    main()

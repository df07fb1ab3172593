"""A child that speaks to no systemd: it does what the name of the unit says.

``python -m tests.node.host.systemd.fake_child LOG [ALARM_S]`` notes its process id and the name of
each operation in LOG.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from bcd.node.host.systemd.child import ALARM_S, prepare, serve


def main() -> None:
    """Serve until the daemon's end lets go."""
    log = Path(sys.argv[1])
    alarm_s = float(sys.argv[2]) if len(sys.argv) > 2 else ALARM_S
    answers = prepare()

    def operate(request: dict[str, Any]) -> str:
        name = str(request["name"])
        with log.open("a") as file:
            file.write(f"{os.getpid()} {name}\n")
        return _act(name, answers)

    serve(operate, sys.stdin.buffer, answers, alarm_s)


def _act(name: str, answers: int) -> str:
    match name.partition(".")[0]:
        case "hang":
            time.sleep(1000)
        case "fail" | "echo":
            return f"systemd says: no {name}"
        case "crash":
            raise RuntimeError("out of luck")
        case "exit":
            os._exit(3)
        case "chatty":
            print("a library has something to say", flush=True)
        case "garbage":
            os.write(answers, b"\xff{\n")
        case "earlier":
            os.write(answers, b'{"number": 0, "said": ""}\n')
        case "list":
            os.write(answers, b"[1]\n")
        case "megabytes":
            while True:
                os.write(answers, b"x" * 4096)
        case "variables":
            return ",".join(sorted(os.environ))
    return ""


if __name__ == "__main__":
    main()

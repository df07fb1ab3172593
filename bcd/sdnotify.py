"""Tells systemd how a program is: ``sd_notify(3)`` in the few lines that it takes.

For the three daemons. Imports nothing of the project.
"""

import os
import re
import socket

_NUMBER = re.compile(r"[0-9]{1,19}\Z")  # 64 bits


def notify(state: str) -> None:
    """Send lines such as ``READY=1``; silent when systemd does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), address)
    except OSError:
        return  # a supervisor that went away is no reason to stop


def watchdog_seconds() -> float | None:
    """How often systemd wants ``WATCHDOG=1`` at least; None when it does not watch."""
    text = os.environ.get("WATCHDOG_USEC", "")
    number = int(text) if _NUMBER.match(text) else 0
    return number / 1e6 if number else None

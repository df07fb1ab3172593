"""Asks programs of the host a short question: within a deadline, and with an end to its answer."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bcd.durable import why
from bcd.model.report import Failed

MAX_OUTPUT_BYTES = 1 << 20
HANGS, BROKEN = "program-hangs", "program-broken"


def ask(path: Path, arguments: Sequence[str], deadline_s: float) -> str | Failed:
    """What a program prints. Failed with reason HANGS after the deadline, else BROKEN.

    What it started goes with it. More than MAX_OUTPUT_BYTES is no answer.
    """
    try:
        process = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return Failed(BROKEN, f"cannot be run ({why(error)})")
    with process:
        try:
            return _read(process, deadline_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _read(process: "subprocess.Popen[bytes]", deadline_s: float) -> str | Failed:
    end = time.monotonic() + deadline_s
    hangs = Failed(HANGS, f"has not ended within {deadline_s:g} s")
    assert process.stdout is not None
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) <= MAX_OUTPUT_BYTES:
            if not selector.select(max(0.0, end - time.monotonic())):
                return hangs
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            output += chunk
    if len(output) > MAX_OUTPUT_BYTES:
        return Failed(BROKEN, f"prints more than {MAX_OUTPUT_BYTES} bytes")
    try:
        code = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return hangs
    return Failed(BROKEN, f"ends with {code}") if code else output.decode(errors="replace")

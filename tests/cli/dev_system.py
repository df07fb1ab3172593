"""Runs ``better-compute`` as a person does, in a home of the test's own."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.journeys.system import BIN

BETTER_COMPUTE = str(BIN / "better-compute")
_READY_S = 90.0


@dataclass
class Terminal:
    """A shell's environment: a home, and the folders that a login gives."""

    home: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What programs inherit."""
        keep = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
        keep["PATH"] = f"{BIN}:{keep['PATH']}"
        run = self.home / "run"
        return {**keep, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(run), **self.extra}

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        return subprocess.run(
            [BETTER_COMPUTE, *arguments],
            env=self.environment, input=stdin, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    def dev_refused(self, *arguments: str) -> str:
        """Start a ``dev`` that must not come up; returns its words, which are no traceback."""
        done = self.run("dev", *arguments)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    def dev(self, *arguments: str) -> "Dev":
        """Start ``better-compute dev`` and wait for its line."""
        process = subprocess.Popen(
            [BETTER_COMPUTE, "dev", *arguments],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        deadline, line = time.monotonic() + _READY_S, ""
        while not line.endswith("\n"):
            line += process.stdout.readline() or ""
            if process.poll() is not None or time.monotonic() > deadline:
                _, words = process.communicate()
                raise AssertionError(f"dev did not get ready: {line}{words}")
            time.sleep(0.05)
        return Dev(process, line.strip())


@dataclass
class Dev:
    """A running ``dev``; a context manager that ends it as Ctrl-C does."""

    process: "subprocess.Popen[str]"
    line: str

    def __enter__(self) -> "Dev":
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.end()

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C; returns the exit code and what was said on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, words = self.process.communicate(timeout=60)
        return self.process.returncode, words

"""NVIDIA's MPS control program: one question at a time to the daemon behind a pipe directory.

It may hang as its daemon hangs. So a question has a deadline, a program that does not end is killed
and never waited for, and one that was silent is left alone for a while.
https://docs.nvidia.com/deploy/mps/
"""

import contextlib
import math
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "nvidia-cuda-mps-control"
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: for one question, for a daemon's start, and between questions that got nothing."""

    answer_s: float = 5.0
    start_s: float = 20.0
    avoid_s: float = 60.0


class ControlProgram:
    """Asks one daemon per thread; whom it asks is told by the pipe directory."""

    def __init__(
        self,
        timing: Timing,
        *,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timing = timing
        self._environment = environment
        self._clock = clock
        self._avoid_until: dict[Path, float] = {}
        self._killed: list[subprocess.Popen[bytes]] = []

    def ask(self, pipes: Path, command: str, *, until: float = math.inf) -> str | None:
        """What the daemon answers before ``until`` on the monotonic clock, or None.

        None as well when there is no such daemon or program, when the answer is that it cannot,
        and while a daemon is left alone.
        """
        if self.avoids(pipes):
            return None
        deadline = min(self._clock() + self._timing.answer_s, until)
        self._killed = [process for process in self._killed if process.poll() is None]
        with contextlib.suppress(OSError):
            process = self._start(pipes)
            try:
                answer = self._converse(process, f"{command}\n".encode(), deadline)
            except subprocess.TimeoutExpired:
                self._avoid_until[pipes] = self._clock() + self._timing.avoid_s
                return None
            finally:
                self._end(process)
            if process.returncode == 0 and answer is not None and b"cannot" not in answer.lower():
                return answer.decode(errors="replace")
        return None

    def avoids(self, pipes: Path) -> bool:
        """Whether this daemon was silent just now, and is not asked."""
        return self._clock() < self._avoid_until.get(pipes, -math.inf)

    def forgive(self, pipes: Path) -> None:
        """Ask it again: it is another daemon."""
        self._avoid_until.pop(pipes, None)

    def _start(self, pipes: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={
                "PATH": self._environment.get("PATH", os.defpath),
                "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            },
        )

    def _converse(
        self, process: subprocess.Popen[bytes], question: bytes, deadline: float
    ) -> bytes | None:
        """All that it says until it ends, None for too much; raises TimeoutExpired and OSError."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it answers without having read
            process.stdin.write(question)
        process.stdin.close()
        poll = select.poll()
        poll.register(process.stdout.fileno(), select.POLLIN)
        answer = b""
        while len(answer) <= _MAX_BYTES:
            left = max(0.0, deadline - self._clock())
            if not poll.poll(left * 1000):
                raise subprocess.TimeoutExpired(_PROGRAM, left)
            piece = os.read(process.stdout.fileno(), _MAX_BYTES)
            if not piece:
                process.wait(max(0.0, deadline - self._clock()))
                return answer
            answer += piece
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Whatever became of it, without waiting: the kernel cannot always end a program."""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        if process.poll() is None:
            process.kill()
            self._killed.append(process)

"""Answers ``bcd status`` and ``bcd inventory`` on a Unix socket: one word in, one JSON out."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bcd.durable import why
from bcd.model.errors import Unavailable
from bcd.node.condition import NodeCondition
from bcd.node.connections import Connections

Question = Callable[[], Any]
_MAX_QUESTION_BYTES = 64
_TIMEOUT_S = 5.0


class StatusServer:
    """The daemon's end; root and the socket's group may ask."""

    def __init__(self, path: Path, questions: Mapping[str, Question]) -> None:
        self._path = path
        self._questions = questions
        self._server: asyncio.Server | None = None
        self._connections = Connections(self._answer)

    async def start(self) -> NodeCondition | None:
        """Listen; a condition while the socket cannot be made, such as when there is no room."""
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if not self._make_room():
                return self._trouble("what is there is no socket")
            self._server = await asyncio.start_unix_server(
                self._connections.accept, self._path, limit=_MAX_QUESTION_BYTES
            )
            os.chmod(self._path, 0o660)
        except OSError as error:
            await self.stop()
            return self._trouble(why(error))
        return None

    def _trouble(self, problem: str) -> NodeCondition:
        return NodeCondition(
            "StatusNotServed",
            str(self._path),
            f"paths.socket: {self._path} cannot be made ({problem}); mend that, or name a new path;"
            " it is tried again",
        )

    def _make_room(self) -> bool:
        """Remove the socket of a killed daemon; anything else there stays, and False says so."""
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return True
        if stat.S_ISSOCK(mode):
            self._path.unlink(missing_ok=True)
        return stat.S_ISSOCK(mode)

    async def stop(self) -> None:
        """Stop listening, cut off what is open, and remove the socket."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        await self._connections.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        line = await reader.readline()
        answer = self._questions.get(line.decode(errors="replace").strip())
        document = answer() if answer else {"error": "unknown question"}
        return msgspec.json.encode(document) + b"\n"


def ask(path: Path, question: str) -> Any:
    """Ask the daemon that listens at ``path``; raises Unavailable when none does."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(_TIMEOUT_S)
            channel.connect(str(path))
            channel.sendall(question.encode() + b"\n")
            chunks = []
            while chunk := channel.recv(1 << 16):
                chunks.append(chunk)
        return msgspec.json.decode(b"".join(chunks))
    except PermissionError as error:
        raise Unavailable(f"{path}: may not be opened by this user; run it as root") from error
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise Unavailable(
            f"{path}: no bcd answers there ({_why_not(error)}); see: systemctl status bcd"
        ) from error


def _why_not(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:g} s"
    if isinstance(error, OSError):
        return "there is no socket" if isinstance(error, FileNotFoundError) else why(error)
    return "what answers is no bcd"

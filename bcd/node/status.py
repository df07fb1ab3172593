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
from bcd.model.errors import BadConfiguration, Unavailable

Question = Callable[[], Any]
_MAX_QUESTION_BYTES = 64
_TIMEOUT_S = 5.0


class StatusServer:
    """The daemon's end; root and the socket's group may ask."""

    def __init__(self, path: Path, questions: Mapping[str, Question]) -> None:
        self._path = path
        self._questions = questions
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; raises BadConfiguration when the socket cannot be made."""
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._make_room()
            self._server = await asyncio.start_unix_server(self._serve, self._path)
            os.chmod(self._path, 0o660)
        except OSError as error:
            raise BadConfiguration(
                f"paths.socket: {self._path} cannot be made ({error.strerror or error})"
            ) from error

    def _make_room(self) -> None:
        """Remove the socket of a killed daemon; anything else there stays."""
        try:
            mode = self._path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise BadConfiguration(f"paths.socket: {self._path} is something else; name a new path")
        self._path.unlink(missing_ok=True)

    async def stop(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            line = await asyncio.wait_for(reader.readline(), _TIMEOUT_S)
            question = line[:_MAX_QUESTION_BYTES].decode(errors="replace").strip()
            answer = self._questions.get(question)
            document = answer() if answer else {"error": "unknown question"}
            writer.write(msgspec.json.encode(document) + b"\n")
            await asyncio.wait_for(writer.drain(), _TIMEOUT_S)
        writer.close()


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

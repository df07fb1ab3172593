"""A webhook's receiver on loopback, which answers as a test tells it."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Behaviour = Callable[["Post", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Post:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The event's id."""
        return self.headers["webhook-id"]

    @property
    def document(self) -> Any:
        """The body."""
        return json.loads(self.body)

    def assert_signed(self, secret: str) -> None:
        """As the specification of Standard Webhooks says it, written here once more."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        assert expected in [
            entry.removeprefix("v1,") for entry in self.headers["webhook-signature"].split(" ")
        ]


def status(code: int, *headers: str) -> Behaviour:
    """Answer with a status."""

    async def answer(_post: Post, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {code} Whatever", "content-length: 0", *headers]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()

    return answer


async def never(_post: Post, _writer: asyncio.StreamWriter) -> None:
    """Take the request and say nothing for ever."""
    await asyncio.Event().wait()


@dataclass
class Receiver:
    """Keeps what came; ``behaviours`` are used one by one, and then it answers 200."""

    posts: list[Post] = field(default_factory=list)
    behaviours: Iterator[Behaviour] = field(default_factory=lambda: iter(()))
    port: int = 0
    scheme: str = "http"
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.scheme}://127.0.0.1:{self.port}/in?room=1"

    @property
    def subjects(self) -> list[str]:
        """Of every request, in order."""
        return [post.document["data"]["subject"] for post in self.posts]

    @property
    def types(self) -> list[str]:
        """Of every request, in order."""
        return [post.document["type"] for post in self.posts]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = [line.split(": ", 1) for line in head[1:] if line]
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            post = Post(head[0], headers, body)
            self.posts.append(post)
            self.arrived.set()
            await next(self.behaviours, status(200))(post, writer)
        except (OSError, asyncio.IncompleteReadError):
            return  # the sender gave up
        finally:
            writer.transport.abort()

    async def got(self, number: int, within_s: float = 20.0) -> Sequence[Post]:
        """The first requests, when there are so many."""
        async with asyncio.timeout(within_s):
            while len(self.posts) < number:
                self.arrived.clear()
                await self.arrived.wait()
        return self.posts[:number]


@asynccontextmanager
async def receiving(
    *behaviours: Behaviour, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver(behaviours=iter(behaviours), scheme="https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await receiver.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

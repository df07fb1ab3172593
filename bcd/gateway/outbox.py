"""What waits to be written to one node: one writer, a bounded queue, the newest state only.

gRPC takes one write at a time and buffers megabytes for a peer that does not read, so writes are
timed and answers counted here. Answers are never dropped: a node that does not take them is
disconnected, and asks again. A desired state is read at the moment that it is written, so that a
slow node gets the newest and no other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from bcd.wire.node.v1 import gateway_pb2 as pb

MAX_WAITING = 256


class SlowPeer(Exception):
    """The node does not read what it is sent."""


class Outbox:
    """The write side of a stream; ``run`` is its only writer."""

    def __init__(
        self,
        write: Callable[[pb.ConnectResponse], Awaitable[None]],
        newest_state: Callable[[], Awaitable[pb.ConnectResponse | None]],
        write_timeout_ms: int,
    ) -> None:
        self._write = write
        self._newest_state = newest_state
        self._timeout_s = write_timeout_ms / 1000
        self._waiting: deque[pb.ConnectResponse] = deque()
        self._state_due = False
        self._closing = False
        self._due = asyncio.Event()

    def put(self, message: pb.ConnectResponse) -> None:
        """Queue a message; raises SlowPeer when too many are waiting already."""
        if len(self._waiting) >= MAX_WAITING:
            raise SlowPeer(f"{MAX_WAITING} answers are waiting")
        self._waiting.append(message)
        self._due.set()

    def state_changed(self) -> None:
        """The node's desired state may be another one now."""
        self._state_due = True
        self._due.set()

    def close(self, last: pb.ConnectResponse | None) -> None:
        """Write what is waiting and ``last``, then end ``run``."""
        if last is not None:
            self._waiting.append(last)
        self._closing = True
        self._due.set()

    async def run(self) -> None:
        """Write until closed; raises SlowPeer when a write takes too long."""
        while not self._closing or self._waiting:
            message = await self._next()
            if message is None:
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._write(message)
            except TimeoutError as error:
                raise SlowPeer(f"a write took longer than {self._timeout_s:g} s") from error

    async def _next(self) -> pb.ConnectResponse | None:
        if self._waiting:
            return self._waiting.popleft()
        if self._state_due and not self._closing:
            self._state_due = False
            return await self._newest_state()
        self._due.clear()
        await self._due.wait()
        return None

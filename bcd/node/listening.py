"""Keeps the daemon's servers listening: one whose address cannot be had is tried again.

The holds do not wait for them: a port that somebody else took, or a folder without room for a
socket, costs the answers of the daemon and nothing else.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from bcd.node.condition import NodeCondition
from bcd.node.ports import Clock

log = logging.getLogger(__name__)

_AGAIN_S = 5.0


class Server(Protocol):
    """Something that listens at an address."""

    async def start(self) -> NodeCondition | None:
        """Listen; why that cannot be, and then it may be called again."""
        ...

    async def stop(self) -> None:
        """Stop listening, and cut off what is open; fine when it never listened."""
        ...


class Listening:
    """``run`` beside the daemon, then ``stop``; ``conditions`` tell of what does not listen now."""

    def __init__(self, servers: Sequence[Server], clock: Clock) -> None:
        self.servers = tuple(servers)
        self._clock = clock
        self._troubles: dict[Server, NodeCondition] = {}

    @property
    def conditions(self) -> tuple[NodeCondition, ...]:
        """One for each server that could not be had."""
        return tuple(self._troubles.values())

    async def run(self) -> None:
        """Start every server, each as often as it takes."""
        missing = self.servers
        while missing:
            missing = tuple([server for server in missing if not await self._start(server)])
            if missing:
                await self._clock.sleep(_AGAIN_S)

    async def _start(self, server: Server) -> bool:
        before = self._troubles.get(server)
        trouble = await server.start()
        if trouble is None:
            self._troubles.pop(server, None)
            if before is not None:
                log.info("listens after all", extra={"was": before.message})
            return True
        self._troubles[server] = trouble
        if trouble != before:
            log.warning("cannot listen; holds stay", extra={"problem": trouble.message})
        return False

    async def stop(self) -> None:
        """End them all."""
        for server in self.servers:
            await server.stop()

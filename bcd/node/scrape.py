"""Serves the daemon's metrics to a Prometheus on the same host: HTTP/1.1, one page.

On the daemon's own event loop and of its own making, because the daemon carries no HTTP server:
a request is read within bounds of size, time and number, answered, and its connection closed.
"""

import asyncio
from collections.abc import Callable

from bcd.durable import why
from bcd.node.condition import NodeCondition
from bcd.node.connections import Connections
from bcd.node.exposition import CONTENT_TYPE

PATH = "/metrics"
_MAX_REQUEST_BYTES = 16 * 1024


class ScrapeServer:
    """Listens at ``address`` (``host:port``); ``page`` makes the document of the moment."""

    def __init__(self, address: str, page: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._page = page
        self._server: asyncio.Server | None = None
        self._connections = Connections(self._answer)

    @property
    def port(self) -> int:
        """Where it listens, also when a free port was asked for with 0."""
        assert self._server is not None, "listens after start()"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> NodeCondition | None:
        """Listen; a condition while the address cannot be had, such as when another has it."""
        try:
            self._server = await asyncio.start_server(
                self._connections.accept, self._host, self._port, limit=_MAX_REQUEST_BYTES
            )
        except (OSError, UnicodeError) as error:  # the latter for a name that is none
            problem = why(error) if isinstance(error, OSError) else str(error)
            return NodeCondition(
                "MetricsNotServed",
                "metrics.listen",
                f"metrics.listen: {self._host}:{self._port} cannot be had ({problem}); end what"
                " has it, or set another port, or an empty text for no metrics; it is tried again",
            )
        return None

    async def stop(self) -> None:
        """Stop listening; an answer on its way is cut off."""
        if self._server is not None:
            self._server.close()
        await self._connections.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _response("400 Bad Request", "no HTTP request of sane size\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", "not a request of HTTP/1\n")
        method, target = words[0], words[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "GET only\n", "Allow: GET, HEAD\r\n")
        if target != PATH.encode():
            return _response("404 Not Found", f"there is {PATH} only\n", body=method == b"GET")
        return _response("200 OK", self._page(), body=method == b"GET")


def _response(status: str, text: str, headers: str = "", *, body: bool = True) -> bytes:
    content = text.encode()
    kind = CONTENT_TYPE if status.startswith("200") else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        f"{headers}Connection: close\r\n\r\n"
    )
    return head.encode() + (content if body else b"")

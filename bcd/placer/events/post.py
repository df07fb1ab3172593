"""Sends one request to a receiver and reads no more of the answer than its status.

Written on streams because a library's client has a limit for each wait and none for the whole, so
that a receiver which answers letter by letter would hold it for hours; and because it must connect
to the address that was judged, not to what the name means a moment later. Redirects are answers.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bcd import __version__
from bcd.placer.events.target import Address, Reach, Target

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_TOTAL_S = 10.0
_CONNECT_S = 4.0
_MAX_ADDRESSES = 4
_MAX_HEAD_BYTES = 16 * 1024
_MAX_INTERIM = 4
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r)")


class Refused(Exception):
    """The target may not, or cannot, be dialled; says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, or 0 and the problem that kept one from coming."""

    status: int
    problem: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the receiver took the event."""
        return 200 <= self.status < 300


class Resolver:
    """Asks the system for addresses in threads of its own, so many at once.

    A name whose servers do not answer holds a thread longer than anybody waits for it.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="webhook-dns")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses as text; raises OSError."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM
        )
        return [str(entry[4][0]) for entry in found]

    def close(self) -> None:
        """Let the threads end when what they ask is answered."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Poster:
    """Posts to judged addresses only."""

    def __init__(
        self, reach: Reach, resolve: Resolve, trust: ssl.SSLContext, *, total_s: float = _TOTAL_S
    ) -> None:
        self.reach = reach
        self._resolve = resolve
        self._trust = trust
        self._total_s = total_s

    async def addresses(self, target: Target) -> Sequence[Address]:
        """Where the target's name leads; raises Refused unless every address may be dialled."""
        try:
            async with asyncio.timeout(self._total_s):
                texts = await self._resolve(target.host, target.port)
            found = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
        except (OSError, ValueError) as error:
            raise Refused("its host name cannot be resolved") from error
        if not found or not all(self.reach.may_dial(address) for address in found):
            raise Refused("its host has an address that is not public, which is not allowed here")
        return list(dict.fromkeys(found))[:_MAX_ADDRESSES]

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send, and say what came of it; never raises for what a receiver does."""
        try:
            async with asyncio.timeout(self._total_s):
                return await self._exchange(target, headers, body)
        except Refused as refused:
            return Answer(0, str(refused))
        except TimeoutError:
            return Answer(0, f"it did not answer within {self._total_s:g} s")
        except asyncio.LimitOverrunError:
            return Answer(0, f"its answer's head is larger than {_MAX_HEAD_BYTES} bytes")
        except asyncio.IncompleteReadError:
            return Answer(0, "it closed the connection without an answer")
        except ssl.SSLCertVerificationError as error:
            return Answer(0, f"its certificate is not trusted: {error.verify_message}")
        except ssl.SSLError:
            return Answer(0, "it does not speak TLS")
        except OSError:
            return Answer(0, "it cannot be connected to")

    async def _exchange(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        reader, writer = await self._connect(target, await self.addresses(target))
        try:
            writer.write(_head(target, headers, len(body)) + body)
            await writer.drain()
            return await _answer(reader)
        finally:
            writer.transport.abort()

    async def _connect(
        self, target: Target, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        *others, last = addresses
        for address in others:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await self._dial(target, address)
            except ssl.SSLError:
                raise
            except OSError:
                continue
        return await self._dial(target, last)

    async def _dial(
        self, target: Target, address: Address
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            str(address),
            target.port,
            limit=_MAX_HEAD_BYTES,
            ssl=self._trust if target.secure else None,
            server_hostname=target.host if target.secure else None,
        )


def _head(target: Target, headers: Mapping[str, str], length: int) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"host: {target.authority}",
        f"user-agent: better-compute/{__version__}",
        "content-type: application/json",
        f"content-length: {length}",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    for _ in range(_MAX_INTERIM):
        match = _STATUS.match(await reader.readuntil(b"\r\n\r\n"))
        if match is None:
            return Answer(0, "it does not speak HTTP/1.1")
        status = int(match[1])
        if status >= 200:
            return Answer(status, "" if status < 300 else _said(status))
    return Answer(0, "it sends interim answers only")


def _said(status: int) -> str:
    return f"it answered {status}" + (", and redirects are not followed" * (status // 100 == 3))

"""Keeps the node connected: dials, backs off, renews the certificate, proves a new one.

A lost session is tried again with exponential back-off and full jitter; the first retry after a
session that stood is spread wider, because then a whole fleet lost its gateway at once. A
renewed certificate is proven by a second session before the first one is left.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from bcd.model.errors import BcdError
from bcd.node import enrolment
from bcd.node.execute import AfterStep
from bcd.node.identity import Identity, is_valid
from bcd.node.outbox import Outbox
from bcd.node.ports import Clock
from bcd.node.rejoin import join_again
from bcd.node.session import Closed, GoneAway, Lost, Session, SessionEnd, Sink
from bcd.node.settings import GatewaySettings
from bcd.signing.certificates import validity_ms
from bcd.signing.keyfile import Credentials
from bcd.wire.bounds import NODE_CHANNEL_OPTIONS
from bcd.wire.node.v1 import gateway_pb2, inventory_pb2

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.5
_HEALTHY_S = 60.0
_LOOK_S = 300.0
_PROOFS = 3
# Whatever life an authority gives its certificates, renewals never follow one upon the other.
_RENEWALS_APART_S = 60.0
_REASONS = {
    value.number: value.name.removeprefix("GOAWAY_REASON_").lower()
    for value in gateway_pb2.GoawayReason.DESCRIPTOR.values
}


class Owner(Sink, Protocol):
    """Whose link it is: says who we are, and learns of every new session."""

    def hello(self) -> gateway_pb2.Hello:
        """The Hello of a new session."""
        ...

    def inventory(self) -> inventory_pb2.Inventory:
        """The newest inventory."""
        ...

    def on_session(self, session: Session | None) -> None:
        """A session stands, or none does any more."""
        ...


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another process with our identity has the node's session now."""

    process_instance: str


@dataclass(slots=True)
class Link:
    """The way to the gateway; ``run`` ends only when another daemon took the node over."""

    settings: GatewaySettings
    identity: Identity
    clock: Clock
    outbox: Outbox
    owner: Owner
    instance: str
    after_step: AfterStep
    problem: str = "not connected yet"
    unknown: Counter[str] = field(default_factory=Counter)
    jitter: Callable[[float, float], float] = random.uniform
    _session: Session | None = None
    _closing: bool = False
    _renewed_at: float = -math.inf
    _attempt: int = 0
    _renew_first: bool = False

    async def run(self) -> Superseded | None:
        """Stay connected until ``close``, or until another daemon takes over."""
        while not self._closing:
            try:
                end = await self._try()
            except Exception as error:  # the link's boundary: no answer of a gateway ends us
                delay = self._backoff(self._attempt)
                log.exception("the link failed; holds stay, it is tried again")
                self._trouble(
                    f"a fault of this daemon ({type(error).__name__}), see its log", delay
                )
            else:
                if not isinstance(end, float):
                    return end if isinstance(end, Superseded) else None
                delay = end
            self._attempt += 1
            await self.clock.sleep(delay)
        return None

    async def _try(self) -> float | Superseded | Closed:
        """One dial and the stay that follows; how many seconds to wait for the next, or the end."""
        credentials = await self._credentials(self._attempt, self._renew_first)
        if credentials is None:
            return self._backoff(self._attempt)
        began = self.clock.monotonic()
        stood, end = await self._stay(credentials)
        if self._closing or isinstance(end, Closed):
            return Closed()
        if self._taken_over(end):
            assert isinstance(end, GoneAway)
            return Superseded(end.process_instance)
        if stood and self.clock.monotonic() - began >= _HEALTHY_S:
            self._attempt = 0
        self._renew_first = (
            isinstance(end, GoneAway) and end.reason == gateway_pb2.GOAWAY_REASON_CERTIFICATE
        )
        delay = self._delay(stood, end, self._attempt)
        self._say(end, delay)
        return delay

    async def close(self, reason: str) -> None:
        """Say Goodbye; ``run`` then returns."""
        self._closing = True
        if self._session is not None:
            await self._session.close(reason)

    # Which identity to dial with.

    async def _credentials(self, attempt: int, renew_first: bool) -> Credentials | None:
        """The current certificate, its candidate in turn with it, or a renewed one when expired."""
        identity, now_ms = self.identity, self.clock.wall_ms()
        if identity.candidate is not None and not is_valid(identity.candidate, now_ms):
            identity.discard()
        valid = is_valid(identity.current, now_ms)
        if identity.candidate is None and (renew_first or not valid):
            await self._renew()
        if identity.candidate is not None and (renew_first or not valid or attempt % 2):
            return identity.candidate
        if valid:
            return identity.current
        return None

    async def _renew(self) -> bool:
        """Ask for a new certificate and keep it as the candidate; False when that failed."""
        now_ms = self.clock.wall_ms()
        if not self.identity.renewable(now_ms):
            self._trouble(
                "the certificate expired too long ago to be renewed; holds stay; if this"
                " host's clock is right, stop bcd, move credentials.pem away and"
                f" {join_again(self.identity.node_id)}"
            )
            return False
        try:
            candidate = await enrolment.renew(
                self.settings.enroll_address, self.identity.current, self.identity.subject, now_ms
            )
            self.identity.offer(candidate)
        except BcdError as error:
            self._trouble(f"the certificate was not renewed: {error.message}")
            return False
        except OSError as error:
            self._trouble(f"the renewed certificate cannot be saved: {error.strerror}")
            return False
        self._renewed_at = self.clock.monotonic()
        log.info("certificate renewed", extra={"until_ms": validity_ms(candidate.leaf)[1]})
        return True

    # One stay: a session, and those that follow it without a gap.

    async def _stay(self, credentials: Credentials) -> tuple[bool, SessionEnd]:
        opened = await self._open(credentials)
        if not isinstance(opened, Session):
            return False, opened
        running = self._enter(opened, credentials)
        renewal = asyncio.ensure_future(self._candidate(0))
        failures = 0
        try:
            while True:
                await asyncio.wait({running, renewal}, return_when=asyncio.FIRST_COMPLETED)
                if not renewal.done():
                    return True, running.result()
                renewal.result()
                candidate = self.identity.candidate
                assert candidate is not None
                successor = await self._open(candidate)
                if self._closing:
                    return True, Closed()
                if isinstance(successor, Session):
                    await _end(running)
                    running = self._enter(successor, candidate)
                    failures = 0
                    # A candidate that is left could not be written: not again at once.
                    pause_s = 0.0 if self.identity.candidate is None else _RENEWALS_APART_S
                else:
                    failures, pause_s = failures + 1, self._backoff(failures)
                    self._say(successor, pause_s)
                    if failures >= _PROOFS:
                        self.identity.discard()
                        failures = 0
                if running.done():
                    return True, running.result()
                renewal = asyncio.ensure_future(self._candidate(pause_s))
        finally:
            await _end(renewal)
            await _end(running)
            self._leave()

    async def _candidate(self, pause_s: float) -> None:
        """Wait until there is a candidate to prove, and make one when it is time."""
        await self.clock.sleep(pause_s)
        attempt = 0
        while self.identity.candidate is None:
            half_life_s = (self.identity.renew_at_ms() - self.clock.wall_ms()) / 1000
            apart_s = self._renewed_at + _RENEWALS_APART_S - self.clock.monotonic()
            due_s = max(half_life_s, apart_s)
            if due_s > 0:
                # Never asleep for long: a suspended host's steady clock stands still.
                await self.clock.sleep(min(due_s, _LOOK_S))
            elif not await self._renew():
                await self.clock.sleep(self._backoff(attempt))
                attempt += 1

    async def _open(self, credentials: Credentials) -> Session | SessionEnd:
        hello = self.owner.hello()
        channel = grpc.aio.secure_channel(
            self.settings.address,
            grpc.ssl_channel_credentials(
                root_certificates=credentials.bundle_pem,
                private_key=credentials.key_pem,
                certificate_chain=credentials.chain_pem,
            ),
            options=NODE_CHANNEL_OPTIONS,
        )
        session = Session(
            channel,
            clock=self.clock,
            outbox=self.outbox,
            sink=self.owner,
            inventory=self.owner.inventory,
            after_step=self.after_step,
            unknown=self.unknown,
        )
        end = await session.open(hello, self.settings.welcome_seconds)
        if end is None and not self._closing:
            return session
        await channel.close()
        return end or Closed()

    def _enter(self, session: Session, credentials: Credentials) -> "asyncio.Task[SessionEnd]":
        if credentials is self.identity.candidate:
            self._promote()
        self._session = session
        self.problem = ""
        log.info(
            "connected",
            extra={
                "gateway": self.settings.address,
                "session_epoch": session.welcome.session_epoch,
                "protocol": session.welcome.protocol_version,
            },
        )
        self.owner.on_session(session)
        return asyncio.ensure_future(session.run())

    def _promote(self) -> None:
        try:
            self.identity.promote()
        except OSError as error:
            log.error("proven certificate cannot be kept", extra={"problem": str(error)})

    def _leave(self) -> None:
        self._session = None
        self.owner.on_session(None)

    # After the end.

    def _taken_over(self, end: SessionEnd) -> bool:
        return (
            isinstance(end, GoneAway)
            and end.reason == gateway_pb2.GOAWAY_REASON_SUPERSEDED
            and end.process_instance not in ("", self.instance)
        )

    def _delay(self, stood: bool, end: SessionEnd, attempt: int) -> float:
        spread = self.settings.spread_seconds
        if isinstance(end, GoneAway) and end.retry_after_ms:
            wait = end.retry_after_ms / 1000
            return wait + self.jitter(0, min(wait, spread))
        if (stood or isinstance(end, GoneAway)) and attempt == 0:
            return self.jitter(0, spread)
        return self._backoff(attempt)

    def _backoff(self, attempt: int) -> float:
        limit = min(self.settings.max_backoff_seconds, _FIRST_BACKOFF_S * 2 ** min(attempt, 16))
        return self.jitter(0, limit)

    def _say(self, end: SessionEnd, delay_s: float) -> None:
        match end:
            case Lost(detail):
                self._trouble(detail, delay_s)
            case GoneAway():
                name = _REASONS.get(end.reason, "for an unknown reason")
                self._trouble(f"the gateway ended the session ({name}): {end.message}", delay_s)
            case Closed():
                pass

    def _trouble(self, problem: str, delay_s: float = 0) -> None:
        self.problem = problem
        log.warning(
            "not connected",
            extra={
                "gateway": self.settings.address,
                "problem": problem,
                "retry_seconds": round(delay_s, 1),
            },
        )


async def _end(task: "asyncio.Task[SessionEnd] | asyncio.Future[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(task, return_exceptions=True)

"""Many simulated hosts in one process, each with a daemon of its own.

For ``better-compute dev`` and benchmarks: the same daemons as on real hosts, on one event loop,
with mTLS to the gateway and scratch roots side by side.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bcd.node.daemon import Daemon
from bcd.node.enrolment import enroll, parse_token
from bcd.node.host.clock import SystemClock
from bcd.node.identity import save_identity
from bcd.node.opening import open_daemon
from bcd.node.ports import Clock
from bcd.node.settings import GatewaySettings, PassSettings, PathSettings, Settings, paths_of
from bcd.signing.keyfile import CREDENTIALS, Credentials
from bcd.sim.ports import simulated_ports

_ENROL_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One simulated host. It enrols with its join token, unless it is enrolled or has credentials.

    ``name`` is its folder and hostname; node id and device UUIDs follow from its certificate.
    """

    name: str
    profile: str = "dgx-h100"
    token: str = ""
    credentials: Credentials | None = None


class Fleet:
    """The daemons of simulated hosts; ``start``, then ``stop``. Holds outlive both on disk."""

    def __init__(
        self,
        folder: Path,
        gateway: GatewaySettings,
        members: Sequence[Member],
        *,
        passes: PassSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.daemons: list[Daemon] = []
        self._folder = folder
        self._gateway = gateway
        self._members = members
        # A quiet host is looked at rarely: looks of a thousand hosts add up.
        self._passes = passes or PassSettings(watch_seconds=10.0)
        self._clock = clock or SystemClock()
        self._running: list[asyncio.Task[int]] = []

    async def start(self) -> None:
        """Enrol who is not enrolled yet, and start every daemon.

        Raises BcdError when a host cannot enrol or its folder cannot be used.
        """
        gate = asyncio.Semaphore(_ENROL_AT_ONCE)
        await asyncio.gather(*(self._enrol(member, gate) for member in self._members))
        for member in self._members:
            ports = simulated_ports(member.profile, hostname=member.name, clock=self._clock)
            daemon = open_daemon(self._settings(member), ports, serve_status=False)
            self.daemons.append(daemon)
            self._running.append(asyncio.create_task(daemon.run(), name=member.name))

    async def stop(self) -> None:
        """Stop every daemon; raises what one of them failed with."""
        for daemon in self.daemons:
            daemon.stop()
        await asyncio.gather(*self._running)

    async def _enrol(self, member: Member, gate: asyncio.Semaphore) -> None:
        state = paths_of(self._settings(member).paths).state
        if (state / CREDENTIALS).exists():
            return
        async with gate:
            credentials = member.credentials or await enroll(
                self._gateway.enroll_address, parse_token(member.token), self._clock.wall_ms()
            )
        save_identity(state, credentials)

    def _settings(self, member: Member) -> Settings:
        root = self._folder / member.name
        # Nobody asks a fleet's daemons on sockets, so any length of path will do.
        paths = PathSettings(root=str(root), socket="/nowhere/bcd.sock")
        return Settings(gateway=self._gateway, paths=paths, passes=self._passes)

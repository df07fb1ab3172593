"""The whole system in one process for ``better-compute dev``: placer, gateway, simulated hosts.

Real mTLS on the loopback, SQLite in the state folder, everything else the same code as in
production. While it runs, its client configuration lies, locked, where other terminals find it.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bcd.cli.embedded import EmbeddedSettings, start_gateway
from bcd.cli.running import Registration
from bcd.durable import replace_file
from bcd.gateway.server import Gateway
from bcd.model.device import DeviceClass
from bcd.model.errors import BadConfiguration
from bcd.model.ids import PoolId
from bcd.model.pool import PoolPolicy
from bcd.node.settings import GatewaySettings
from bcd.placer.pki.issuer import Grant
from bcd.placer.pki.join import JoinRequest, mint
from bcd.placer.pki.state import CA_FILE, Secrets, init_state, load_state
from bcd.placer.server import Placer
from bcd.placer.settings import ApiSettings, PlacerSettings, WebhookSettings
from bcd.sim.fleet import Fleet, Member
from bcd.sim.machine import profile_of
from bcd.store import atoms, pools, quotas
from bcd.store.atoms import Atom
from bcd.store.database import Database, Transaction
from bcd.store.open import open_database
from bcd.store.pools import Usage

TENANT = "dev"
_DOMAIN = "dev.local"
_POOL = "dev"
_HOSTS = "hosts"
_PROFILE = "dgx-h100"
_READY_S = 120.0
_TOKEN_MS = 30 * 86_400_000
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Ready:
    """What is running: the client configuration, and how much there is to book.

    ``linked`` when some GPUs have NVLink; a first request may ask for ``together`` of them.
    """

    config: Path
    usage: Usage
    linked: bool
    together: int


def hosts_of(state: Path, profile: str | None) -> tuple[int, str]:
    """(how many hosts a state folder has, their profile), of the asked profile if it has none."""
    made = []
    for host in sorted((state / _HOSTS).glob("host*")):
        found = profile_of(host)
        if found is None:
            continue
        if profile not in (None, found):
            raise BadConfiguration(
                f"{host} was made for --profile {found}; leave the option out, or name another"
                " folder with --state"
            )
        made.append(found)
    return len(made), made[0] if made else profile or _PROFILE


class DevSystem:
    """One installation in ``state``, with ``hosts`` simulated hosts of one profile."""

    def __init__(self, state: Path, hosts: int, profile: str) -> None:
        self._state = state
        self._hosts = hosts
        self._profile = profile
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._registered: Registration | None = None

    async def start(self) -> Ready:
        """Start everything and wait until every host takes bookings; raises BcdError."""
        settings = PlacerSettings(
            database=f"sqlite:///{self._state / 'bcd.db'}",
            state=self._state / "placer",
            trust_domain=_DOMAIN,
            api=ApiSettings(listen="127.0.0.1:0"),
            webhooks=WebhookSettings(allow_http=True, allow_private=("127.0.0.0/8", "::1/128")),
        )
        secrets = _secrets(settings)
        database = open_database(settings.database)
        self._stops.append(database.close)
        placer = Placer(settings, database, secrets)
        self._stops.append(placer.stop)
        await placer.start()
        gateway = await self._start_gateway(database, secrets)
        pool_id = await database.write(_seed)
        await self._start_fleet(database, secrets, gateway, pool_id)
        usage = await self._wait_for_hosts(database, pool_id)
        found = await database.read(atoms.in_pool, pool_id)
        whole = [atom for atom in found if atom.bookable and atom.device_class is DeviceClass.GPU]
        return Ready(
            config=self._write_client(placer, secrets, pool_id),
            usage=usage,
            linked=any(atom.nvlink_domain or atom.nvlink_peers for atom in whole),
            together=_together(whole),
        )

    async def _start_gateway(self, database: Database, secrets: Secrets) -> Gateway:
        settings = EmbeddedSettings(
            node_listen="127.0.0.1:0", enrolment_listen="127.0.0.1:0", stop_grace_ms=500
        )
        folder = self._state / "gateway"
        gateway = await start_gateway(settings, folder, database, secrets.authority)
        self._stops.append(gateway.stop)
        return gateway

    async def _start_fleet(
        self, database: Database, secrets: Secrets, gateway: Gateway, pool_id: PoolId
    ) -> None:
        members = []
        for number in range(self._hosts):
            request = JoinRequest(pool_id=pool_id)
            token = await database.write(mint, request, secrets.authority.pin)
            members.append(Member(name=f"host{number:03}", profile=self._profile, token=token.text))
        addresses = GatewaySettings(
            address=f"localhost:{gateway.node_port}",
            enroll_address=f"localhost:{gateway.enrolment_port}",
            spread_seconds=0.5,
        )
        fleet = Fleet(self._state / _HOSTS, addresses, members)
        self._stops.append(fleet.stop)
        await fleet.start()

    async def _wait_for_hosts(self, database: Database, pool_id: PoolId) -> Usage:
        deadline = time.monotonic() + _READY_S
        while True:
            usage = await database.read(_usage, pool_id)
            if usage.schedulable >= self._hosts:
                return usage
            if time.monotonic() > deadline:
                raise BadConfiguration(
                    f"only {usage.schedulable} of {self._hosts} hosts came up within"
                    f" {_READY_S:.0f} s; {self._state}/dev.log says why"
                )
            await asyncio.sleep(0.1)

    def _write_client(self, placer: Placer, secrets: Secrets, pool_id: PoolId) -> Path:
        """The client's configuration and token, and the locked copy for other terminals."""
        token = self._state / "token"
        grant = Grant(subject="developer", tenants=(TENANT,), admin=True)
        text = secrets.issuer.issue(grant, time.time_ns() // 1_000_000, _TOKEN_MS)
        replace_file(token, text.encode())
        values = {
            "api": f"localhost:{placer.port}",
            "ca_file": str(self._state / "placer" / CA_FILE),
            "token_file": str(token),
            "tenant": TENANT,
            "pool": pool_id,
        }
        # A JSON string is a TOML string.
        content = "".join(f"{name} = {json.dumps(text)}\n" for name, text in values.items())
        replace_file(self._state / "client.toml", content.encode())
        self._registered = Registration(content.encode())
        return self._registered.path

    async def stop(self) -> None:
        """Stop everything, hosts first; the state stays as it is."""
        if self._registered is not None:
            self._registered.end()
        for stop in reversed(self._stops):
            await stop()


def _together(whole: Sequence[Atom]) -> int:
    """At most four, and what every host's first NUMA node has."""
    places = Counter((atom.node_id, atom.numa_node) for atom in whole)
    return min(4, *places.values()) if places else 1


def _secrets(settings: PlacerSettings) -> Secrets:
    if (settings.state / CA_FILE).exists():
        return load_state(settings.state, settings.trust_domain)
    return init_state(settings.state, settings.trust_domain)


def _seed(tx: Transaction) -> PoolId:
    """The pool and the quotas that ``dev`` starts with."""
    for resource in (*DeviceClass, "vcpu", "memoryGiB"):
        quotas.set_ceiling(tx, TENANT, resource, _MANY)
    for pool in pools.every(tx):
        if pool.name == _POOL:
            return pool.id
    return pools.create(tx, _POOL, TENANT, "local", PoolPolicy()).id


def _usage(tx: Transaction, pool_id: PoolId) -> Usage:
    return pools.usage(tx, pool_id, tx.now_ms())

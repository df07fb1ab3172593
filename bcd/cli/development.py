"""The whole system in one process for ``better-compute dev``: placer, gateway, simulated hosts.

Real mTLS on the loopback, SQLite in the state folder, everything else the same code as in
production. While it runs, its client configuration lies, locked, where other terminals find it.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bcd.cli.embedded import EmbeddedSettings, start_gateway
from bcd.cli.running import Registration
from bcd.durable import replace_file
from bcd.gateway.server import Gateway
from bcd.model.device import DeviceClass
from bcd.model.errors import BadConfiguration
from bcd.model.ids import PoolId
from bcd.model.pool import PoolPolicy, SharingMode, SharingPolicy
from bcd.node.settings import GatewaySettings
from bcd.placer.pki.issuer import Grant
from bcd.placer.pki.join import JoinRequest, mint
from bcd.placer.pki.state import CA_FILE, Secrets, init_state, load_state
from bcd.placer.server import Placer
from bcd.placer.settings import ApiSettings, PlacerSettings, PolicySettings, WebhookSettings
from bcd.sim.fleet import Fleet, Member
from bcd.sim.machine import profile_of
from bcd.store import atoms, pools, quotas
from bcd.store.atoms import Atom
from bcd.store.database import Database, Transaction
from bcd.store.open import open_database
from bcd.store.pools import Usage

TENANT = "dev"
PERSON, AGENT = "developer", "agent"
AGENT_CONFIG = "agent.toml"
_DOMAIN = "dev.local"
_REGION = "eu-1"  # one that packaging/caps.cedar allows
_POOL = "dev"
_HOSTS = "hosts"
_PROFILE = "dgx-h100"
_READY_S = 120.0
_TOKEN_MS = 30 * 86_400_000
_MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Ready:
    """What is running: the client configuration, and how many hosts and whole GPUs in all pools.

    ``linked`` when some GPUs of the pool ``dev`` have NVLink; a first request may ask for
    ``together`` of them.
    """

    config: Path
    hosts: int
    gpus: int
    linked: bool
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hosts of one profile and the pool that they join; their names are ``host000`` and so on."""

    pool: str
    profile: str
    hosts: int = 1
    name: str = "host"
    policy: PoolPolicy = field(default_factory=PoolPolicy)

    @property
    def names(self) -> list[str]:
        """Hostnames, which are folders too."""
        return [f"{self.name}{number:03}" for number in range(self.hosts)]


MORE_POOLS = (
    Batch(pool="mig", profile="hgx-a100-mig", name="mig"),
    Batch(
        pool="shared",
        profile="l40s-pcie",
        name="shared",
        policy=PoolPolicy(sharing=SharingPolicy(mode=SharingMode.TIME_SLICE)),
    ),
)


def has_more_pools(state: Path) -> bool:
    """Whether a state folder was made with the pools beside ``dev``."""
    return any((state / _HOSTS / name).exists() for batch in MORE_POOLS for name in batch.names)


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
    """One installation in ``state``: ``hosts`` simulated hosts of one profile in a pool ``dev``.

    With ``more_pools`` also those pools, of a host each. ``policy`` is a folder of Cedar files.
    """

    def __init__(
        self,
        state: Path,
        hosts: int,
        profile: str,
        *,
        more_pools: bool = False,
        policy: Path | None = None,
    ) -> None:
        self._state = state
        own = Batch(pool=_POOL, profile=profile, hosts=hosts)
        self._batches = (own, *MORE_POOLS) if more_pools else (own,)
        self._policy = policy
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._registered: Registration | None = None

    async def start(self) -> Ready:
        """Start everything and wait until every host takes bookings; raises BcdError."""
        settings = PlacerSettings(
            database=f"sqlite:///{self._state / 'bcd.db'}",
            state=self._state / "placer",
            trust_domain=_DOMAIN,
            api=ApiSettings(listen="127.0.0.1:0"),
            policy=PolicySettings(folder=self._policy),
            webhooks=WebhookSettings(allow_http=True, allow_private=("127.0.0.0/8", "::1/128")),
        )
        secrets = _secrets(settings)
        database = open_database(settings.database)
        self._stops.append(database.close)
        placer = Placer(settings, database, secrets)
        self._stops.append(placer.stop)
        await placer.start()
        gateway = await self._start_gateway(database, secrets)
        made = await database.write(_seed, self._batches)
        await self._start_fleet(database, secrets, gateway, made)
        usages = [
            await self._wait_for_hosts(database, identifier, batch.hosts)
            for batch, identifier in zip(self._batches, made, strict=True)
        ]
        pool_id = made[0]
        found = await database.read(atoms.in_pool, pool_id)
        whole = [atom for atom in found if atom.bookable and atom.device_class is DeviceClass.GPU]
        return Ready(
            config=self._write_client(placer, secrets, pool_id),
            hosts=sum(usage.schedulable for usage in usages),
            gpus=sum(usage.devices for usage in usages),
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
        self, database: Database, secrets: Secrets, gateway: Gateway, made: Sequence[PoolId]
    ) -> None:
        members = []
        for batch, pool_id in zip(self._batches, made, strict=True):
            for name in batch.names:
                request = JoinRequest(pool_id=pool_id)
                token = await database.write(mint, request, secrets.authority.pin)
                members.append(Member(name=name, profile=batch.profile, token=token.text))
        addresses = GatewaySettings(
            address=f"localhost:{gateway.node_port}",
            enroll_address=f"localhost:{gateway.enrolment_port}",
            spread_seconds=0.5,
        )
        fleet = Fleet(self._state / _HOSTS, addresses, members)
        self._stops.append(fleet.stop)
        await fleet.start()

    async def _wait_for_hosts(self, database: Database, pool_id: PoolId, hosts: int) -> Usage:
        deadline = time.monotonic() + _READY_S
        while True:
            usage = await database.read(_usage, pool_id)
            if usage.schedulable >= hosts:
                return usage
            if time.monotonic() > deadline:
                raise BadConfiguration(
                    f"only {usage.schedulable} of {hosts} hosts came up within"
                    f" {_READY_S:.0f} s; {self._state}/dev.log says why"
                )
            await asyncio.sleep(0.1)

    def _write_client(self, placer: Placer, secrets: Secrets, pool_id: PoolId) -> Path:
        """A configuration and a token, and the locked copy for other terminals; an agent's too."""

        def write(name: str, token_name: str, grant: Grant) -> bytes:
            token = self._state / token_name
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
            content = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            replace_file(self._state / name, content.encode())
            return content.encode()

        write(AGENT_CONFIG, "agent-token", Grant(subject=PERSON, tenants=(TENANT,), actor=AGENT))
        person = Grant(subject=PERSON, tenants=(TENANT,), admin=True)
        self._registered = Registration(write("client.toml", "token", person))
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


def _seed(tx: Transaction, batches: Sequence[Batch]) -> list[PoolId]:
    """The quotas that ``dev`` starts with, and the batches' pools, in their order."""
    for resource in (*DeviceClass, "vcpu", "memoryGiB"):
        quotas.set_ceiling(tx, TENANT, resource, _MANY)
    known = {pool.name: pool.id for pool in pools.every(tx)}
    return [
        known.get(batch.pool) or pools.create(tx, batch.pool, TENANT, _REGION, batch.policy).id
        for batch in batches
    ]


def _usage(tx: Transaction, pool_id: PoolId) -> Usage:
    return pools.usage(tx, pool_id, tx.now_ms())

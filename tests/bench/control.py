"""A placer and gateway in the measuring process, and daemons as processes of their own."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from bcd.cli.embedded import EmbeddedSettings, start_gateway
from bcd.gateway.server import Gateway
from bcd.model.ids import PoolId
from bcd.model.pool import PoolPolicy
from bcd.placer.pki.issuer import Grant
from bcd.placer.pki.join import JoinRequest, mint
from bcd.placer.pki.state import CA_FILE, Secrets, init_state
from bcd.placer.server import Placer
from bcd.placer.settings import ApiSettings, PlacerSettings
from bcd.store import pools, quotas
from bcd.store.database import Database
from bcd.store.open import open_database
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub
from tests.journeys.system import BIN, DOMAIN, TENANT


@dataclass
class Control:
    """What a measurement drives."""

    folder: Path
    database: Database
    secrets: Secrets
    placer: Placer
    gateway: Gateway
    pool_id: PoolId

    async def start_daemon(self, name: str) -> "subprocess.Popen[bytes]":
        """Enrol and start ``bcd --sim dgx-h100``."""
        root = self.folder / name
        root.mkdir()
        config = self.folder / f"{name}.toml"
        config.write_text(
            f'[gateway]\naddress = "localhost:{self.gateway.node_port}"\n'
            f'enroll_address = "localhost:{self.gateway.enrolment_port}"\n'
            f'[paths]\nroot = "{root}"\n'
        )
        token = await self.database.write(
            mint, JoinRequest(pool_id=self.pool_id), self.secrets.authority.pin
        )
        enrol = [str(BIN / "bcd"), "enroll", "--config", str(config), "--token-file", "-"]
        await _run(enrol, token.text)
        return self.run_daemon(name)

    def run_daemon(self, name: str) -> "subprocess.Popen[bytes]":
        """Start an enrolled daemon."""
        log = (self.folder / f"{name}.log").open("ab")
        config = str(self.folder / f"{name}.toml")
        return subprocess.Popen(
            [str(BIN / "bcd"), "run", "--config", config, "--sim", "dgx-h100"],
            stdout=log,
            stderr=log,
        )

    def stub(self) -> tuple[grpc.aio.Channel, Any, tuple[tuple[str, str], ...]]:
        """(channel, reservations stub, call metadata) of a client of the API."""
        grant = Grant(subject="bench", tenants=(TENANT,))
        token = self.secrets.issuer.issue(grant, time.time_ns() // 1_000_000, 3_600_000)
        roots = (self.folder / "placer" / CA_FILE).read_bytes()
        channel = grpc.aio.secure_channel(
            f"localhost:{self.placer.port}", grpc.ssl_channel_credentials(roots)
        )
        return channel, ReservationsServiceStub(channel), (("authorization", f"Bearer {token}"),)


async def _run(command: list[str], stdin: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    await process.communicate(stdin.encode())
    assert process.returncode == 0


@asynccontextmanager
async def control(folder: Path, url: str) -> AsyncIterator[Control]:
    """A running control plane with one pool and a large quota."""
    database = open_database(url)
    settings = PlacerSettings(
        database=url,
        state=folder / "placer",
        trust_domain=DOMAIN,
        api=ApiSettings(listen="127.0.0.1:0"),
    )
    secrets = init_state(settings.state, DOMAIN)
    placer = Placer(settings, database, secrets)
    await placer.start()
    listen = EmbeddedSettings(node_listen="127.0.0.1:0", enrolment_listen="127.0.0.1:0")
    gateway = await start_gateway(listen, folder / "gateway", database, secrets.authority)
    pool = await database.write(pools.create, "pool", TENANT, "eu", PoolPolicy())
    await database.write(quotas.set_ceiling, TENANT, "gpu", 10**6)
    try:
        yield Control(folder, database, secrets, placer, gateway, pool.id)
    finally:
        await gateway.stop()
        await placer.stop()
        await database.close()

"""The whole system as processes of their own: placer, gateway, daemons, and a client over TLS.

On SQLite the placer runs the gateway in its process; on PostgreSQL each is one, the gateway
under its restricted role.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from bcd.placer.pki.issuer import Grant, load_issuer
from bcd.wire.compute.v1 import admin_pb2, admin_pb2_grpc, reservations_pb2, reservations_pb2_grpc

TENANT = "acme"
DOMAIN = "journey.example"
READY_S = 60.0
BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port of the loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(what: str, holds: Callable[[], bool], timeout_s: float = READY_S) -> None:
    """Poll a condition; fails naming ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.05)


@dataclass
class Program:
    """A process whose output goes to a file."""

    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    @property
    def pid(self) -> int:
        """The running process."""
        assert self.process is not None
        return self.process.pid

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it with a signal; returns its exit code."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        return self.process.wait(timeout=30)

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None


@dataclass
class Client:
    """Calls the API as somebody."""

    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        self.reservations = reservations_pb2_grpc.ReservationsServiceStub(self.channel)
        self.pools = admin_pb2_grpc.PoolsServiceStub(self.channel)
        self.nodes = admin_pb2_grpc.NodesServiceStub(self.channel)
        self.quotas = admin_pb2_grpc.QuotasServiceStub(self.channel)
        self.credentials = admin_pb2_grpc.CredentialsServiceStub(self.channel)

    def create(
        self,
        pool_id: str,
        count: int,
        key: str,
        *,
        topology: str = "",
        model: str = "",
        duration: str = "1h",
        **more: Any,
    ) -> reservations_pb2.Reservation:
        """Reserve GPUs; ``more`` are further fields of the request."""
        request = reservations_pb2.CreateReservationRequest(
            tenant_id=TENANT, pool_id=pool_id, duration=duration, idempotency_key=key, **more
        )
        request.devices.add(**{"class": "gpu"}, count=count, topology=topology, model=model)
        answer = self.reservations.CreateReservation(request, metadata=self.metadata, timeout=30)
        return answer.reservation

    def get(self, reservation_id: str) -> reservations_pb2.Reservation:
        """Read one."""
        request = reservations_pb2.GetReservationRequest(
            tenant_id=TENANT, reservation_id=reservation_id
        )
        answer = self.reservations.GetReservation(request, metadata=self.metadata, timeout=30)
        return answer.reservation

    def release(self, reservation_id: str) -> reservations_pb2.Reservation:
        """End one."""
        request = reservations_pb2.ReleaseReservationRequest(
            tenant_id=TENANT, reservation_id=reservation_id
        )
        answer = self.reservations.ReleaseReservation(request, metadata=self.metadata, timeout=30)
        return answer.reservation

    def list_nodes(self) -> Sequence[admin_pb2.Node]:
        """Every node of the tenant."""
        request = admin_pb2.ListNodesRequest(tenant_id=TENANT)
        return list(self.nodes.ListNodes(request, metadata=self.metadata, timeout=30).nodes)


@dataclass
class System:
    """One installation in a folder; use it as a context manager."""

    folder: Path
    url: str
    gateway_url: str = ""
    placer_launcher: Sequence[str] = (str(BIN / "bcd-placer"),)
    programs: dict[str, Program] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api_port, self.node_port, self.enrol_port = (free_port() for _ in range(3))
        self.state = self.folder / "placer"
        self._write_settings()

    @property
    def separate(self) -> bool:
        """Whether the gateway is a process of its own."""
        return bool(self.gateway_url)

    def _write_settings(self) -> None:
        gateway = (
            f'node_listen = "127.0.0.1:{self.node_port}"\n'
            f'enrolment_listen = "127.0.0.1:{self.enrol_port}"\n'
            "stop_grace_ms = 500\n"
        )
        self.placer_file = self.folder / "placer.toml"
        self.placer_file.write_text(
            f'database = "{self.url}"\nstate = "{self.state}"\ntrust_domain = "{DOMAIN}"\n'
            f'[api]\nlisten = "127.0.0.1:{self.api_port}"\n[gateway]\n{gateway}'
        )
        self.gateway_file = self.folder / "gateway.toml"
        self.gateway_file.write_text(
            f'database = "{self.gateway_url}"\nstate = "{self.folder / "gateway"}"\n'
            f'names = ["localhost", "127.0.0.1"]\nid = "gw-1"\n[gateway]\n{gateway}'
        )

    def __enter__(self) -> "System":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    def _start(self) -> None:
        self.run(*self.placer_launcher, "init", "--config", str(self.placer_file))
        with_gateway = () if self.separate else ("--with-gateway",)
        self.program(
            "placer",
            *self.placer_launcher,
            "run",
            "--config",
            str(self.placer_file),
            *with_gateway,
        ).start()
        self.wait_api()
        if self.separate:
            self._start_gateway()

    def _stop(self) -> None:
        for program in reversed(self.programs.values()):
            if program.alive():
                program.kill(signal.SIGTERM)

    def _start_gateway(self) -> None:
        token = self.folder / "admin-token"
        token.write_text(self.token(admin=True))
        token.chmod(0o600)
        command = str(BIN / "bcd-gateway")
        self.run(
            command, "enroll", "--config", str(self.gateway_file), "--placer",
            f"localhost:{self.api_port}", "--token-file", str(token), "--ca-file",
            str(self.state / "ca.pem"),
        )  # fmt: skip
        self.program("gateway", command, "run", "--config", str(self.gateway_file)).start()
        wait_until("the gateway listens", lambda: listens(self.enrol_port))

    def program(self, name: str, *command: str) -> Program:
        """Declare a process."""
        made = Program(command, self.folder / f"{name}.log")
        self.programs[name] = made
        return made

    def run(self, *command: str, stdin: str = "") -> str:
        """Run a command to its end; fails with its words when it does not succeed."""
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def token(self, *, admin: bool = False) -> str:
        """A bearer token of the installation's own issuer."""
        grant = Grant(subject="alice", tenants=(TENANT,), admin=admin)
        issuer = load_issuer(self.state, DOMAIN)
        return issuer.issue(grant, time.time_ns() // 1_000_000, 3_600_000)

    def client(self, *, admin: bool = False) -> Client:
        """A client that trusts the installation's CA."""
        roots = (self.state / "ca.pem").read_bytes()
        channel = grpc.secure_channel(
            f"localhost:{self.api_port}",
            grpc.ssl_channel_credentials(roots),
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500)],
        )
        return Client(channel, (("authorization", f"Bearer {self.token(admin=admin)}"),))

    def wait_api(self) -> None:
        """Wait until the API answers."""
        with self.client().channel as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=READY_S)
            except grpc.FutureTimeoutError as error:
                log = self.programs["placer"].log.read_text()
                raise AssertionError(f"the placer does not answer: {log}") from error

    def add_pool(self, gpus: int = 1000) -> str:
        """A pool of TENANT with a quota; returns its id."""
        admin = self.client(admin=True)
        with admin.channel:
            request = admin_pb2.CreatePoolRequest(name="pool", tenant_id=TENANT, region="eu-1")
            pool = admin.pools.CreatePool(request, metadata=admin.metadata, timeout=30).pool
            quota = admin_pb2.SetQuotaRequest(tenant_id=TENANT, resource="gpu", limit=gpus)
            admin.quotas.SetQuota(quota, metadata=admin.metadata, timeout=30)
        return pool.id

    def add_node(self, name: str, pool_id: str, profile: str = "dgx-h100", more: str = "") -> Path:
        """Enrol and start a daemon on simulated hardware; returns its scratch root.

        ``more`` are tables of its settings beside those that say where it is.
        """
        root = self.folder / name
        root.mkdir()
        config = self.folder / f"{name}.toml"
        config.write_text(
            f'[gateway]\naddress = "localhost:{self.node_port}"\n'
            f'enroll_address = "localhost:{self.enrol_port}"\nspread_seconds = 0.2\n'
            f'max_backoff_seconds = 1.0\n[paths]\nroot = "{root}"\n{more}'
        )
        admin = self.client(admin=True)
        with admin.channel:
            request = admin_pb2.CreateJoinTokenRequest(pool_id=pool_id)
            token = admin.credentials.CreateJoinToken(
                request, metadata=admin.metadata, timeout=30
            ).token
        bcd = str(BIN / "bcd")
        self.run(bcd, "enroll", "--config", str(config), "--token-file", "-", stdin=token)
        self.program(name, bcd, "run", "--config", str(config), "--sim", profile).start()
        return root

    def wait_nodes(self, count: int) -> None:
        """Wait until so many nodes take bookings."""
        client = self.client()
        with client.channel:
            wait_until(
                f"{count} schedulable nodes",
                lambda: sum(node.schedulable for node in client.list_nodes()) == count,
            )

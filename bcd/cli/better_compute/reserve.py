"""``better-compute reserve``: creates a reservation and waits until its devices are there."""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from bcd.cli.better_compute.confirm import awaited
from bcd.cli.better_compute.connection import Connection, client_options, connected
from bcd.cli.better_compute.parameters import Duration, Moment, pool_id
from bcd.cli.better_compute.show import print_json, print_reservation
from bcd.model.errors import BadConfiguration, BcdError, Reason
from bcd.model.reservation import Topology
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub
from bcd.wire.document import MAX_DOCUMENT_BYTES, from_document, parse_json

T = TypeVar("T")

_POLL_S = 0.2
_AWAY_S = 1.0
_UNKNOWN_OUTCOME = (Reason.UNAVAILABLE, Reason.INTERNAL)
_SERVER_WAIT_MS = 30_000
_PENDING = 3
_ENDED = ("denied", "released", "failed", "cancelled", "expired")
_MIG = re.compile(r"([A-Za-z0-9.+-]+)(?::([1-9][0-9]{0,3}))?\Z")


@click.command()
@click.option("--pool", help="Pool to reserve in, by name or id; needless where there is one.")
@click.option("--gpus", type=click.IntRange(1, 1024), help="How many GPUs, on one node.")
@click.option("--mig", multiple=True, metavar="PROFILE[:N]", help="MIG instances: 1g.10gb:2.")
@click.option("--slots", type=click.IntRange(1, 1024), help="How many slots of shared GPUs.")
@click.option(
    "--topology",
    type=click.Choice([topology.value for topology in Topology]),
    help="How the GPUs must be connected.",
)
@click.option("--model", help="Only GPUs of this model; a word of its name will do: H100.")
@click.option(
    "--cpus", type=click.IntRange(0, 4096), help="Host CPUs  [default: your GPUs' share]."
)
@click.option(
    "--memory", type=click.IntRange(0, 65536), help="Host memory, GiB  [default: your GPUs' share]."
)
@click.option("--kubernetes", is_flag=True, help="Give the devices to the host's kubelet.")
@click.option("--for", "duration", type=Duration(), help="How long: 8h, 90m, 3d, 1d12h.")
@click.option(
    "--at",
    "start",
    type=Moment(ahead=True),
    help='When: "2026-12-07 09:00 Europe/Berlin", or +2h from now; without it, now.',
)
@click.option("--gang", type=click.IntRange(1, 1024), help="So many distinct nodes, all or none.")
@click.option("--lease", type=Duration(), help="End it unless renewed within this time: 10m.")
@click.option("--spot", is_flag=True, help="Yield to whoever needs the devices more.")
@click.option(
    "--wait",
    type=Duration(zero=True),
    default="20s",
    show_default=True,
    help="How long to wait for the devices; 0 not at all.",
)
@click.option(
    "-f", "--file", type=click.File("rb"), help="A request as JSON, - for standard input."
)
@click.option("--key", help="Idempotency key; the same key finds the same reservation.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and book nothing.")
@client_options
def reserve(
    file: Any,
    wait: int,
    tenant: str | None,
    output: str,
    config: Path | None,
    **options: Any,
) -> None:
    """Reserve GPUs.

    Waits until the devices are handed over, or booked for a later start; exits with 3 when they
    are not in time, and the reservation stays, or when a person must confirm first what an agent
    asks for. Options add to a file, or replace what it says of the same thing; devices come from
    one of the two.
    """
    with connected(config) as connection:
        request = _request(file, options)
        request.tenant_id = tenant or request.tenant_id or connection.tenant(None)
        given = options["pool"] or request.pool_id
        deadline = time.monotonic() + wait / 1000
        pool = partial(pool_id, connection, request.tenant_id, given)
        request.pool_id = _insist(pool, deadline)
        key = request.idempotency_key
        with awaited(key, output), _named(f"ask again with --key {key}: it books once"):
            made = _insist(partial(_create, connection, request, wait), deadline)
        if not request.dry_run:
            with _named(f"the reservation stays: better-compute get {made.id}, or cancel"):
                made = _until_active(connection, made, deadline)
        _print(made, output, dry_run=request.dry_run)
    raise SystemExit(_exit_code(made, wait, dry_run=request.dry_run))


@contextmanager
def _named(what_stands: str) -> Iterator[None]:
    """However the command ends inside, the person learns what may have been booked."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"stopped waiting; {what_stands}", err=True)
        raise SystemExit(130) from None
    except BcdError as error:
        if error.reason in _UNKNOWN_OUTCOME and not isinstance(error, BadConfiguration):
            error.message += f"\n{what_stands}"
        raise


def _insist(call: Callable[[], T], deadline: float) -> T:
    """Call until the deadline as long as nobody answers; keys make every call safe to repeat."""
    while True:
        try:
            return call()
        except BcdError as error:
            if error.reason is not Reason.UNAVAILABLE or time.monotonic() + _AWAY_S > deadline:
                raise
        time.sleep(_AWAY_S)


def _request(file: Any, options: dict[str, Any]) -> pb.CreateReservationRequest:
    """The file's request with the options laid over it."""
    request = pb.CreateReservationRequest()
    if file is not None:
        document = parse_json(file.read(MAX_DOCUMENT_BYTES + 1), file.name)
        request = from_document(document, pb.CreateReservationRequest)
    _lay_devices(request, options)
    _lay_host(request, options)
    _lay_terms(request, options)
    if options["duration"] is not None:
        request.duration = f"{options['duration']}ms"
    request.idempotency_key = options["key"] or request.idempotency_key or str(uuid.uuid4())
    request.dry_run = request.dry_run or options["dry_run"]
    if not request.devices:
        raise click.UsageError(
            "say what to reserve: --gpus, --slots, --mig, or devices in a file with -f"
        )
    if not request.duration:
        raise click.UsageError("say for how long: --for, or duration in a file with -f")
    return request


def _lay_devices(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    asked: list[tuple[str, int, str]] = []
    if options["gpus"] is not None:
        asked.append(("gpu", options["gpus"], ""))
    if options["slots"] is not None:
        asked.append(("gpu.slot", options["slots"], ""))
    for text in options["mig"]:
        match = _MIG.match(text)
        if match is None:
            raise click.UsageError(f"--mig {text!r} is not PROFILE or PROFILE:N, such as 1g.10gb:2")
        asked.append(("gpu.mig", int(match[2] or 1), match[1]))
    if asked and request.devices:
        raise click.UsageError(
            "the file names devices already; leave out --gpus, --slots and --mig"
        )
    for device_class, count, profile in asked:
        request.devices.add(**{"class": device_class}, count=count, profile=profile)
    for name in ("topology", "model"):
        if options[name] and len(request.devices) != 1:
            raise click.UsageError(f"--{name} needs exactly one kind of device")
        if options[name]:
            setattr(request.devices[0], name, options[name])


def _lay_host(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    if options["cpus"] is not None:
        request.resources.vcpu = options["cpus"]
    if options["memory"] is not None:
        request.resources.memory_gib = options["memory"]
    if options["kubernetes"]:
        request.binding = "kubernetes"


def _lay_terms(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    """When, on how many nodes, and how firmly."""
    if options["start"] is not None:
        request.start = options["start"]
    if options["gang"] is not None:
        request.gang.size = options["gang"]
    if options["lease"] is not None:
        if options["lease"] % 1000:
            raise click.UsageError("--lease is in whole seconds")
        request.lease_seconds = options["lease"] // 1000
    if options["spot"]:
        request.spot = True


def _create(
    connection: Connection, request: pb.CreateReservationRequest, wait_ms: int
) -> pb.Reservation:
    request.wait.timeout_ms = min(wait_ms, _SERVER_WAIT_MS)
    stub = ReservationsServiceStub(connection.channel)
    return connection.call(stub.CreateReservation, request).reservation


def _until_active(connection: Connection, made: pb.Reservation, deadline: float) -> pb.Reservation:
    """Poll until the devices are handed over, the reservation ends, or the time is up."""
    stub = ReservationsServiceStub(connection.channel)
    request = pb.GetReservationRequest(tenant_id=made.tenant_id, reservation_id=made.id)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with console.status(f"{made.id} is {made.state} …") as status:
        while not _is_settled(made, deadline) and time.monotonic() < deadline:
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
            made = _insist(
                lambda: connection.call(stub.GetReservation, request).reservation, deadline
            )
            status.update(f"{made.id} is {made.state} …")
    return made


def _is_settled(made: pb.Reservation, deadline: float) -> bool:
    """Whether there is nothing to wait for: handed over, over, or booked for later than that."""
    return made.state in ("active", *_ENDED) or _starts_in(made, deadline - time.monotonic())


def _starts_in(made: pb.Reservation, seconds: float) -> bool:
    """Whether it is booked for a start that is further ahead."""
    if made.state != "placed" or not made.request.HasField("start"):
        return False
    return made.during.start / 1000 > time.time() + seconds


def _print(made: pb.Reservation, output: str, *, dry_run: bool) -> None:
    if dry_run:
        click.echo("dry run: nothing was booked; it would be", err=True)
        made.ClearField("id")
        made.operation.ClearField("id")
    if output == "json":
        print_json(made)
    else:
        print_reservation(made)


def _exit_code(made: pb.Reservation, wait_ms: int, *, dry_run: bool) -> int:
    if made.state in _ENDED:
        click.echo(f"the reservation has ended: {made.state}", err=True)
        return 1
    if made.state == "active" or _starts_in(made, 0.0):
        return 0
    if made.state != "pending" and (dry_run or not wait_ms):
        return 0
    if not dry_run:
        click.echo(
            f"still {made.state}; look again with: better-compute get {made.id}, or withdraw it"
            f" with: better-compute cancel {made.id}",
            err=True,
        )
    return _PENDING

"""``better-compute reserve``: creates a reservation and waits until its devices are there."""

import sys
import time
import uuid
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bcd.cli.better_compute.connection import Connection, client_options, connected
from bcd.cli.better_compute.show import print_json, print_reservation
from bcd.model.errors import BadConfiguration, InvalidInput, Unavailable
from bcd.model.units import parse_duration_ms
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub
from bcd.wire.document import MAX_DOCUMENT_BYTES, from_document, parse_json

_POLL_S = 0.2
_SERVER_WAIT_MS = 30_000
_PENDING = 3
_ENDED = ("denied", "released", "failed", "cancelled", "expired")


@click.command()
@click.option("--pool", help="Pool to reserve in.")
@click.option("--gpus", type=click.IntRange(1, 1024), help="How many GPUs, on one node.")
@click.option(
    "--topology",
    type=click.Choice(["any", "same-numa", "nvlink-all"]),
    help="How the GPUs must be connected.",
)
@click.option("--model", help="Only GPUs of this model, such as H100.")
@click.option("--for", "duration", help="How long: 8h, 90m, 3d, 1d12h.")
@click.option("--wait", default="20s", show_default=True, help="How long to wait; 0 not at all.")
@click.option(
    "-f",
    "--file",
    type=click.File("rb"),
    help="A request as JSON, - for standard input; options override it.",
)
@click.option("--key", help="Idempotency key; the same key finds the same reservation.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and book nothing.")
@client_options
def reserve(
    file: Any,
    wait: str,
    tenant: str | None,
    output: str,
    config: Path | None,
    **options: Any,
) -> None:
    """Reserve GPUs.

    Waits until the devices are handed over; exits with 3 when they are not in time, and the
    reservation stays.
    """
    with connected(config) as connection:
        wait_ms = 0 if wait.strip("0") in ("", "s", "ms") else parse_duration_ms(wait, "--wait")
        request = _request(file, options)
        request.tenant_id = tenant or request.tenant_id or connection.tenant(None)
        if not request.pool_id:
            request.pool_id = connection.settings.pool
        if not request.pool_id:
            raise BadConfiguration("no pool: name one with --pool, or set pool in the file")
        made = _create(connection, request, wait_ms)
        if not request.dry_run:
            made = _until_active(connection, made, wait_ms)
    print_json(made) if output == "json" else print_reservation(made)
    raise SystemExit(_exit_code(made, wait_ms, dry_run=request.dry_run))


def _request(file: Any, options: dict[str, Any]) -> pb.CreateReservationRequest:
    """The file's request with the options laid over it."""
    request = pb.CreateReservationRequest()
    if file is not None:
        document = parse_json(file.read(MAX_DOCUMENT_BYTES + 1), file.name)
        request = from_document(document, pb.CreateReservationRequest)
    request.pool_id = options["pool"] or request.pool_id
    request.duration = options["duration"] or request.duration
    request.idempotency_key = options["key"] or request.idempotency_key or str(uuid.uuid4())
    if options["dry_run"]:
        request.dry_run = True
    _lay_devices(request, options)
    for name, value in (("--gpus", request.devices), ("--for", request.duration)):
        if not value:
            raise InvalidInput(name, "is needed, or a file with -f")
    return request


def _lay_devices(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    if options["gpus"] is not None:
        del request.devices[:]
        request.devices.add(**{"class": "gpu"}, count=options["gpus"])
    chosen = {name: options[name] for name in ("topology", "model") if options[name]}
    if chosen and len(request.devices) != 1:
        raise InvalidInput("--" + next(iter(chosen)), "needs --gpus, or a file with one entry")
    for name, value in chosen.items():
        setattr(request.devices[0], name, value)


def _create(
    connection: Connection, request: pb.CreateReservationRequest, wait_ms: int
) -> pb.Reservation:
    request.wait.timeout_ms = min(wait_ms, _SERVER_WAIT_MS)
    stub = ReservationsServiceStub(connection.channel)
    try:
        return connection.call(stub.CreateReservation, request).reservation
    except Unavailable as error:
        error.message += f"\nask again with --key {request.idempotency_key}: it books once"
        raise


def _until_active(connection: Connection, made: pb.Reservation, wait_ms: int) -> pb.Reservation:
    """Poll until the devices are handed over, the reservation ends, or the time is up."""
    stub = ReservationsServiceStub(connection.channel)
    request = pb.GetReservationRequest(tenant_id=made.tenant_id, reservation_id=made.id)
    deadline = time.monotonic() + wait_ms / 1000
    console = Console(stderr=True, highlight=False)
    with console.status(f"{made.state} …") as status:
        while made.state not in ("active", *_ENDED) and time.monotonic() < deadline:
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
            made = connection.call(stub.GetReservation, request).reservation
            status.update(f"{made.state} …")
    return made


def _exit_code(made: pb.Reservation, wait_ms: int, *, dry_run: bool) -> int:
    if made.state in _ENDED:
        return 1
    if made.state == "active" or (made.state != "pending" and (dry_run or not wait_ms)):
        return 0
    if not dry_run:
        sys.stdout.flush()
        click.echo(f"still {made.state}; look again with: better-compute get {made.id}", err=True)
    return _PENDING

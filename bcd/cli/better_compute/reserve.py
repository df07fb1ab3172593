"""``better-compute reserve``: creates a reservation and waits until its devices are there."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from bcd.cli.better_compute.completion import complete_pools
from bcd.cli.better_compute.confirm import awaited
from bcd.cli.better_compute.connection import Connection, client_options, connected
from bcd.cli.better_compute.parameters import Duration, pool_id
from bcd.cli.better_compute.request_options import request_of, request_options
from bcd.cli.better_compute.show import moment, print_json, print_reservation
from bcd.model.errors import BadConfiguration, BcdError, Reason
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub

T = TypeVar("T")

_POLL_S = 0.2
_AWAY_S = 1.0
_UNKNOWN_OUTCOME = (Reason.UNAVAILABLE, Reason.INTERNAL)
_SERVER_WAIT_MS = 30_000
_PENDING = 3
_ENDED = ("denied", "released", "failed", "cancelled", "expired")


@click.command()
@click.option(
    "--pool",
    metavar="POOL",
    shell_complete=complete_pools,
    help="Pool to reserve in, by name or id; needless where there is one.",
)
@request_options
@click.option("--lease", type=Duration(), help="End it unless renewed within this time: 10m.")
@click.option(
    "--wait",
    type=Duration(zero=True),
    default="20s",
    show_default=True,
    help="How long to wait for the devices; 0 not at all.",
)
@click.option(
    "--key", metavar="KEY", help="Idempotency key; the same key finds the same reservation."
)
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
        asked = "" if request.dry_run else key
        with awaited(asked, output), _named(f"ask again with --key {key}: it books once"):
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
    request = request_of(file, options)
    if options["lease"] is not None:
        if options["lease"] % 1000:
            raise click.UsageError("--lease is in whole seconds")
        request.lease_seconds = options["lease"] // 1000
    request.idempotency_key = options["key"] or request.idempotency_key or str(uuid.uuid4())
    request.dry_run = request.dry_run or options["dry_run"]
    return request


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
        ahead = made.state == "placed" and made.during.start / 1000 > time.time()
        begins = f", and begins at {moment(made.during.start)}" if ahead else ""
        click.echo(
            f"still {made.state}{begins}; look again with: better-compute get {made.id}, or"
            f" withdraw it with: better-compute cancel {made.id}",
            err=True,
        )
    return _PENDING

"""``better-compute extend``: moves the end of a reservation later."""

import uuid
from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.parameters import (
    Duration,
    Moment,
    reservation_argument,
    reservation_id,
)
from bcd.cli.better_compute.show import answer, moment
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@reservation_argument
@click.option(
    "--until",
    type=Moment(ahead=True),
    help='The new end: +12h from now, or "2026-12-07 09:00 Europe/Berlin"; safe to repeat.',
)
@click.option("--by", type=Duration(), help="How much longer: 4h, 1d; repeated, it extends again.")
@click.option("--key", metavar="KEY", help="Idempotency key of this extension.")
@client_options
def extend(
    reservation: str,
    until: int | None,
    by: int | None,
    key: str | None,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Keep a reservation longer, all of it or nothing.

    Exits with 1 when another booking is in the way, and says until when nothing is.
    """
    if until is not None and by is not None:
        raise click.UsageError("only one of --by and --until")
    if until is None and by is None:
        raise click.UsageError("say until when, --until, or how much longer, --by")
    with connected(config) as connection:
        acting = connection.tenant(tenant)
        request = pb.ExtendReservationRequest(
            tenant_id=acting,
            reservation_id=reservation_id(connection, acting, reservation),
            until=until,
            by=None if by is None else f"{by}ms",
            idempotency_key=key or str(uuid.uuid4()),
        )
        stub = ReservationsServiceStub(connection.channel)
        done = connection.call(stub.ExtendReservation, request)
    held = done.reservation
    answer(done, output, f"{held.id}  {held.state}  until {moment(held.during.end)}")
    if done.extended:
        return
    if not done.HasField("available_until"):
        click.echo("it lasts that long already", err=True)
        return
    click.echo(
        f"not extended: another booking is in the way; it can last until"
        f" {moment(done.available_until)}",
        err=True,
    )
    raise SystemExit(1)

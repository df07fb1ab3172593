"""``better-compute renew``: keeps a lease from running out."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.show import moment, print_json
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@click.argument("reservation")
@client_options
def renew(reservation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Let the lease of a reservation run anew from now on."""
    with connected(config) as connection:
        request = pb.RenewReservationRequest(
            tenant_id=connection.tenant(tenant), reservation_id=reservation
        )
        stub = ReservationsServiceStub(connection.channel)
        renewed = connection.call(stub.RenewReservation, request).reservation
    if output == "json":
        print_json(renewed)
    else:
        click.echo(f"{renewed.id}  {renewed.state}  lease until {moment(renewed.lease_until)}")

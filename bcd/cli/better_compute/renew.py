"""``better-compute renew``: keeps a lease from running out."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.parameters import reservation_argument, reservation_id
from bcd.cli.better_compute.show import answer, moment
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@reservation_argument
@client_options
def renew(reservation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Let the lease of a reservation run anew from now."""
    with connected(config) as connection:
        acting = connection.tenant(tenant)
        request = pb.RenewReservationRequest(
            tenant_id=acting, reservation_id=reservation_id(connection, acting, reservation)
        )
        stub = ReservationsServiceStub(connection.channel)
        renewed = connection.call(stub.RenewReservation, request).reservation
    until = moment(renewed.lease_until)
    answer(renewed, output, f"{renewed.id}  {renewed.state}  lease until {until}")

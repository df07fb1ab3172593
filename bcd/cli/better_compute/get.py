"""``better-compute get``: one reservation."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.parameters import reservation_argument, reservation_id
from bcd.cli.better_compute.show import print_json, print_reservation
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@reservation_argument
@client_options
def get(reservation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Show one reservation."""
    with connected(config) as connection:
        acting = connection.tenant(tenant)
        request = pb.GetReservationRequest(
            tenant_id=acting, reservation_id=reservation_id(connection, acting, reservation)
        )
        stub = ReservationsServiceStub(connection.channel)
        found = connection.call(stub.GetReservation, request).reservation
    print_json(found) if output == "json" else print_reservation(found)

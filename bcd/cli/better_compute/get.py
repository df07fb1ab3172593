"""``better-compute get``: one reservation."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.show import print_json, print_reservation
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@click.argument("reservation")
@client_options
def get(reservation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Show one reservation."""
    with connected(config) as connection:
        request = pb.GetReservationRequest(
            tenant_id=connection.tenant(tenant), reservation_id=reservation
        )
        stub = ReservationsServiceStub(connection.channel)
        found = connection.call(stub.GetReservation, request).reservation
    print_json(found) if output == "json" else print_reservation(found)

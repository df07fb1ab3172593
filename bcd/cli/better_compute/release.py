"""``better-compute release``: ends a reservation."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.show import print_json
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@click.argument("reservation")
@client_options
def release(reservation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """End a reservation now; cancels one that is still pending."""
    with connected(config) as connection:
        request = pb.ReleaseReservationRequest(
            tenant_id=connection.tenant(tenant), reservation_id=reservation
        )
        stub = ReservationsServiceStub(connection.channel)
        ended = connection.call(stub.ReleaseReservation, request).reservation
    print_json(ended) if output == "json" else click.echo(f"{ended.id}  {ended.state}")

"""``better-compute cancel``: withdraws a reservation."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.parameters import reservation_argument, reservation_id
from bcd.cli.better_compute.show import answer
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@reservation_argument
@client_options
def cancel(reservation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Withdraw a reservation that has not started."""
    with connected(config) as connection:
        acting = connection.tenant(tenant)
        request = pb.CancelReservationRequest(
            tenant_id=acting, reservation_id=reservation_id(connection, acting, reservation)
        )
        stub = ReservationsServiceStub(connection.channel)
        ended = connection.call(stub.CancelReservation, request).reservation
    answer(ended, output, f"{ended.id}  {ended.state}")

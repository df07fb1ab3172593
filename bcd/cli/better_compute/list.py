"""``better-compute list``: reservations, newest first."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.show import print_json, print_reservations
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub

_PAGE = 200


@click.command("list")
@click.option("--all", "everyone", is_flag=True, help="The whole tenant's, not only your own.")
@click.option("--state", default="", help="Only those in this state.")
@click.option("--pool", default="", help="Only those in this pool.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@client_options
def list_(
    everyone: bool,
    state: str,
    pool: str,
    limit: int,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """List reservations, newest first."""
    found: list[pb.Reservation] = []
    with connected(config) as connection:
        stub = ReservationsServiceStub(connection.channel)
        request = pb.ListReservationsRequest(
            tenant_id=connection.tenant(tenant),
            scope="all" if everyone else "mine",
            state=state,
            pool_id=pool,
        )
        while len(found) < limit:
            request.limit = min(_PAGE, limit - len(found))
            page = connection.call(stub.ListReservations, request)
            found += page.reservations
            if not page.next_cursor:
                break
            request.cursor = page.next_cursor
    print_json(found) if output == "json" else print_reservations(found)

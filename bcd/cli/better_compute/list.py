"""``better-compute list``: reservations, newest first."""

from pathlib import Path

import click

from bcd.cli.better_compute.completion import complete_pools
from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.parameters import pool_id
from bcd.cli.better_compute.show import print_json, print_reservations
from bcd.model.reservation import State
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub

_PAGE = 200
_STATES = [state.value for state in State if state is not State.DRAFT]


@click.command("list")
@click.option("--all", "everyone", is_flag=True, help="The whole tenant's, not only your own.")
@click.option(
    "--state",
    type=click.Choice(_STATES),
    default=None,
    metavar="STATE",
    help=f"Only those in this state: {', '.join(_STATES)}.",
)
@click.option(
    "--pool",
    shell_complete=complete_pools,
    metavar="POOL",
    help="Only those in this pool, by name or id.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="How many.",
)
@client_options
def list_(
    everyone: bool,
    state: str | None,
    pool: str | None,
    limit: int,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """List your reservations, newest first; times are local.

    On a narrow terminal ids are cut short: every verb takes them so.
    """
    found: list[pb.Reservation] = []
    with connected(config) as connection:
        stub = ReservationsServiceStub(connection.channel)
        acting = connection.tenant(tenant)
        request = pb.ListReservationsRequest(
            tenant_id=acting,
            scope="all" if everyone else "mine",
            state=state or "",
            pool_id=pool_id(connection, acting, pool) if pool else "",
        )
        while len(found) < limit:
            request.limit = min(_PAGE, limit - len(found))
            page = connection.call(stub.ListReservations, request)
            found += page.reservations
            if not page.next_cursor:
                break
            request.cursor = page.next_cursor
        if output == "json":
            print_json(found)
        else:
            print_reservations(found, owners=everyone)

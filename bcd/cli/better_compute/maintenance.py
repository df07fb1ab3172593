"""``better-compute maintenance``: times at which a node is kept free. For administrators."""

from pathlib import Path

import click

from bcd.cli.better_compute.completion import complete_nodes, complete_pools
from bcd.cli.better_compute.connection import change_options, connected
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import Duration, Moment, node_argument, node_id, pool_id
from bcd.cli.better_compute.show import answer, lasting, moment, print_json
from bcd.cli.better_compute.tables import print_table
from bcd.wire.compute.v1 import maintenance_pb2 as pb
from bcd.wire.compute.v1.maintenance_pb2_grpc import MaintenanceServiceStub


@click.group(cls=Listing)
@click.option(
    "--pool",
    shell_complete=complete_pools,
    metavar="POOL",
    help="Only those of this pool, by name or id.",
)
@click.option(
    "--node",
    shell_complete=complete_nodes,
    metavar="NODE",
    help="Only those of this node, by id or host.",
)
@change_options
@click.pass_context
def maintenance(
    context: click.Context,
    pool: str | None,
    node: str | None,
    output: str,
    config: Path | None,
) -> None:
    """List when nodes are kept free; add and remove such times."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        tenant = connection.settings.tenant
        request = pb.ListMaintenanceRequest(
            pool_id=pool_id(connection, tenant, pool) if pool else "",
            node_id=node_id(connection, node) if node else "",
        )
        stub = MaintenanceServiceStub(connection.channel)
        found = every(connection, stub.ListMaintenance, request, "windows")
    if output == "json":
        print_json(found)
        return
    print_table(
        ("ID", "NODE", "FROM", "TO", "FOR", "REASON"),
        (
            (
                window.id,
                window.node_id,
                moment(window.start),
                moment(window.end),
                lasting(window.end - window.start),
                window.reason,
            )
            for window in found
        ),
    )


@maintenance.command()
@node_argument
@click.option(
    "--at",
    "start",
    type=Moment(ahead=True),
    help='When it begins: "2026-12-07 09:00 Europe/Berlin", +12h; now where not given.',
)
@click.option("--for", "duration", type=Duration(), required=True, help="How long: 2h, 1d.")
@click.option("--reason", default="", metavar="WORDS", help="Why; shown in the list.")
@change_options
def add(
    node: str,
    start: int | None,
    duration: int,
    reason: str,
    output: str,
    config: Path | None,
) -> None:
    """Keep NODE, named by id or host, free of reservations for a time."""
    with connected(config) as connection:
        request = pb.AddMaintenanceRequest(
            node_id=node_id(connection, node), start=start, duration_ms=duration, reason=reason
        )
        stub = MaintenanceServiceStub(connection.channel)
        window = connection.call(stub.AddMaintenance, request).window
    answer(window, output, f"{window.id}  {moment(window.start)} to {moment(window.end)}")


@maintenance.command()
@click.argument("window")
@change_options
def remove(window: str, output: str, config: Path | None) -> None:
    """End a WINDOW now, or drop it if it has not begun."""
    with connected(config) as connection:
        stub = MaintenanceServiceStub(connection.channel)
        request = pb.RemoveMaintenanceRequest(id=window)
        connection.call(stub.RemoveMaintenance, request)
    answer(request, output, f"{window}  removed")

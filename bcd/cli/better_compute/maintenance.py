"""``better-compute maintenance``: times at which a node is kept free. For administrators."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import config_option, connected, output_option
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import Duration, Moment, node_id, pool_id
from bcd.cli.better_compute.show import moment, print_json, print_table
from bcd.model.units import format_duration
from bcd.wire.compute.v1 import maintenance_pb2 as pb
from bcd.wire.compute.v1.maintenance_pb2_grpc import MaintenanceServiceStub


@click.group(invoke_without_command=True)
@click.option("--pool", help="Only those of this pool, by name or id.")
@click.option("--node", help="Only those of this node, by id or host.")
@output_option
@config_option
@click.pass_context
def maintenance(
    context: click.Context,
    pool: str | None,
    node: str | None,
    output: str,
    config: Path | None,
) -> None:
    """List the maintenance windows that are not over, the next first."""
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
                format_duration(window.end - window.start),
                window.reason,
            )
            for window in found
        ),
    )


@maintenance.command()
@click.argument("node")
@click.option(
    "--at",
    "start",
    type=Moment(ahead=True),
    help='When it begins: "2026-12-07 09:00 Europe/Berlin", +12h; now where not given.',
)
@click.option("--for", "duration", type=Duration(), required=True, help="How long: 2h, 1d.")
@click.option("--reason", default="", help="Why; shown in the list.")
@output_option
@config_option
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
    if output == "json":
        print_json(window)
    else:
        click.echo(f"{window.id}  {moment(window.start)} to {moment(window.end)}")


@maintenance.command()
@click.argument("window")
@config_option
def remove(window: str, config: Path | None) -> None:
    """End a WINDOW now, or drop it if it has not begun."""
    with connected(config) as connection:
        stub = MaintenanceServiceStub(connection.channel)
        connection.call(stub.RemoveMaintenance, pb.RemoveMaintenanceRequest(id=window))
    click.echo(f"{window}  removed")

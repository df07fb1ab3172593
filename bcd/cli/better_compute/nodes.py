"""``better-compute nodes``: the hosts of your pools; administrators cordon and revoke them."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, config_option, connected
from bcd.cli.better_compute.show import moment, print_json, print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub


@click.group(invoke_without_command=True)
@click.option("--pool", default="", help="Only the nodes of this pool.")
@client_options
@click.pass_context
def nodes(
    context: click.Context, pool: str, tenant: str | None, output: str, config: Path | None
) -> None:
    """List the nodes of your pools."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.ListNodesRequest(tenant_id=connection.tenant(tenant), pool_id=pool)
        found = connection.call(stub.ListNodes, request).nodes
    if output == "json":
        print_json(list(found))
        return
    print_table(
        ("ID", "HOST", "STATE", "DEVICES", "FREE", "MODEL", "LAST SEEN"),
        (_row(node) for node in found),
    )


def _row(node: pb.Node) -> tuple[str, ...]:
    free = sum(1 for d in node.devices if not d.reservation_id and d.health == "healthy")
    models = sorted({device.model for device in node.devices})
    return (
        node.id,
        node.hostname,
        _state(node),
        str(len(node.devices)),
        str(free),
        ", ".join(models),
        moment(node.last_seen),
    )


def _state(node: pb.Node) -> str:
    if node.cordoned:
        return "cordoned"
    if node.schedulable:
        return "ready" if node.connected else "away"
    return "unreachable" if node.ready else "joining"


@nodes.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let new bookings back.")
@config_option
def cordon(node: str, undo: bool, config: Path | None) -> None:
    """Keep new bookings off a node; those it has stay."""
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.CordonNodeRequest(node_id=node, cordoned=not undo)
        changed = connection.call(stub.CordonNode, request).node
    click.echo(f"{changed.id}  {_state(changed)}")


@nodes.command()
@click.argument("node")
@config_option
def revoke(node: str, config: Path | None) -> None:
    """Revoke a node's certificates; it must join again."""
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        answer = connection.call(stub.RevokeNode, pb.RevokeNodeRequest(node_id=node))
    click.echo(f"{node}  {answer.certificates} certificates revoked")

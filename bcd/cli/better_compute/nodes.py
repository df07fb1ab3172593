"""``better-compute nodes``: the hosts of your pools; administrators cordon and revoke them."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, config_option, connected
from bcd.cli.better_compute.parameters import node_id, pool_id
from bcd.cli.better_compute.show import moment, print_json, print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub


@click.group(invoke_without_command=True)
@click.option("--pool", help="Only the nodes of this pool, by name or id.")
@client_options
@click.pass_context
def nodes(
    context: click.Context, pool: str | None, tenant: str | None, output: str, config: Path | None
) -> None:
    """List the nodes of your pools; `nodes cordon` and `nodes revoke` take them out."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        acting = connection.tenant(tenant)
        chosen = pool_id(connection, acting, pool) if pool else ""
        request = pb.ListNodesRequest(tenant_id=acting, pool_id=chosen)
        found = connection.call(stub.ListNodes, request).nodes
    if output == "json":
        print_json(list(found))
        return
    print_table(
        ("ID", "HOST", "STATE", "GPUS", "FREE", "MIG", "FREE", "MODEL", "LAST SEEN"),
        (_row(node) for node in found),
    )


def _row(node: pb.Node) -> tuple[str, ...]:
    counts = [*_counts(node, "gpu"), *_counts(node, "gpu.mig")]
    models = sorted({device.model for device in node.devices})
    return (
        node.id,
        node.hostname,
        _state(node),
        *(str(count) for count in counts),
        ", ".join(models),
        moment(node.last_seen),
    )


def _counts(node: pb.Node, device_class: str) -> tuple[int, int]:
    """(devices of a class, those that a new reservation could have now)."""
    own = [device for device in node.devices if getattr(device, "class") == device_class]
    free = [d for d in own if not d.reservation_id and d.health == "healthy" and d.bookable]
    return len(own), len(free) if node.schedulable else 0


def _state(node: pb.Node) -> str:
    """One word; away means not connected, and still within the time it has to come back."""
    if not node.trusted:
        return "revoked"
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
    """Keep new bookings off a node, named by id or host; those it has stay."""
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.CordonNodeRequest(node_id=node_id(connection, node), cordoned=not undo)
        changed = connection.call(stub.CordonNode, request).node
    click.echo(f"{changed.id}  {_state(changed)}")


@nodes.command()
@click.argument("node")
@config_option
def revoke(node: str, config: Path | None) -> None:
    """Revoke a node's certificates; it must join again: token join --node ID."""
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.RevokeNodeRequest(node_id=node_id(connection, node))
        answer = connection.call(stub.RevokeNode, request)
    click.echo(f"{request.node_id}  revoked ({answer.certificates} certificates)")

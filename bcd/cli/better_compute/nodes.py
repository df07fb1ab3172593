"""``better-compute nodes``: the hosts of your pools; administrators take them in and out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import Message

from bcd.cli.better_compute.connection import client_options, config_option, connected
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import node_id, pool_id
from bcd.cli.better_compute.show import moment, print_fields, print_json, print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub


@click.group(invoke_without_command=True)
@click.option("--pool", help="Only the nodes of this pool, by name or id.")
@client_options
@click.pass_context
def nodes(
    context: click.Context, pool: str | None, tenant: str | None, output: str, config: Path | None
) -> None:
    """List the nodes of your pools; `nodes show` has the devices of one."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        acting = connection.tenant(tenant)
        chosen = pool_id(connection, acting, pool) if pool else ""
        request = pb.ListNodesRequest(tenant_id=acting, pool_id=chosen)
        found = every(connection, stub.ListNodes, request, "nodes")
    if output == "json":
        print_json(found)
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
    free = [
        d for d in own if not (d.held or d.reservation_id) and d.health == "healthy" and d.bookable
    ]
    return len(own), len(free) if node.schedulable else 0


def _state(node: pb.Node) -> str:
    """One word; away means not connected, and still within the time it has to come back."""
    if not node.trusted:
        return "untrusted"
    if node.draining:
        return "draining"
    if node.cordoned:
        return "cordoned"
    if node.schedulable:
        return "ready" if node.connected else "away"
    return "unreachable" if node.ready else "joining"


@nodes.command()
@click.argument("node")
@client_options
def show(node: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Show one node, named by id or host, with its devices and labels."""
    with connected(config) as connection:
        acting = tenant or connection.settings.tenant
        request = pb.GetNodeRequest(tenant_id=acting, node_id=node_id(connection, node, acting))
        stub = NodesServiceStub(connection.channel)
        found = connection.call(stub.GetNode, request).node
    if output == "json":
        print_json(found)
        return
    print_fields(
        (
            ("node", found.id),
            ("host", found.hostname),
            ("pool", found.pool_id),
            ("state", _state(found)),
            ("daemon", found.daemon_version),
            ("driver", found.driver_version),
            ("last seen", moment(found.last_seen)),
            *(("label", f"{label.key}={label.value} ({label.source})") for label in found.labels),
            *((c.type, f"{c.reason}: {c.message}") for c in found.conditions),
        )
    )
    print_table(
        ("DEVICE", "CLASS", "PROFILE", "HEALTH", "HELD BY"),
        (
            (
                device.id,
                getattr(device, "class"),
                device.profile,
                device.health,
                device.reservation_id or ("somebody" if device.held else ""),
            )
            for device in found.devices
        ),
    )


def _change(
    node: str,
    config: Path | None,
    call: Callable[[NodesServiceStub], Callable[..., Any]],
    request: Callable[[str], Message],
) -> None:
    """One call that changes a node and answers with it."""
    with connected(config) as connection:
        identifier = node_id(connection, node)
        stub = NodesServiceStub(connection.channel)
        changed = connection.call(call(stub), request(identifier)).node
    click.echo(f"{changed.id}  {_state(changed)}")


@nodes.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let new bookings back, as `uncordon` does.")
@config_option
def cordon(node: str, undo: bool, config: Path | None) -> None:
    """Keep new bookings off a node, named by id or host; those it has stay."""
    _change(
        node,
        config,
        lambda stub: stub.CordonNode,
        lambda identifier: pb.CordonNodeRequest(node_id=identifier, cordoned=not undo),
    )


@nodes.command()
@click.argument("node")
@config_option
def uncordon(node: str, config: Path | None) -> None:
    """Let new bookings back onto a node that was cordoned or drained."""
    _change(
        node,
        config,
        lambda stub: stub.CordonNode,
        lambda identifier: pb.CordonNodeRequest(node_id=identifier),
    )


@nodes.command()
@click.argument("node")
@config_option
def drain(node: str, config: Path | None) -> None:
    """Cordon a node, and let what has not started there move to others."""
    _change(
        node,
        config,
        lambda stub: stub.DrainNode,
        lambda identifier: pb.DrainNodeRequest(node_id=identifier),
    )


@nodes.command()
@click.argument("node")
@config_option
def trust(node: str, config: Path | None) -> None:
    """Give a node its trust back."""
    _change(
        node,
        config,
        lambda stub: stub.TrustNode,
        lambda identifier: pb.TrustNodeRequest(node_id=identifier, trusted=True),
    )


@nodes.command()
@click.argument("node")
@config_option
def distrust(node: str, config: Path | None) -> None:
    """Take a node's trust away: no new bookings, while it stays connected."""
    _change(
        node,
        config,
        lambda stub: stub.TrustNode,
        lambda identifier: pb.TrustNodeRequest(node_id=identifier),
    )


@nodes.command()
@click.argument("node")
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
@config_option
def label(node: str, labels: tuple[str, ...], config: Path | None) -> None:
    """Set labels with KEY=VALUE, and remove them with KEY-."""
    given: dict[str, str] = {}
    removed: list[str] = []
    for text in labels:
        key, equals, value = text.partition("=")
        if equals:
            given[key] = value
        elif text.endswith("-"):
            removed.append(text[:-1])
        else:
            raise click.UsageError(f"{text} is neither KEY=VALUE nor KEY-")
    _change(
        node,
        config,
        lambda stub: stub.LabelNode,
        lambda identifier: pb.LabelNodeRequest(node_id=identifier, set=given, remove=removed),
    )


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


@nodes.command()
@click.argument("node")
@config_option
def remove(node: str, config: Path | None) -> None:
    """Take a node without bookings out for good, and revoke its certificates."""
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.RemoveNodeRequest(node_id=node_id(connection, node))
        connection.call(stub.RemoveNode, request)
    click.echo(f"{request.node_id}  removed")

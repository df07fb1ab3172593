"""``better-compute nodes``: the hosts of your pools; administrators take them in and out."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import Message

from bcd.cli.better_compute.completion import complete_pools
from bcd.cli.better_compute.connection import (
    change_options,
    client_options,
    connected,
)
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import node_argument, node_id, pool_id
from bcd.cli.better_compute.show import answer, moment, print_json, short_moment
from bcd.cli.better_compute.tables import print_fields, print_table
from bcd.model.printable import counted
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub


@click.group(cls=Listing)
@click.option(
    "--pool",
    shell_complete=complete_pools,
    metavar="POOL",
    help="Only the nodes of this pool, by name or id.",
)
@client_options
@click.pass_context
def nodes(
    context: click.Context, pool: str | None, tenant: str | None, output: str, config: Path | None
) -> None:
    """List the nodes of your pools; show, cordon, drain, label one."""
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
        ("HOST", "STATE", "FREE", "MODEL", "ID"),
        (_row(node) for node in found),
    )


def _row(node: pb.Node) -> tuple[str, ...]:
    models = sorted({device.model.removeprefix("NVIDIA ") for device in node.devices})
    state = _state(node)
    if state in ("away", "unreachable"):
        state += f" since {short_moment(node.last_seen)}"
    return (node.hostname, state, _free(node), ", ".join(models), node.id)


def _free(node: pb.Node) -> str:
    """``3/8 gpu``: of each class, what a new reservation could have now, and how much there is."""
    whole, free = Counter[str](), Counter[str]()
    held = {device.id for device in node.devices if device.held or device.reservation_id}
    shared = {name.rpartition("::")[0] for name in held}  # GPUs of which somebody has a slot
    for device in node.devices:
        name = getattr(device, "class")
        whole[name] += 1
        taken = device.id in held | shared or device.id.rpartition("::")[0] in held
        healthy = device.health == "healthy" and device.bookable
        free[name] += node.schedulable and healthy and not taken
    return ", ".join(f"{free[name]}/{whole[name]} {name}" for name in sorted(whole))


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
@node_argument
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
        ("DEVICE", "CLASS", "HEALTH", "HELD BY"),
        (
            (
                device.id,
                f"{getattr(device, 'class')} {device.profile}".rstrip(),
                device.health,
                device.reservation_id or ("somebody" if device.held else ""),
            )
            for device in found.devices
        ),
    )


def _change(
    node: str,
    output: str,
    config: Path | None,
    call: Callable[[NodesServiceStub], Callable[..., Any]],
    request: Callable[[str], Message],
) -> None:
    """One call that changes a node and answers with it."""
    with connected(config) as connection:
        identifier = node_id(connection, node)
        stub = NodesServiceStub(connection.channel)
        changed = connection.call(call(stub), request(identifier)).node
    answer(changed, output, f"{changed.id}  {_state(changed)}")


@nodes.command()
@node_argument
@change_options
def cordon(node: str, output: str, config: Path | None) -> None:
    """Keep new bookings off a node; those it has stay."""
    _change(
        node,
        output,
        config,
        lambda stub: stub.CordonNode,
        lambda identifier: pb.CordonNodeRequest(node_id=identifier, cordoned=True),
    )


@nodes.command()
@node_argument
@change_options
def uncordon(node: str, output: str, config: Path | None) -> None:
    """Let new bookings back onto a node that was cordoned or drained."""
    _change(
        node,
        output,
        config,
        lambda stub: stub.CordonNode,
        lambda identifier: pb.CordonNodeRequest(node_id=identifier),
    )


@nodes.command()
@node_argument
@change_options
def drain(node: str, output: str, config: Path | None) -> None:
    """Cordon a node, and let what has not started move away."""
    _change(
        node,
        output,
        config,
        lambda stub: stub.DrainNode,
        lambda identifier: pb.DrainNodeRequest(node_id=identifier),
    )


@nodes.command()
@node_argument
@change_options
def trust(node: str, output: str, config: Path | None) -> None:
    """Give a node its trust back."""
    _change(
        node,
        output,
        config,
        lambda stub: stub.TrustNode,
        lambda identifier: pb.TrustNodeRequest(node_id=identifier, trusted=True),
    )


@nodes.command()
@node_argument
@change_options
def distrust(node: str, output: str, config: Path | None) -> None:
    """Take a node's trust away: no new bookings from now on.

    It stays connected, and what it has stays.
    """
    _change(
        node,
        output,
        config,
        lambda stub: stub.TrustNode,
        lambda identifier: pb.TrustNodeRequest(node_id=identifier),
    )


@nodes.command()
@node_argument
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
@change_options
def label(node: str, labels: tuple[str, ...], output: str, config: Path | None) -> None:
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
        output,
        config,
        lambda stub: stub.LabelNode,
        lambda identifier: pb.LabelNodeRequest(node_id=identifier, set=given, remove=removed),
    )


@nodes.command()
@node_argument
@change_options
def revoke(node: str, output: str, config: Path | None) -> None:
    """Revoke a node's certificates: it must join again.

    With a token of better-compute token join --node ID.
    """
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.RevokeNodeRequest(node_id=node_id(connection, node))
        revoked = connection.call(stub.RevokeNode, request)
    ended = counted(revoked.certificates, "certificate")
    answer(revoked, output, f"{request.node_id}  revoked ({ended})")


@nodes.command()
@node_argument
@change_options
def remove(node: str, output: str, config: Path | None) -> None:
    """Take a node without bookings out for good.

    Its certificates are revoked.
    """
    with connected(config) as connection:
        stub = NodesServiceStub(connection.channel)
        request = pb.RemoveNodeRequest(node_id=node_id(connection, node))
        connection.call(stub.RemoveNode, request)
    answer(request, output, f"{request.node_id}  removed")

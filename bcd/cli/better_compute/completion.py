"""What a shell completes beside verbs and options: reservations, pools and nodes, from the API.

    eval "$(_BETTER_COMPUTE_COMPLETE=bash_source better-compute)"

A completion says nothing where it finds nothing: words would land in the line being typed.
"""

from collections.abc import Callable, Iterator

import click
from click.shell_completion import CompletionItem

from bcd.cli.better_compute.connection import ClientSettings, Connection, find_configuration
from bcd.cli.program import load_settings
from bcd.model.errors import BcdError
from bcd.wire.compute.v1 import admin_pb2 as admin
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub, PoolsServiceStub
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub

_PATIENCE_S = 2.0
_NEWEST = 50
_ENDED = frozenset({"denied", "released", "failed", "cancelled", "expired"})


def complete_reservations(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Your reservations that have not ended, each with its state."""

    def found(connection: Connection, tenant: str) -> Iterator[tuple[str, str]]:
        stub = ReservationsServiceStub(connection.channel)
        request = pb.ListReservationsRequest(tenant_id=tenant, limit=_NEWEST)
        page = connection.call(stub.ListReservations, request, _PATIENCE_S)
        yield from ((r.id, r.state) for r in page.reservations if r.state not in _ENDED)

    return _items(context, begun, found)


def complete_pools(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The pools of your tenant, and those offered to it, by name."""

    def found(connection: Connection, tenant: str) -> Iterator[tuple[str, str]]:
        stub = PoolsServiceStub(connection.channel)
        request = admin.ListPoolsRequest(tenant_id=tenant)
        page = connection.call(stub.ListPools, request, _PATIENCE_S)
        yield from ((pool.name, pool.region) for pool in page.pools)

    return _items(context, begun, found)


def complete_nodes(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The nodes of your tenant's pools, by host."""

    def found(connection: Connection, tenant: str) -> Iterator[tuple[str, str]]:
        stub = NodesServiceStub(connection.channel)
        request = admin.ListNodesRequest(tenant_id=tenant)
        page = connection.call(stub.ListNodes, request, _PATIENCE_S)
        yield from ((node.hostname, node.id) for node in page.nodes)

    return _items(context, begun, found)


def _items(
    context: click.Context,
    begun: str,
    found: Callable[[Connection, str], Iterator[tuple[str, str]]],
) -> list[CompletionItem]:
    """Those of what the API knows that begin so; none where it does not answer in time."""
    try:
        configuration = find_configuration(context.params.get("config"))
        connection = Connection(load_settings(configuration, ClientSettings))
        with connection.channel:
            tenant = connection.tenant(context.params.get("tenant"))
            return [
                CompletionItem(value, help=words)
                for value, words in found(connection, tenant)
                if value.startswith(begun)
            ]
    except BcdError:
        return []

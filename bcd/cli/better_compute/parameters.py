"""Parameters that several verbs take: durations, moments with a zone, pools and nodes by name."""

import time
from typing import Any

import click

from bcd.cli.better_compute.connection import Connection
from bcd.cli.better_compute.moments import parse_moment_ms
from bcd.cli.better_compute.paging import every
from bcd.model.errors import BadConfiguration, InvalidInput
from bcd.model.ids import is_type_id
from bcd.model.units import parse_duration_ms
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub, PoolsServiceStub


class Duration(click.ParamType[int]):
    """A duration in milliseconds; people must give a unit, because a bare 8 would be 8 ms."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse ``8h``, ``90m``, ``1d12h``; ``0`` where not waiting at all makes sense."""
        if isinstance(value, int):
            return value
        text = str(value)
        if self._zero and text.strip("0") in ("", "s", "m", "h", "ms"):
            return 0
        if text.isdigit():
            self.fail(f"{text} has no unit; write 8h, 90m or 1d12h", param, ctx)
        try:
            return parse_duration_ms(text)
        except InvalidInput as error:
            self.fail(error.rule.replace(" or milliseconds", ""), param, ctx)


class Moment(click.ParamType[int]):
    """A moment in epoch milliseconds; with ``ahead`` also ``+12h``, counted from now."""

    name = "moment"

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a local time with a zone's name, or RFC 3339 with an offset."""
        if isinstance(value, int):
            return value
        text = str(value)
        if self._ahead and text.startswith("+"):
            ahead_ms = Duration().convert(text.removeprefix("+"), param, ctx)
            return time.time_ns() // 1_000_000 + ahead_ms
        try:
            return parse_moment_ms(text)
        except InvalidInput as error:
            self.fail(error.rule, param, ctx)


def pool_id(connection: Connection, tenant: str, given: str | None) -> str:
    """The id of a pool given by id or name, of the configured one, or of the only one there is.

    Raises BadConfiguration listing the tenant's pools when that names none.
    """
    wanted = given or connection.settings.pool
    if is_type_id("pool", wanted):
        return wanted
    request = pb.ListPoolsRequest(tenant_id=tenant)
    stub = PoolsServiceStub(connection.channel)
    found: list[pb.Pool] = every(connection, stub.ListPools, request, "pools")
    named = [pool for pool in found if pool.name == wanted or not wanted]
    own = [pool for pool in named if pool.tenant_id == tenant]
    if len(named) == 1 or len(own) == 1:
        return (named if len(named) == 1 else own)[0].id
    names = ", ".join(pool.name for pool in found) or "none"
    whose = tenant or "everybody"
    if wanted and named:
        raise BadConfiguration(
            f"{len(named)} pools are called {wanted}; name one by its id:"
            " better-compute pools lists them"
        )
    if wanted:
        raise BadConfiguration(f"there is no pool {wanted}; {whose} has: {names}")
    raise BadConfiguration(f"no pool: name one with --pool; {whose} has: {names}")


def node_id(connection: Connection, given: str, tenant: str | None = None) -> str:
    """The id of a node given by id, or by the host name of one node in the tenant's pools.

    An administrator whose configuration names no tenant finds every pool's.

    Raises BadConfiguration when the name is no single node's.
    """
    if is_type_id("node", given):
        return given
    request = pb.ListNodesRequest(tenant_id=tenant or connection.settings.tenant)
    stub = NodesServiceStub(connection.channel)
    found: list[pb.Node] = every(connection, stub.ListNodes, request, "nodes")
    named = [node.id for node in found if node.hostname == given]
    if len(named) == 1:
        return named[0]
    raise BadConfiguration(
        f"{len(named) or 'no'} nodes are called {given}; name one by its id:"
        " better-compute nodes lists them"
    )

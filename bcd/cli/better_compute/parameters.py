"""Parameters that several verbs take: durations, moments with a zone, things by name or id."""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from bcd.cli.better_compute.completion import (
    complete_nodes,
    complete_pools,
    complete_reservations,
)
from bcd.cli.better_compute.connection import Connection
from bcd.cli.better_compute.moments import parse_moment_ms
from bcd.cli.better_compute.paging import every
from bcd.model.errors import BadConfiguration, InvalidInput
from bcd.model.ids import is_reservation_id, is_type_id
from bcd.model.units import parse_duration_ms
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2 as reservations_pb
from bcd.wire.compute.v1.admin_pb2_grpc import NodesServiceStub, PoolsServiceStub
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub

F = TypeVar("F", bound=Callable[..., Any])

_BEGINNING = re.compile(r"rsv_[a-z2-7]{4,51}")
_PAGES = 10
_LIKE_A_DURATION = re.compile(r"-?[0-9]+(?:ms|[wdhms])", re.ASCII)


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
        if self._ahead and _LIKE_A_DURATION.match(text):
            self.fail(f"{text} is no moment; moments ahead are written +2h", param, ctx)
        try:
            return parse_moment_ms(text)
        except InvalidInput as error:
            self.fail(error.rule, param, ctx)


def reservation_argument(function: F) -> F:
    """``RESERVATION``: an id, or how it begins; a shell completes it."""
    return click.argument("reservation", shell_complete=complete_reservations)(function)


def pool_argument(function: F) -> F:
    """``POOL``: a name or an id; a shell completes it."""
    return click.argument("pool", shell_complete=complete_pools)(function)


def node_argument(function: F) -> F:
    """``NODE``: a host's name or an id; a shell completes it."""
    return click.argument("node", shell_complete=complete_nodes)(function)


def reservation_id(connection: Connection, tenant: str, given: str) -> str:
    """The id of the one reservation whose id begins so, among the tenant's newest.

    Raises BadConfiguration when that is none or several.
    """
    if is_reservation_id(given) or not given.startswith("rsv_"):
        return given
    found = _that_begin(connection, tenant, given) if _BEGINNING.fullmatch(given) else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise BadConfiguration(
            f"there is no reservation {given}; better-compute list --all shows the ids; their first"
            " 8 characters or more will do"
        )
    raise BadConfiguration(
        f"{len(found)} reservations have ids that begin with {given};"
        " better-compute list --all shows them, and with -o json in full"
    )


def _that_begin(connection: Connection, tenant: str, begun: str) -> list[str]:
    """The ids that begin so among the tenant's newest."""
    stub = ReservationsServiceStub(connection.channel)
    request = reservations_pb.ListReservationsRequest(tenant_id=tenant, scope="all", limit=200)
    found: list[str] = []
    for _ in range(_PAGES):
        page = connection.call(stub.ListReservations, request)
        found += [entry.id for entry in page.reservations if entry.id.startswith(begun)]
        if not page.next_cursor:
            break
        request.cursor = page.next_cursor
    return found


def owned_pool_id(connection: Connection, given: str | None, tenant: str | None = None) -> str:
    """As ``pool_id``, for what only administrators do: ``TENANT/NAME`` is that tenant's own pool.

    Raises BadConfiguration as ``pool_id`` does, saying that too.
    """
    owner, _, name = (given or "").partition("/")
    if owner and name:
        for pool in _pools(connection, owner):
            if (pool.tenant_id, pool.name) == (owner, name):
                return pool.id
    acting = tenant or connection.settings.tenant
    return pool_id(connection, acting, given, "; another tenant's is named TENANT/NAME")


def pool_id(connection: Connection, tenant: str, given: str | None, elsewhere: str = "") -> str:
    """The id of a pool given by id or name, of the configured one, or of the only one there is.

    Raises BadConfiguration listing the tenant's pools when that names none; ``elsewhere`` says how
    others' are named.
    """
    wanted = given or connection.settings.pool
    if is_type_id("pool", wanted):
        return wanted
    found = _pools(connection, tenant)
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
        raise BadConfiguration(f"there is no pool {wanted}; {whose} has: {names}{elsewhere}")
    raise BadConfiguration(f"no pool: name one with --pool; {whose} has: {names}")


def _pools(connection: Connection, tenant: str) -> list[pb.Pool]:
    """All pools that a tenant may book in; every tenant's for none."""
    stub = PoolsServiceStub(connection.channel)
    return every(connection, stub.ListPools, pb.ListPoolsRequest(tenant_id=tenant), "pools")


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

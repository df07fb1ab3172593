"""``better-compute calendar``: when each device of a pool is taken."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from bcd.cli.better_compute.connection import Connection, client_options, connected
from bcd.cli.better_compute.parameters import Duration, Moment, node_id, pool_id
from bcd.cli.better_compute.show import moment, print_json
from bcd.cli.better_compute.tables import print_table
from bcd.model.units import DAY_MS, format_duration
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1.capacity_pb2_grpc import CapacityServiceStub
from bcd.wire.compute.v1.reservations_pb2 import Window

# With a short host name and device a bar fits a terminal of 80 columns.
_CELLS = 48
_UUID = re.compile(r"^(GPU|MIG)-([0-9a-f]{8})-[0-9a-f-]{27}")
_FREE, _MINE, _OTHERS, _MAINTENANCE = ".", "#", "x", "m"
_LEGEND = f"{_MINE} yours, {_OTHERS} held by others, {_MAINTENANCE} maintenance, {_FREE} free"


@click.command()
@click.argument("pool", required=False)
@click.option(
    "--from",
    "start",
    type=Moment(ahead=True),
    help='Where it begins: "2026-12-07 09:00 Europe/Berlin", +2d; now where not given.',
)
@click.option(
    "--for", "duration", type=Duration(), default="7d", show_default=True, help="At most 92d."
)
@click.option("--node", metavar="NODE", help="Only this node, by id or host.")
@client_options
def calendar(
    pool: str | None,
    start: int | None,
    duration: int,
    node: str | None,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Show when each device of POOL, named by name or id, is taken.

    A cell stands for a stretch of time; it is free only if all of it is. The gap that a pool keeps
    free behind every booking counts as taken.
    """
    with connected(config) as connection:
        acting = tenant or connection.settings.tenant
        request = pb.GetCalendarRequest(
            tenant_id=acting,
            pool_id=pool_id(connection, acting, pool),
            start=start,
            node_id=node_id(connection, node, acting) if node else "",
        )
        window, found = whole_calendar(connection, request, duration)
    if output == "json":
        print_json(found)
        return
    click.echo(f"{moment(window.start)} to {moment(window.end)}; {_LEGEND}", err=True)
    print_table(
        ("NODE", "DEVICE", "CLASS", f"A CELL IS {format_duration(duration // _CELLS or 1)}"),
        (
            (
                one.hostname or one.id,
                _UUID.sub(r"\1-\2", device.id),
                getattr(device, "class"),
                _bar(device, window),
            )
            for one in found
            for device in one.devices
        ),
    )


def whole_calendar(
    connection: Connection, request: pb.GetCalendarRequest, duration_ms: int = DAY_MS
) -> tuple[Window, Sequence[pb.CalendarNode]]:
    """The window, from the request's start or now on, and every node with all that is taken.

    Pages are followed, and what an answer had no room for is asked for.
    """
    stub = CapacityServiceStub(connection.channel)
    found: list[pb.CalendarNode] = []
    window = Window(start=request.start, end=request.start + duration_ms)
    if request.HasField("start"):
        request.end = window.end
    while True:
        page = connection.call(stub.GetCalendar, request)
        if not request.HasField("end"):  # the server's clock says what is now
            request.start, request.end = page.window.start, page.window.start + duration_ms
            window = Window(start=request.start, end=request.end)
            continue
        for node in page.nodes:
            while node.HasField("told_until"):
                _add_rest(connection, request, node)
            found.append(node)
        if page.next_cursor in ("", request.cursor):
            return window, found
        request.cursor = page.next_cursor


def _add_rest(
    connection: Connection, request: pb.GetCalendarRequest, node: pb.CalendarNode
) -> None:
    """Ask for what the answer on a node had no room for: what starts behind where it ends."""
    stub = CapacityServiceStub(connection.channel)
    behind = pb.GetCalendarRequest(
        tenant_id=request.tenant_id,
        pool_id=request.pool_id,
        node_id=node.id,
        start=node.told_until,
        end=request.end,
    )
    node.ClearField("told_until")
    for more in connection.call(stub.GetCalendar, behind).nodes:
        devices = {device.id: device for device in node.devices}
        for device in more.devices:
            known = devices.get(device.id)
            if known is not None:
                known.taken.extend(one for one in device.taken if one.start >= behind.start)
        node.amounts.extend(more.amounts)
        if more.HasField("told_until"):
            node.told_until = more.told_until


def _bar(device: pb.CalendarDevice, window: Window) -> str:
    if not device.bookable and not device.taken:
        return "cannot be booked"
    cells = [_FREE] * _CELLS
    length = window.end - window.start
    for one in _least_first(device.taken):
        first = max(one.start - window.start, 0) * _CELLS // length
        last = (min(one.end, window.end) - window.start - 1) * _CELLS // length
        for place in range(first, last + 1):
            cells[place] = _mark(one)
    return "".join(cells)


def _least_first(taken: Iterable[pb.Taken]) -> Sequence[pb.Taken]:
    """One's own last: it shows where several share a cell."""
    order = (_MAINTENANCE, _OTHERS, _MINE)
    return sorted(taken, key=lambda one: order.index(_mark(one)))


def _mark(one: pb.Taken) -> str:
    if one.kind == "maintenance":
        return _MAINTENANCE
    return _MINE if one.reservation_id else _OTHERS

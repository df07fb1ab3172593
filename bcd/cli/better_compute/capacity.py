"""``better-compute capacity``: what a pool has free now, and whether a request would fit."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bcd.cli.better_compute.calendar import whole_calendar
from bcd.cli.better_compute.connection import Connection, client_options, connected
from bcd.cli.better_compute.parameters import pool_id
from bcd.cli.better_compute.request_options import request_of, request_options
from bcd.cli.better_compute.show import (
    host_words,
    lasting,
    moment,
    print_document,
    print_json,
)
from bcd.cli.better_compute.tables import print_fields, print_table
from bcd.model.units import DAY_MS
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1.capacity_pb2_grpc import CapacityServiceStub
from bcd.wire.compute.v1.reservations_pb2 import CreateReservationRequest, Resources
from bcd.wire.document import from_document, to_document

_PENDING = 3
_YEARS_MS = 9 * 365 * DAY_MS
# What of a create a preview does not take: placement does not depend on it.
_NOT_PREVIEWED = ("leaseSeconds", "labels", "wait", "dryRun", "idempotencyKey")
Kind = tuple[str, str, str]


@click.command()
@click.argument("pool", required=False)
@click.option("--preview", is_flag=True, help="Say whether this would fit, where, and when.")
@request_options
@client_options
def capacity(
    pool: str | None,
    preview: bool,
    file: Any,
    tenant: str | None,
    output: str,
    config: Path | None,
    **options: Any,
) -> None:
    """Show what POOL, named by name or id, has free now.

    With --preview and the options of reserve it says what reserve would be given, and books
    nothing: policy and quota are not asked, that is what reserve --dry-run does. Exits with 3 when
    it does not fit now.
    """
    if not preview and any(_is_given(value) for value in (file, *options.values())):
        raise click.UsageError("what to reserve goes with --preview")
    wanted = request_of(file, options) if preview else CreateReservationRequest()
    with connected(config) as connection:
        wanted.tenant_id = tenant or wanted.tenant_id or connection.settings.tenant
        wanted.pool_id = pool_id(connection, wanted.tenant_id, pool or wanted.pool_id)
        if preview:
            answer = _preview(connection, wanted)
        else:
            now_ms, nodes = _now(connection, wanted)
    if not preview:
        _show_free(nodes, now_ms, output)
        return
    if output == "json":
        print_json(answer)
    else:
        print_fields(_told(answer))
    raise SystemExit(0 if answer.fits else _PENDING)


def _is_given(value: object) -> bool:
    """Whether an option was given; 0 is a value too."""
    return value is not None and value is not False and value != ()


def _preview(
    connection: Connection, wanted: CreateReservationRequest
) -> pb.PreviewCapacityResponse:
    document = to_document(wanted)
    for name in _NOT_PREVIEWED:
        document.pop(name, None)
    request = from_document(document, pb.PreviewCapacityRequest)
    return connection.call(CapacityServiceStub(connection.channel).PreviewCapacity, request)


def _told(answer: pb.PreviewCapacityResponse) -> list[tuple[str, str]]:
    """A preview for people."""
    lines = [("fits", "yes" if answer.fits else "no")]
    lines += [("node", node) for node in answer.node_ids]
    if answer.fits:
        lines.append(("from", moment(answer.window.start)))
        lines.append(("to", moment(answer.window.end)))
    else:
        lines.append(("why", answer.reason))
        known = answer.HasField("earliest_start")
        # Up to the second: with the one before it would not fit yet.
        earliest = moment(-(-answer.earliest_start // 1000) * 1000)
        lines.append(("earliest", earliest if known else "no known time"))
    if answer.displaced:
        lines.append(("yielding", f"{answer.displaced} spot reservations"))
    if answer.longest_free_ms:
        years = answer.longest_free_ms > _YEARS_MS
        longest = "years" if years else lasting(answer.longest_free_ms)
        lines.append(("longest", f"{longest}, on the nodes that are free longest"))
    if host_words(answer.resources):
        lines.append(("host", host_words(answer.resources)))
    return lines


def _now(
    connection: Connection, wanted: CreateReservationRequest
) -> tuple[int, Sequence[pb.CalendarNode]]:
    """The server's time, and the nodes with what is taken."""
    request = pb.GetCalendarRequest(tenant_id=wanted.tenant_id, pool_id=wanted.pool_id)
    window, nodes = whole_calendar(connection, request, 1)
    return window.start, nodes


def _show_free(nodes: Sequence[pb.CalendarNode], now_ms: int, output: str) -> None:
    """Devices that could be booked at all, by kind, and node by node."""
    free, whole = _counted(nodes, now_ms)
    if output == "json":
        print_document(
            {
                "devices": [
                    dict(zip(("class", "model", "profile"), kind, strict=True))
                    | {"devices": whole[kind], "free": free[kind]}
                    for kind in sorted(whole)
                ],
                "nodes": [_document(node, now_ms) for node in nodes],
            }
        )
        return
    print_table(
        ("CLASS", "MODEL", "PROFILE", "DEVICES", "FREE"),
        ((*kind, str(whole[kind]), str(free[kind])) for kind in sorted(whole)),
    )
    click.echo()
    print_table(
        ("NODE", "HOST", "DEVICES FREE", "HOST FREE"),
        (
            (
                node.id,
                node.hostname,
                _words(node, now_ms) if node.schedulable else "takes no new bookings",
                host_words(_host_free(node, now_ms)) if node.schedulable else "",
            )
            for node in nodes
        ),
    )


def _counted(nodes: Sequence[pb.CalendarNode], now_ms: int) -> tuple[Counter[Kind], Counter[Kind]]:
    """Free devices by kind, and all that could be booked, of the nodes that take bookings."""
    free, whole = Counter[Kind](), Counter[Kind]()
    for node in nodes:
        for device in node.devices if node.schedulable else ():
            kind = (getattr(device, "class"), device.model, device.profile)
            whole[kind] += device.bookable
            free[kind] += device.bookable and _is_free(device, now_ms)
    return +free, +whole


def _is_free(device: pb.CalendarDevice, now_ms: int) -> bool:
    return not any(one.start <= now_ms < one.end for one in device.taken)


def _host_free(node: pb.CalendarNode, now_ms: int) -> Resources:
    taken = Resources()
    for one in node.amounts:
        if one.start <= now_ms < one.end:
            taken = one.resources
    return Resources(
        vcpu=max(node.host.vcpu - taken.vcpu, 0),
        memory_gib=max(node.host.memory_gib - taken.memory_gib, 0),
        hugepages_1gi=max(node.host.hugepages_1gi - taken.hugepages_1gi, 0),
    )


def _by_class(node: pb.CalendarNode, now_ms: int) -> list[tuple[str, int, int]]:
    """(class, free, all that could be booked)."""
    free, whole = Counter[str](), Counter[str]()
    for device in node.devices:
        name = getattr(device, "class")
        whole[name] += device.bookable
        free[name] += device.bookable and _is_free(device, now_ms)
    return [(name, free[name], whole[name]) for name in sorted(+whole)]


def _words(node: pb.CalendarNode, now_ms: int) -> str:
    return ", ".join(f"{free} of {whole} {name}" for name, free, whole in _by_class(node, now_ms))


def _document(node: pb.CalendarNode, now_ms: int) -> dict[str, object]:
    return {
        "id": node.id,
        "hostname": node.hostname,
        "schedulable": node.schedulable,
        "devices": [
            {"class": name, "devices": whole, "free": free}
            for name, free, whole in _by_class(node, now_ms)
        ],
        "hostFree": to_document(_host_free(node, now_ms)),
    }

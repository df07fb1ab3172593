"""Prints answers: tables for people, JSON for programs. Data on stdout, words on stderr."""

import datetime
import sys
from collections.abc import Iterable, Sequence

import click
import msgspec
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bcd.model.printable import printable
from bcd.model.units import format_duration, parse_duration_ms
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.document import to_document

_WIDE = 200
_MAX_TEXT = 4096


def print_json(messages: Sequence[Message] | Message) -> None:
    """One JSON document: an object, or an array of them."""
    document = (
        to_document(messages, defaults=True)
        if isinstance(messages, Message)
        else [to_document(message, defaults=True) for message in messages]
    )
    print_document(document)


def print_document(document: object) -> None:
    """A JSON document that is no message."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table; NO_COLOR and redirection are honoured."""
    console = Console(
        width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False, emoji=False
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell, _MAX_TEXT)) for cell in row))
    console.print(table)


def moment(epoch_ms: int) -> str:
    """A time of day in the local zone, with the zone's name; empty for none."""
    if not epoch_ms:
        return ""
    local = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %Z")


def devices_asked(request: pb.ReservationRequest) -> str:
    """``4 gpu nvlink-all`` and so on."""
    return ", ".join(
        " ".join(
            word
            for word in (
                str(ask.count),
                getattr(ask, "class"),
                ask.model,
                ask.profile,
                "" if ask.topology == "any" else ask.topology,
            )
            if word
        )
        for ask in request.devices
    )


def host_booked(reservation: pb.Reservation) -> str:
    """What is booked of each host, in words.

    A request for less than the share that rides on the devices is raised to it.
    """
    asked, share = reservation.request.resources, reservation.host_share
    return host_words(
        pb.Resources(
            vcpu=max(asked.vcpu, share.vcpu),
            memory_gib=max(asked.memory_gib, share.memory_gib),
            hugepages_1gi=max(asked.hugepages_1gi, share.hugepages_1gi),
        )
    )


def host_words(amounts: pb.Resources) -> str:
    """``15 CPUs, 255 GiB, 2 huge pages of 1 GiB``; empty for nothing."""
    cpus, memory, pages = amounts.vcpu, amounts.memory_gib, amounts.hugepages_1gi
    words = [f"{cpus} CPU{'' if cpus == 1 else 's'}"] if cpus else []
    words += [f"{memory} GiB"] if memory else []
    words += [f"{pages} huge page{'' if pages == 1 else 's'} of 1 GiB"] if pages else []
    return ", ".join(words)


def print_reservation(reservation: pb.Reservation) -> None:
    """One reservation in full, for people."""
    lines = [("reservation", reservation.id)] if reservation.id else []
    lines += [
        ("state", reservation.state),
        ("pool", reservation.pool_id),
        ("devices", devices_asked(reservation.request)),
    ]
    if host_booked(reservation):
        lines.append(("host", host_booked(reservation)))
    if reservation.request.binding not in ("", "hold"):
        lines.append(("binding", reservation.request.binding))
    lines += _terms(reservation)
    if not reservation.HasField("during"):
        lines.append(("for", format_duration(parse_duration_ms(reservation.request.duration))))
    else:
        during = reservation.during
        lines.append(("from", moment(during.start)))
        lines.append(("to", f"{moment(during.end)} ({format_duration(during.end - during.start)})"))
    for binding in reservation.bindings:
        lines.append(("node", binding.node_id))
        lines += [("device", name) for name in binding.cdi_devices]
        lines.append(("env file", binding.env_file))
        if binding.cgroup_parent:
            lines.append(("slice", binding.cgroup_parent))
    for condition in reservation.conditions:
        lines.append((condition.type, f"{condition.reason}: {condition.message}"))
    print_fields(lines)


def print_fields(lines: Sequence[tuple[str, str]]) -> None:
    """Names and values of one thing, a line each."""
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {printable(value, _MAX_TEXT)}")


def _length_ms(reservation: pb.Reservation) -> int:
    """The window's, which an extension made longer; what was asked for where there is none."""
    during = reservation.during
    return (during.end - during.start) or parse_duration_ms(reservation.request.duration)


def _terms(reservation: pb.Reservation) -> list[tuple[str, str]]:
    """What was asked for beside devices and duration."""
    request = reservation.request
    lines: list[tuple[str, str]] = []
    if request.HasField("gang"):
        lines.append(("gang", f"{request.gang.size} nodes"))
    if request.spot:
        lines.append(("spot", "yields to others"))
    if request.HasField("start") and not reservation.HasField("during"):
        lines.append(("at", moment(request.start)))
    if reservation.HasField("lease_until"):
        lines.append(("lease until", moment(reservation.lease_until)))
    return lines


def print_reservations(reservations: Sequence[pb.Reservation], *, owners: bool) -> None:
    """A list of reservations, for people; with whose they are where that is not one's own."""
    columns = ("ID", "STATE", "DEVICES", "FOR", "FROM", "TO")
    print_table(
        (*columns, "OWNER") if owners else columns,
        (
            (
                reservation.id,
                reservation.state,
                devices_asked(reservation.request),
                format_duration(_length_ms(reservation)),
                moment(reservation.during.start),
                moment(reservation.during.end),
                *((reservation.owner_identity_id,) if owners else ()),
            )
            for reservation in reservations
        ),
    )

"""Prints answers: tables for people, JSON for programs. Data on stdout, words on stderr."""

import datetime
from collections.abc import Sequence

import click
import msgspec
from google.protobuf.message import Message

from bcd.cli.better_compute.tables import print_fields, print_table
from bcd.model.printable import counted, printable
from bcd.model.reservation import TERMINAL, State
from bcd.model.units import HOUR_MS, MINUTE_MS, SECOND_MS, format_duration, parse_duration_ms
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.document import to_document

_MAX_TEXT = 4096
_TOLD_OF = TERMINAL - {State.DENIED}  # a denied one has no events


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


def answer(message: Message, output: str, words: str) -> None:
    """What a verb that changes something says: its answer as JSON, or one line of words."""
    print_json(message) if output == "json" else click.echo(printable(words, _MAX_TEXT))


def moment(epoch_ms: int) -> str:
    """A time of day in the local zone, with the zone's name; empty for none."""
    if not epoch_ms:
        return ""
    local = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %Z")


def short_moment(epoch_ms: int, after_ms: int | None = None, *, seconds: bool = False) -> str:
    """A time in the local zone to the minute, for lists; no date where that is ``after_ms``'s.

    The year stands there where it is another than that one's, or than this year.
    """
    local = datetime.datetime.fromtimestamp(epoch_ms / 1000)
    clock = "%H:%M:%S" if seconds else "%H:%M"
    before = datetime.datetime.now()
    if after_ms is not None:
        before = datetime.datetime.fromtimestamp(after_ms / 1000)
        if before.date() == local.date():
            return local.strftime(clock)
    day = "%b %d" if local.year == before.year else "%b %d %Y"
    return local.strftime(f"{day} {clock}")


def window(reservation: pb.Reservation) -> str:
    """``Nov 30 09:00 - 17:00 (8h)``, or for how long where there is no window yet."""
    request, during = reservation.request, reservation.during
    if not reservation.HasField("during"):
        start = f"{short_moment(request.start)} " if request.HasField("start") else ""
        return f"{start}for {lasting(parse_duration_ms(request.duration))}"
    end = short_moment(during.end, during.start)
    return f"{short_moment(during.start)} - {end} ({lasting(during.end - during.start)})"


def lasting(duration_ms: int) -> str:
    """How long something lasts; to the minute from an hour on, else to the second."""
    unit_ms = MINUTE_MS if duration_ms >= HOUR_MS else SECOND_MS
    if duration_ms < unit_ms:
        return format_duration(duration_ms)
    return format_duration(round(duration_ms / unit_ms) * unit_ms)


def devices_asked(request: pb.ReservationRequest) -> str:
    """``4 gpu nvlink-all`` and so on, of each node."""
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


def summary(request: pb.ReservationRequest) -> str:
    """What is asked for in one cell: ``8 gpu x 2 nodes, spot``."""
    gang = f" x {counted(request.gang.size, 'node')}" if request.HasField("gang") else ""
    return f"{devices_asked(request)}{gang}{', spot' if request.spot else ''}"


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
        each = " of each node" if reservation.request.HasField("gang") else ""
        lines.append(("host", f"{host_booked(reservation)}{each}"))
    if reservation.request.binding not in ("", "hold"):
        lines.append(("binding", reservation.request.binding))
    lines += _terms(reservation)
    if not reservation.HasField("during"):
        lines.append(("for", format_duration(parse_duration_ms(reservation.request.duration))))
    else:
        during = reservation.during
        lines.append(("from", moment(during.start)))
        lines.append(("to", f"{moment(during.end)} ({lasting(during.end - during.start)})"))
    if reservation.state in _TOLD_OF:
        lines.append(("ended", f"better-compute events {reservation.id} says when and why"))
    for binding in reservation.bindings:
        lines.append(("node", binding.node_id))
        lines += [("device", name) for name in binding.cdi_devices]
        lines.append(("env file", binding.env_file))
        if binding.cgroup_parent:
            lines.append(("slice", binding.cgroup_parent))
    for condition in reservation.conditions:
        lines.append((condition.type, f"{condition.reason}: {condition.message}"))
    print_fields(lines)


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
        early = reservation.lease_until <= reservation.during.start
        renewed = ", before the start: renew it, or it is released" if early else ""
        lines.append(("lease until", f"{moment(reservation.lease_until)}{renewed}"))
    lines += [("label", f"{key}={value}") for key, value in sorted(request.labels.items())]
    return lines


def print_reservations(reservations: Sequence[pb.Reservation], *, owners: bool) -> None:
    """A list of reservations, for people; with whose they are where that is not one's own."""
    print_table(
        ("ID", "STATE", "WINDOW", *(("OWNER",) if owners else ()), "DEVICES"),
        (
            (
                reservation.id,
                reservation.state,
                window(reservation),
                *((reservation.owner_identity_id,) if owners else ()),
                summary(reservation.request),
            )
            for reservation in reservations
        ),
    )

"""``better-compute watch`` and ``events``: what happens, and what happened."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from bcd.cli.better_compute.completion import complete_reservations
from bcd.cli.better_compute.connection import Connection, client_options, connected
from bcd.cli.better_compute.parameters import reservation_id
from bcd.cli.better_compute.show import moment, short_moment
from bcd.cli.better_compute.tables import print_table
from bcd.model.errors import BcdError, Reason
from bcd.model.printable import printable
from bcd.wire.compute.v1 import events_pb2 as pb
from bcd.wire.compute.v1.events_pb2_grpc import EventsServiceStub
from bcd.wire.document import to_document

F = TypeVar("F", bound=Callable[..., Any])

_PAGE = 200
_LONGEST_REST_S = 30.0
_MAX_LINE = 4096
_KINDS = {"rsv_": "reservation/", "node_": "node/"}


def _event_options(function: F) -> F:
    """What both verbs take beside tenant, output and configuration."""
    for decorate in (
        click.argument(
            "subject",
            required=False,
            metavar="[RESERVATION]",
            shell_complete=complete_reservations,
        ),
        click.option(
            "--type",
            "types",
            multiple=True,
            metavar="EVENT",
            help="Only these, such as placed; repeatable.",
        ),
        click.option(
            "--from",
            "cursor",
            default="",
            metavar="CURSOR",
            help="Go on behind this cursor; watch and events name one when they end.",
        ),
        click.option(
            "--all", "everything", is_flag=True, help="Every tenant's; for administrators."
        ),
    ):
        function = decorate(function)
    return function


@click.command()
@_event_options
@client_options
def watch(
    subject: str | None,
    types: tuple[str, ...],
    cursor: str,
    everything: bool,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Print events as they happen, until Ctrl-C.

    A lost connection is made again, and nothing is missed. At the end it says how to go on.
    """
    with connected(config) as connection:
        acting = "" if everything else connection.tenant(tenant)
        request = pb.WatchEventsRequest(
            tenant_id=acting,
            subject=subject_of(_whole(connection, acting, subject)),
            types=full_types(types),
            cursor=cursor,
        )
        try:
            for answer in _follow(connection, request):
                click.echo(_line(answer.event, answer.cursor, output))
        except KeyboardInterrupt:
            _go_on(request.cursor)
        except BcdError:
            if request.cursor != cursor:  # else it never began
                _go_on(request.cursor)
            raise


def _go_on(cursor: str) -> None:
    """Say how to see what follows; without a cursor nothing came yet."""
    if cursor:
        click.echo(f"to go on: better-compute watch --from {cursor}", err=True)


def _follow(
    connection: Connection, request: pb.WatchEventsRequest
) -> Iterator[pb.WatchEventsResponse]:
    """Answers with an event, over as many streams as it takes; raises what no retry heals."""
    stub = EventsServiceStub(connection.channel)
    failures, begun = 0, False
    while True:
        try:
            for answer in connection.stream(stub.WatchEvents, request):
                failures, begun = 0, True
                if answer.HasField("event"):
                    yield answer
                request.cursor = answer.cursor
        except BcdError as error:
            if not begun or error.reason is not Reason.UNAVAILABLE:
                raise
            if not failures:
                words = f"the connection was lost; going on behind {request.cursor}"
                click.echo(f"better-compute: {words}", err=True)
        failures += 1
        longest_s = min(_LONGEST_REST_S, 0.5 * 2 ** min(failures, 10))
        time.sleep(random.uniform(0.1, longest_s))  # noqa: S311 - spreads load, guards nothing


@click.command()
@_event_options
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    metavar="N",
    help="How many.",
)
@client_options
def events(
    subject: str | None,
    types: tuple[str, ...],
    cursor: str,
    everything: bool,
    limit: int,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """List events of the last 7 days, oldest first."""
    found: list[pb.Event] = []
    with connected(config) as connection:
        stub = EventsServiceStub(connection.channel)
        acting = "" if everything else connection.tenant(tenant)
        request = pb.ListEventsRequest(
            tenant_id=acting,
            subject=subject_of(_whole(connection, acting, subject)),
            types=full_types(types),
            cursor=cursor,
        )
        more = True
        while more and len(found) < limit:
            request.limit = min(_PAGE, limit - len(found))
            page = connection.call(stub.ListEvents, request)
            found += page.events
            request.cursor, more = page.next_cursor, page.more
    if output == "json":
        document = [event_document(event) for event in found]
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
    elif not found and subject:
        such = " such" if types or cursor else ""
        click.echo(f"there are no{such} events of {printable(subject)}", err=True)
    else:
        rows = (_row(event, short_moment(event.time, seconds=True)) for event in found)
        print_table(("TIME", "EVENT", "SUBJECT", "DETAILS"), rows)
    if more:
        click.echo(f"there may be more; go on with --from {request.cursor}", err=True)
    else:
        _go_on(request.cursor)


def _whole(connection: Connection, tenant: str, given: str | None) -> str | None:
    """The whole id of a reservation of a tenant's; anything else as it is."""
    return reservation_id(connection, tenant, given) if given and tenant else given


def subject_of(given: str | None) -> str:
    """The subject of an id; anything else is taken as it is."""
    text = given or ""
    return next((kind + text for prefix, kind in _KINDS.items() if text.startswith(prefix)), text)


def full_types(given: tuple[str, ...]) -> list[str]:
    """``placed`` means ``reservation.placed``."""
    return [name if "." in name else f"reservation.{name}" for name in given]


def event_document(event: pb.Event) -> dict[str, Any]:
    """The event for programs, its data as an object."""
    return to_document(event, defaults=True) | {"data": msgspec.json.decode(event.data)}


def _line(event: pb.Event, cursor: str, output: str) -> str:
    if output == "json":
        return msgspec.json.encode(event_document(event) | {"cursor": cursor}).decode()
    at, name, subject, details = _row(event, moment(event.time))
    return printable(f"{at}  {name:<16}  {subject}  {details}".rstrip(), _MAX_LINE)


def _row(event: pb.Event, at: str) -> tuple[str, str, str, str]:
    """Time, kind, the subject's id, and what the data says beside its state and pool."""
    data = msgspec.json.decode(event.data)
    details = [f"{key} {_plain(key, value)}" for key, value in data.items() if key not in _KNOWN]
    return (
        at,
        event.type.removeprefix("reservation."),
        event.subject.removeprefix("reservation/"),
        ", ".join(details),
    )


_KNOWN = frozenset({"state", "poolId"})
_MOMENTS = frozenset({"start", "end", "availableUntil", "until", "expiresAt"})


def _plain(key: str, value: object) -> str:
    if key in _MOMENTS and isinstance(value, int):
        return moment(value)
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value)

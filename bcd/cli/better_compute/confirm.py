"""``better-compute confirm``: what agents ask for in your name, and your answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.show import answer, moment, print_json, summary
from bcd.cli.better_compute.tables import print_table
from bcd.model.errors import BcdError, Reason
from bcd.model.printable import printable
from bcd.model.units import format_duration, parse_duration_ms
from bcd.wire.compute.v1 import confirmations_pb2 as pb
from bcd.wire.compute.v1.confirmations_pb2_grpc import ConfirmationsServiceStub

_PAGE = 200
_AWAITED = 3
_MAX_LINE = 4096


@contextmanager
def awaited(key: str, output: str) -> Iterator[None]:
    """An agent's command that a person must confirm first says so, and exits with 3.

    ``key`` is what asks again once they have; empty where nobody was asked.
    """
    try:
        yield
    except BcdError as error:
        if error.reason is not Reason.CONFIRMATION_REQUIRED:
            raise
        if output == "json":
            click.echo(msgspec.json.format(msgspec.json.encode(dict(error.details)), indent=2))
        click.echo(f"better-compute: {printable(error.message, _MAX_LINE)}", err=True)
        if key:
            click.echo(f"the key is --key {printable(key, _MAX_LINE)}", err=True)
        raise SystemExit(_AWAITED) from error


_all_option = click.option(
    "--all", "everything", is_flag=True, help="Also what was decided before."
)


@click.group(cls=Listing)
@_all_option
@client_options
@click.pass_context
def confirm(
    context: click.Context, everything: bool, tenant: str | None, output: str, config: Path | None
) -> None:
    """Say yes or no to what agents ask for in your name.

    Lists what waits where no verb is named.
    Needs your own token: an agent cannot confirm itself.
    """
    if not context.invoked_subcommand:
        _list(everything, tenant, output, config)


@confirm.command("list")
@_all_option
@client_options
def list_(everything: bool, tenant: str | None, output: str, config: Path | None) -> None:
    """List what waits for your answer, newest first."""
    _list(everything, tenant, output, config)


def _list(everything: bool, tenant: str | None, output: str, config: Path | None) -> None:
    found: list[pb.Confirmation] = []
    with connected(config) as connection:
        stub = ConfirmationsServiceStub(connection.channel)
        request = pb.ListConfirmationsRequest(
            tenant_id=connection.tenant(tenant), state="" if everything else "waiting", limit=_PAGE
        )
        while True:
            page = connection.call(stub.ListConfirmations, request)
            found += page.confirmations
            if not page.next_cursor:
                break
            request.cursor = page.next_cursor
    if output == "json":
        print_json(found)
        return
    print_table(
        ("ID", "STATE", "AGENT", "DEVICES", "FOR", "BEFORE", "WHY"),
        (
            (
                entry.id,
                entry.state,
                entry.actor,
                summary(entry.request),
                format_duration(parse_duration_ms(entry.request.duration)),
                moment(entry.expires),
                entry.reason,
            )
            for entry in found
        ),
    )


@confirm.command()
@click.argument("confirmation")
@client_options
def approve(confirmation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Let the agent have what it asked for, once, when it asks again."""
    with connected(config) as connection:
        stub = ConfirmationsServiceStub(connection.channel)
        request = pb.ApproveConfirmationRequest(
            tenant_id=connection.tenant(tenant), confirmation_id=confirmation
        )
        decided = connection.call(stub.ApproveConfirmation, request).confirmation
    answer(decided, output, f"{decided.id}  {decided.state}")
    click.echo(f"{decided.actor} must ask again before {moment(decided.expires)}", err=True)


@confirm.command()
@click.argument("confirmation")
@client_options
def reject(confirmation: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Refuse it for ever; takes back an approval not used yet."""
    with connected(config) as connection:
        stub = ConfirmationsServiceStub(connection.channel)
        request = pb.RejectConfirmationRequest(
            tenant_id=connection.tenant(tenant), confirmation_id=confirmation
        )
        decided = connection.call(stub.RejectConfirmation, request).confirmation
    answer(decided, output, f"{decided.id}  {decided.state}")

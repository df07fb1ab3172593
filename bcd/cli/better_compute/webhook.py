"""``better-compute webhook``: sends a tenant's events to a receiver of one's own."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import change_options, client_options, connected
from bcd.cli.better_compute.show import answer, moment, print_json
from bcd.cli.better_compute.tables import print_fields, print_table
from bcd.cli.better_compute.watch import full_types
from bcd.model.printable import counted
from bcd.wire.compute.v1 import events_pb2 as pb
from bcd.wire.compute.v1.events_pb2_grpc import WebhooksServiceStub

_PAGE = 200


@click.group()
def webhook() -> None:
    """Send events to a receiver of yours.

    By HTTPS, with Standard Webhooks signatures; recipes/webhook/receiver.py checks one.
    """


@webhook.command()
@click.argument("url")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="EVENT",
    help="Only these, such as placed; repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Every tenant's; for administrators.")
@client_options
def add(
    url: str,
    types: tuple[str, ...],
    everything: bool,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Deliver events to URL, and print the secret that signs them.

    Those that you may read.
    """
    with connected(config) as connection:
        request = pb.CreateWebhookRequest(
            tenant_id="" if everything else connection.tenant(tenant),
            url=url,
            types=full_types(types),
        )
        made = connection.call(WebhooksServiceStub(connection.channel).CreateWebhook, request)
    if output == "json":
        print_json(made)
        return
    print_fields((("webhook", made.webhook.id), ("secret", made.secret)))
    click.echo("the secret is shown this once; give it to the receiver", err=True)


@webhook.command("list")
@click.option("--all", "everything", is_flag=True, help="Every tenant's; for administrators.")
@client_options
def list_(everything: bool, tenant: str | None, output: str, config: Path | None) -> None:
    """List webhooks, and how their deliveries go."""
    with connected(config) as connection:
        acting = "" if everything else connection.tenant(tenant)
        request = pb.ListWebhooksRequest(tenant_id=acting)
        stub = WebhooksServiceStub(connection.channel)
        found = connection.call(stub.ListWebhooks, request).webhooks
    if output == "json":
        print_json(list(found))
        return
    print_table(
        ("ID", "URL", "EVENTS", "WAITING", "DEAD", "LAST DELIVERY", "STATE"),
        (
            (
                one.id,
                one.url,
                ", ".join(name.removeprefix("reservation.") for name in one.types) or "all",
                str(one.waiting),
                str(one.dead_letters),
                moment(one.delivered),
                _state(one),
            )
            for one in found
        ),
    )


def _state(one: pb.Webhook) -> str:
    words = ["enabled"]
    if one.disabled:
        words = [f"disabled: {one.disabled}"]
    elif one.problem:
        words = [f"failing: {one.problem}"]
    if one.skipped:
        words.append(f"{counted(one.skipped, 'event')} skipped")
    return "; ".join(words)


@webhook.command()
@click.argument("webhook")
@change_options
def remove(webhook: str, output: str, config: Path | None) -> None:
    """Remove a webhook, with what was on its way to it."""
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        request = pb.DeleteWebhookRequest(webhook_id=webhook)
        connection.call(stub.DeleteWebhook, request)
    answer(request, output, f"{webhook}  removed")


@webhook.command()
@click.argument("webhook")
@change_options
def enable(webhook: str, output: str, config: Path | None) -> None:
    """Deliver again, at once, and with what waited meanwhile."""
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        request = pb.EnableWebhookRequest(webhook_id=webhook)
        enabled = connection.call(stub.EnableWebhook, request).webhook
    waiting = counted(enabled.waiting, "event")
    answer(enabled, output, f"{enabled.id}  enabled, {waiting} waiting")


@webhook.command("dead-letters")
@click.argument("webhook")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="How many.",
)
@change_options
def dead_letters(webhook: str, limit: int, output: str, config: Path | None) -> None:
    """List what a receiver did not take, oldest first."""
    found: list[pb.DeadLetter] = []
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        request = pb.ListDeadLettersRequest(webhook_id=webhook)
        while len(found) < limit:
            request.limit = min(_PAGE, limit - len(found))
            page = connection.call(stub.ListDeadLetters, request)
            found += page.dead_letters
            if not page.next_cursor:
                break
            request.cursor = page.next_cursor
    if output == "json":
        print_json(found)
        return
    print_table(
        ("EVENT", "TYPE", "SUBJECT", "ATTEMPTS", "GIVEN UP", "PROBLEM"),
        (
            (
                letter.event.id,
                letter.event.type,
                letter.event.subject,
                str(letter.attempts),
                moment(letter.time),
                letter.problem,
            )
            for letter in found
        ),
    )


@webhook.command()
@click.argument("webhook")
@click.argument("events", nargs=-1)
@change_options
def redeliver(webhook: str, events: tuple[str, ...], output: str, config: Path | None) -> None:
    """Try dead letters again, all or those of these EVENTS ids."""
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        request = pb.RedeliverDeadLettersRequest(webhook_id=webhook, event_ids=events)
        done = connection.call(stub.RedeliverDeadLetters, request)
    answer(done, output, f"{webhook}  {counted(done.redelivered, 'event')} on the way again")

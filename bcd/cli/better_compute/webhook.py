"""``better-compute webhook``: sends a tenant's events to a receiver of one's own."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import (
    client_options,
    config_option,
    connected,
    output_option,
)
from bcd.cli.better_compute.show import moment, print_json, print_table
from bcd.cli.better_compute.watch import full_types
from bcd.model.printable import counted, printable
from bcd.wire.compute.v1 import events_pb2 as pb
from bcd.wire.compute.v1.events_pb2_grpc import WebhooksServiceStub

_PAGE = 200


@click.group()
def webhook() -> None:
    """Send events to a receiver: HTTPS, with Standard Webhooks signatures."""


@webhook.command()
@click.argument("url")
@click.option("--type", "types", multiple=True, help="Only these, such as placed; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Every tenant's; administrators.")
@client_options
def add(
    url: str,
    types: tuple[str, ...],
    everything: bool,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Deliver what you may read to URL, and print the secret that signs it."""
    with connected(config) as connection:
        request = pb.CreateWebhookRequest(
            tenant_id="" if everything else connection.tenant(tenant),
            url=url,
            types=full_types(types),
        )
        answer = connection.call(WebhooksServiceStub(connection.channel).CreateWebhook, request)
    if output == "json":
        print_json(answer)
        return
    click.echo(f"webhook  {answer.webhook.id}\nsecret   {answer.secret}")
    click.echo("the secret is shown this once; give it to the receiver", err=True)


@webhook.command("list")
@click.option("--all", "everything", is_flag=True, help="Every tenant's; administrators.")
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
        ("ID", "URL", "TYPES", "WAITING", "DEAD", "LAST DELIVERY", "STATE"),
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
@config_option
def remove(webhook: str, config: Path | None) -> None:
    """Remove a webhook, with what was on its way to it."""
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        connection.call(stub.DeleteWebhook, pb.DeleteWebhookRequest(webhook_id=webhook))
    click.echo(f"{webhook}  removed")


@webhook.command()
@click.argument("webhook")
@config_option
def enable(webhook: str, config: Path | None) -> None:
    """Deliver again, at once, and with what waited meanwhile."""
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        request = pb.EnableWebhookRequest(webhook_id=webhook)
        answer = connection.call(stub.EnableWebhook, request).webhook
    click.echo(f"{answer.id}  enabled, {counted(answer.waiting, 'event')} waiting")


@webhook.command("dead-letters")
@click.argument("webhook")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@output_option
@config_option
def dead_letters(webhook: str, limit: int, output: str, config: Path | None) -> None:
    """List what a webhook's receiver did not take, oldest first."""
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
@config_option
def redeliver(webhook: str, events: tuple[str, ...], config: Path | None) -> None:
    """Try dead letters again: those named by their EVENT ids, else all."""
    with connected(config) as connection:
        stub = WebhooksServiceStub(connection.channel)
        request = pb.RedeliverDeadLettersRequest(webhook_id=webhook, event_ids=events)
        answer = connection.call(stub.RedeliverDeadLetters, request)
    click.echo(printable(f"{webhook}  {counted(answer.redelivered, 'event')} on the way again"))

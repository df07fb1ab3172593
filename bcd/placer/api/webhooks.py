"""Webhooks: members of a tenant look after its own, administrators after all.

A webhook delivers what its creator may read, so that nobody learns more by one than by watching.
"""

import secrets
from dataclasses import dataclass

from bcd.model.caller import Caller
from bcd.model.errors import AccessDenied, Conflict, InvalidInput, NotFound
from bcd.model.ids import is_type_id
from bcd.model.texts import check_text
from bcd.placer.api.edge import Context, Edge
from bcd.placer.api.events import encode_event, known_types, page_limit
from bcd.placer.api.paging import fitting
from bcd.placer.api.pools import require_tenant
from bcd.placer.events.feed import Feed
from bcd.placer.events.message import SECRET_BYTES, secret_text
from bcd.placer.events.post import Poster, Refused
from bcd.placer.events.target import parse_target
from bcd.store import deliveries, webhooks
from bcd.store.database import Database, Transaction
from bcd.store.deliveries import Counts, Delivery
from bcd.store.webhooks import Webhook
from bcd.wire.compute.v1 import events_pb2 as pb
from bcd.wire.compute.v1 import events_pb2_grpc

MAX_OF_TENANT = 16
MAX_WEBHOOKS = 128
_MAX_NAMED = 200
_PREFIX = "hook"


@dataclass(frozen=True, slots=True)
class WebhookCalls:
    """Calls about webhooks, for verified callers."""

    database: Database
    poster: Poster
    feed: Feed

    async def create(
        self, caller: Caller, request: pb.CreateWebhookRequest
    ) -> pb.CreateWebhookResponse:
        """Add one, at an address that may be dialled; its secret is shown this once.

        Not for an agent: a webhook delivers for ever, and the person's delegation ends.
        """
        if caller.actor:
            raise AccessDenied(
                f"{caller.actor} is an agent, and a webhook would outlive its session; let the"
                " person add it, or watch the events",
                actor=caller.actor,
            )
        require_tenant(caller, request.tenant_id)
        tenant_id = check_text("tenantId", request.tenant_id, empty=caller.admin)
        types = known_types(request.types)
        try:
            await self.poster.addresses(parse_target(request.url, self.poster.reach))
        except Refused as refused:
            raise InvalidInput("url", str(refused)) from refused
        wanted = Webhook(
            id="",
            tenant_id=tenant_id,
            url=request.url,
            types=types,
            creator=caller,
            secret=secrets.token_bytes(SECRET_BYTES),
        )
        made = await self.database.write(_add, wanted)
        return pb.CreateWebhookResponse(
            webhook=_encode(made, Counts()), secret=secret_text(made.secret)
        )

    async def list(
        self, caller: Caller, request: pb.ListWebhooksRequest
    ) -> pb.ListWebhooksResponse:
        """A tenant's webhooks; an administrator may leave the tenant out to see all."""
        require_tenant(caller, request.tenant_id)
        found = await self.database.read(_listed, request.tenant_id or None)
        return pb.ListWebhooksResponse(webhooks=[_encode(*entry) for entry in found])

    async def delete(
        self, caller: Caller, request: pb.DeleteWebhookRequest
    ) -> pb.DeleteWebhookResponse:
        """Remove one, with what was on its way to it."""
        await self._seen(caller, request.webhook_id)
        await self.database.write(webhooks.delete, request.webhook_id)
        return pb.DeleteWebhookResponse()

    async def enable(
        self, caller: Caller, request: pb.EnableWebhookRequest
    ) -> pb.EnableWebhookResponse:
        """Deliver again, at once."""
        await self._seen(caller, request.webhook_id)
        await self.database.write(webhooks.enable, request.webhook_id)
        return pb.EnableWebhookResponse(
            webhook=_encode(*await self._seen(caller, request.webhook_id))
        )

    async def dead_letters(
        self, caller: Caller, request: pb.ListDeadLettersRequest
    ) -> pb.ListDeadLettersResponse:
        """A page of what was given up, without what the policy hides from the caller."""
        await self._seen(caller, request.webhook_id)
        limit = page_limit(request.limit if request.HasField("limit") else None)
        after = _place(request.cursor)
        found = await self.database.read(
            deliveries.dead_letters, request.webhook_id, after, limit + 1
        )
        letters = [_encode_dead(letter) for letter in found[:limit]]
        shown = found[: fitting(letters)]
        visible = {event.id for event in await self.feed.visible(caller, [d.event for d in shown])}
        return pb.ListDeadLettersResponse(
            dead_letters=[
                letter
                for letter, dead in zip(letters, shown, strict=False)
                if dead.event.id in visible
            ],
            next_cursor=str(shown[-1].event.published_seq) if len(shown) < len(found) else "",
        )

    async def redeliver(
        self, caller: Caller, request: pb.RedeliverDeadLettersRequest
    ) -> pb.RedeliverDeadLettersResponse:
        """Try dead letters again; those of a disabled webhook wait until it is enabled."""
        await self._seen(caller, request.webhook_id)
        named = tuple(dict.fromkeys(request.event_ids))
        if len(named) > _MAX_NAMED:
            raise InvalidInput("eventIds", f"must have at most {_MAX_NAMED} entries")
        done = await self.database.write(deliveries.redeliver, request.webhook_id, named)
        if done < len(named):
            raise NotFound(
                f"{len(named) - done} of these events are no dead letters of the webhook;"
                f" {done} are tried again"
            )
        return pb.RedeliverDeadLettersResponse(redelivered=done)

    async def _seen(self, caller: Caller, webhook_id: str) -> tuple[Webhook, Counts]:
        """What the caller may know of; anything else is not found."""
        found = None
        if is_type_id(_PREFIX, webhook_id):
            found = await self.database.read(_find, webhook_id)
        if found is None or not (caller.admin or found[0].tenant_id in caller.tenants):
            raise NotFound(f"there is no webhook {webhook_id[:64]}", webhookId=webhook_id[:64])
        return found


def _add(tx: Transaction, wanted: Webhook) -> Webhook:
    if webhooks.count(tx, wanted.tenant_id) >= MAX_OF_TENANT:
        raise Conflict(f"there are {MAX_OF_TENANT} webhooks already; remove one first")
    if webhooks.count(tx) >= MAX_WEBHOOKS:
        raise Conflict("the control plane has no room for another webhook; remove one first")
    return webhooks.add(tx, wanted, tx.new_id(_PREFIX))


def _listed(tx: Transaction, tenant_id: str | None) -> list[tuple[Webhook, Counts]]:
    found = webhooks.of_tenant(tx, tenant_id)
    return [(webhook, deliveries.counts(tx, webhook.id)) for webhook in found]


def _find(tx: Transaction, webhook_id: str) -> tuple[Webhook, Counts] | None:
    found = webhooks.get(tx, webhook_id)
    return None if found is None else (found, deliveries.counts(tx, webhook_id))


def _place(cursor: str) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidInput("cursor", "must be the one of the page before")
    return int(cursor)


def _encode(webhook: Webhook, counts: Counts) -> pb.Webhook:
    return pb.Webhook(
        id=webhook.id,
        tenant_id=webhook.tenant_id,
        url=webhook.url,
        types=webhook.types,
        creator_identity_id=webhook.creator.owner,
        created=webhook.created_ms,
        disabled=webhook.disabled,
        waiting=counts.waiting,
        dead_letters=counts.dead,
        skipped=webhook.skipped,
        problem=webhook.problem,
        delivered=webhook.delivered_ms,
    )


def _encode_dead(delivery: Delivery) -> pb.DeadLetter:
    return pb.DeadLetter(
        event=encode_event(delivery.event),
        attempts=delivery.attempts,
        time=delivery.due_ms,
        problem=delivery.problem,
    )


class WebhooksServicer(events_pb2_grpc.WebhooksServiceServicer):
    """The generated service's methods, each through the edge."""

    def __init__(self, edge: Edge, calls: WebhookCalls) -> None:
        self._edge = edge
        self._calls = calls

    async def CreateWebhook(  # noqa: N802 - the service's name
        self, request: pb.CreateWebhookRequest, context: Context
    ) -> pb.CreateWebhookResponse:
        return await self._edge.serve(self._calls.create, request, context)

    async def ListWebhooks(  # noqa: N802
        self, request: pb.ListWebhooksRequest, context: Context
    ) -> pb.ListWebhooksResponse:
        return await self._edge.serve(self._calls.list, request, context)

    async def DeleteWebhook(  # noqa: N802
        self, request: pb.DeleteWebhookRequest, context: Context
    ) -> pb.DeleteWebhookResponse:
        return await self._edge.serve(self._calls.delete, request, context)

    async def EnableWebhook(  # noqa: N802
        self, request: pb.EnableWebhookRequest, context: Context
    ) -> pb.EnableWebhookResponse:
        return await self._edge.serve(self._calls.enable, request, context)

    async def ListDeadLetters(  # noqa: N802
        self, request: pb.ListDeadLettersRequest, context: Context
    ) -> pb.ListDeadLettersResponse:
        return await self._edge.serve(self._calls.dead_letters, request, context)

    async def RedeliverDeadLetters(  # noqa: N802
        self, request: pb.RedeliverDeadLettersRequest, context: Context
    ) -> pb.RedeliverDeadLettersResponse:
        return await self._edge.serve(self._calls.redeliver, request, context)

"""Delivers events to webhooks: a task for each, so that none waits for another's receiver.

What is bounded: webhooks in all, attempts at once of each, the time of each attempt. A placer that
crashes in the middle of one leaves its row, and whoever gets the lease tries again.
"""

import asyncio
import functools
import logging
import random
import secrets
from collections.abc import Sequence

from bcd.model.errors import InvalidInput
from bcd.placer.events.backoff import next_try_ms, rest_ms
from bcd.placer.events.feed import Feed, Position
from bcd.placer.events.message import body_of, headers_of
from bcd.placer.events.post import Answer, Poster
from bcd.placer.events.target import Target, parse_target
from bcd.placer.loops import each
from bcd.store import control, deliveries, webhooks
from bcd.store.database import Database, Transaction
from bcd.store.deliveries import Delivery, Outcome, Turn
from bcd.store.webhooks import Webhook

logger = logging.getLogger(__name__)

_AT_ONCE = 2
_PAGE = 100
_GONE = 410
_FAR_BEHIND = 100


class Deliverer:
    """A loop's pass starts a task for each webhook whose turn it is."""

    def __init__(self, database: Database, feed: Feed, poster: Poster) -> None:
        self._database = database
        self._feed = feed
        self._poster = poster
        self._token = secrets.token_hex(8)
        self._tasks: dict[str, asyncio.Task[Sequence[str]]] = {}
        self._again: set[str] = set()

    async def pass_once(self) -> float | None:
        """Start what is due; returns the seconds until the next turn, None when that is open."""
        turns, now_ms = await self._database.read(_turns, self._token)
        if any(turn.due_ms is None and turn.behind > _FAR_BEHIND for turn in turns):
            await self._database.write(deliveries.pass_over)
        waits: list[int] = []
        for turn in turns:
            if turn.due_ms is None:
                continue
            if turn.webhook_id in self._tasks:
                self._again.add(turn.webhook_id)
            elif turn.due_ms > now_ms:
                waits.append(turn.due_ms - now_ms)
            else:
                self._start(turn.webhook_id)
        return min(waits) / 1000 if waits else None

    def _start(self, webhook_id: str) -> None:
        work = each("delivering to a webhook", [webhook_id], self._serve)
        task = asyncio.create_task(work)
        self._tasks[webhook_id] = task
        task.add_done_callback(functools.partial(self._ended, webhook_id))

    def _ended(self, webhook_id: str, task: "asyncio.Task[Sequence[str]]") -> None:
        """What came while it was busy may have come behind its last look."""
        del self._tasks[webhook_id]
        again = webhook_id in self._again
        self._again.discard(webhook_id)
        if again and not task.cancelled() and not task.result():
            self._start(webhook_id)

    async def _serve(self, webhook_id: str) -> None:
        """Deliver until nothing is due."""
        try:
            while await self._round(webhook_id):
                pass
        finally:
            await self._database.write(webhooks.let_go, webhook_id, self._token)

    async def _round(self, webhook_id: str) -> bool:
        """Take new events in and make the attempts that are due; False when there was nothing."""
        webhook = await self._database.write(webhooks.lease, webhook_id, self._token)
        if webhook is None:
            return False
        taken = await self._take_in(webhook)
        due, now_ms = await self._database.read(_due, webhook)
        if not due:
            return taken
        done = await asyncio.gather(*(self._attempt(webhook, one, now_ms) for one in due))
        rest = rest_ms(webhook.failures + 1)
        outcomes = [_outcome(*pair, now_ms) for pair in zip(due, done, strict=True)]
        await self._database.write(_settle, webhook, self._token, outcomes, rest, _gone(done))
        _tell(webhook, due, outcomes)
        return True

    async def _take_in(self, webhook: Webhook) -> bool:
        """Make deliveries of what the webhook's creator may see; whether more may be there."""
        waiting = (await self._database.read(deliveries.counts, webhook.id)).waiting
        room = min(_PAGE, deliveries.MAX_WAITING - waiting)
        if room <= 0:
            return False
        epoch = await self._database.read(control.epoch)
        after = Position(epoch, webhook.taken_seq)
        try:
            page = await self._feed.page(webhook.creator, webhook.wanted, after, room)
        except InvalidInput:  # forgotten this moment: the row has moved on, and counts them
            return False
        if page.upto == webhook.taken_seq:
            return False
        places = {
            event.published_seq: event.subject
            for event in page.events
            if event.published_seq is not None
        }
        await self._database.write(deliveries.take_in, webhook, self._token, places, page.upto)
        return page.upto < page.newest

    async def _attempt(self, webhook: Webhook, delivery: Delivery, now_ms: int) -> Answer:
        target = self._target(webhook)
        if isinstance(target, Answer):
            return target
        assert delivery.event.id is not None
        body = body_of(delivery.event)
        headers = headers_of(delivery.event.id, webhook.secret, body, now_ms)
        return await self._poster.post(target, headers, body)

    def _target(self, webhook: Webhook) -> Target | Answer:
        """The settings may have become stricter since it was added."""
        try:
            return parse_target(webhook.url, self._poster.reach)
        except InvalidInput as error:
            return Answer(0, f"its URL {error.rule}")

    async def stop(self) -> None:
        """Break off what is under way; whoever comes next tries it again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _turns(tx: Transaction, token: str) -> tuple[Sequence[Turn], int]:
    return deliveries.turns(tx, token), tx.now_ms()


def _due(tx: Transaction, webhook: Webhook) -> tuple[Sequence[Delivery], int]:
    now_ms = tx.now_ms()
    if webhook.rest_until_ms > now_ms:
        return [], now_ms
    return deliveries.due(tx, webhook.id, now_ms, _AT_ONCE), now_ms


def _settle(
    tx: Transaction,
    webhook: Webhook,
    token: str,
    outcomes: Sequence[Outcome],
    rest: int,
    gone: bool,
) -> None:
    if deliveries.settle(tx, webhook.id, token, outcomes, rest) and gone:
        webhooks.disable(tx, webhook.id, "its receiver answered 410: it is gone")


def _gone(answers: Sequence[Answer]) -> bool:
    return any(answer.status == _GONE for answer in answers)


def _outcome(delivery: Delivery, answer: Answer, now_ms: int) -> Outcome:
    place = delivery.event.published_seq
    assert place is not None
    if answer.accepted:
        return Outcome(published_seq=place)
    chance = random.random()  # noqa: S311 - spreads load, guards nothing
    due_ms = next_try_ms(delivery.attempts + 1, now_ms, chance)
    return Outcome(published_seq=place, problem=answer.problem, due_ms=due_ms)


def _tell(webhook: Webhook, due: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
    for delivery, outcome in zip(due, outcomes, strict=True):
        if outcome.problem:
            dead = outcome.due_ms is None
            logger.log(
                logging.WARNING if dead else logging.INFO,
                "an event is a dead letter of its webhook" if dead else "a delivery failed",
                extra={
                    "webhook_id": webhook.id,
                    "event_id": delivery.event.id,
                    "attempts": delivery.attempts + 1,
                    "problem": outcome.problem,
                },
            )

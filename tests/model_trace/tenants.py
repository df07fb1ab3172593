"""What tenants do to the service, told to the reference and compared with what it expects."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bcd.model.caller import Caller
from bcd.model.errors import BcdError, Reason
from bcd.model.reservation import Reservation
from tests.model_trace.claims import HOLD_MS, LIVE, SECOND_MS, UNDECIDED, Claim, Wish
from tests.model_trace.fits import Amounts, Books, Need
from tests.model_trace.moves import must
from tests.model_trace.play import Check, Play, nothing
from tests.model_trace.shapes import CALLERS, document

Answer = Reservation | BcdError


@dataclass
class Tenants(Play):
    """Create, retry, rehearse, race, release, cancel, extend, renew, reassign."""

    async def create(
        self, caller: Caller, key: str, wish: Wish, *, word: str = "create", dry: bool = False,
        left: int | None = None, idle: bool = False,
    ) -> None:  # fmt: skip
        """Create, or ask again with a key that was used before.

        ``word`` is what the policy says: ``create`` to allow it, ``deny`` or ``confirm``.
        """
        reference = self.reference

        async def act() -> Check:
            known = reference.find(caller.identity, key)
            expected = self._expected(known, wish, word, dry)
            if known is None and not dry:
                self._ask(caller, key, wish)
            asked = document(wish, key, self.pool_id, dry)
            answer = await _or_refused(self.service.create(caller, asked, word))
            return lambda: self._check_answer(answer, expected, caller, key, dry)

        await self.step(act, left=left, cause=word, idle=idle)

    def _ask(self, caller: Caller, key: str, wish: Wish) -> None:
        if self.reference.find(caller.identity, key) is None:
            claim = Claim("", caller.identity, key, wish)
            self.reference.asked.setdefault((caller.identity, key), []).append(claim)

    def _expected(
        self, known: Claim | None, wish: Wish, word: str, dry: bool
    ) -> tuple[str, Mapping[str, str]]:
        """A state or the reason of a refusal, with details."""
        reference = self.reference
        if known is not None:
            if known.wish != wish:
                return Reason.CONFLICT, {"reservationId": known.id}
            if known.state == "denied":
                return Reason.ACCESS_DENIED, {"reservationId": known.id}
            if known.state not in UNDECIDED:
                return known.state, {}
            if known.state != "draft" and reference.now >= known.deadline:
                return "expired", {}
        if word != "create":
            return _REFUSED[word], {}
        share = reference.share_of(wish) if known is None else known.share
        over = reference.over_quota(wish, share)
        if over is not None:
            names = ("resource", "limit", "used", "asked")
            return Reason.QUOTA_EXCEEDED, dict(zip(names, map(str, over), strict=True))
        if reference.queued and not dry:
            return "pending", {}
        may_yield = reference.spot_lives and not wish.spot
        if may_yield or reference.waits_behind(known):
            return "either", {}
        return ("placed" if reference.fits(wish, share, known) else "pending"), {}

    def _check_answer(
        self, answer: Answer, expected: tuple[str, Mapping[str, str]],
        caller: Caller, key: str, dry: bool,
    ) -> None:  # fmt: skip
        word, details = expected
        known = self.reference.find(caller.identity, key)
        if isinstance(answer, BcdError):
            must(answer.reason == word, "another answer was due", answer, expected)
            must(details.items() <= answer.details.items(), "details", answer.details, details)
            return
        words = ("placed", "pending") if word == "either" else (word,)
        must(answer.state in words, "another answer was due", answer, expected)
        if dry and (known is None or known.state in UNDECIDED):
            return
        must(known is not None and known.id == answer.id, "same key, same id", answer, known)
        assert known is not None
        must(known.version == answer.version, "answered is what is stored", answer, known)

    async def race(self, asks: Sequence[tuple[Caller, str, Wish]]) -> None:
        """Creates at once, by two placers in turn."""

        async def act() -> Check:
            for asked in asks:
                self._ask(*asked)
            placers = (self.service.world, self.service.other)
            answers = await asyncio.gather(
                *(
                    placers[i % 2].admission.create(caller, document(wish, key, self.pool_id))
                    for i, (caller, key, wish) in enumerate(asks)
                ),
                return_exceptions=True,
            )
            return lambda: self._check_race(asks, answers)

        await self.step(act, cause="create")

    def _check_race(self, asks: Sequence[tuple[Caller, str, Wish]], answers: Sequence[Any]) -> None:
        for (caller, key, wish), answer in zip(asks, answers, strict=True):
            known = self.reference.find(caller.identity, key)
            assert known is not None
            if isinstance(answer, BcdError):
                allowed = {Reason.QUOTA_EXCEEDED} if known.state in UNDECIDED else set()
                allowed |= {Reason.CONFLICT} if known.wish != wish else set()
                allowed |= {Reason.ACCESS_DENIED} if known.state == "denied" else set()
                must(answer.reason in allowed, "no reason to refuse", answer, known)
                continue
            must(not isinstance(answer, BaseException), "an error", answer)
            made = answer[1]
            must(made.id == known.id, "same key, same id", made, known)

    def _chosen(self, position: int) -> Claim | None:
        claims = [c for c in self.reference.claims.values() if c.state != "draft"]
        return claims[position % len(claims)] if claims else None

    async def end(self, name: str, position: int, left: int | None = None) -> None:
        """Release or cancel one of the reservations."""
        claim = self._chosen(position)
        if claim is None:
            return

        async def act() -> Check:
            before = claim.state
            answer = await _or_refused(self.service.end(self._caller(claim), name, claim.id))
            word = answer.reason if isinstance(answer, BcdError) else answer
            return lambda: must(word == ended(name, before), "answer", name, before, word)

        await self.step(act, left=left, cause=name, ending=claim.id)

    def _caller(self, claim: Claim) -> Caller:
        return CALLERS[claim.who]

    async def release_oldest(self) -> None:
        """Release the oldest of those that have devices."""
        claims = [c for c in self.reference.claims.values() if c.state != "draft"]
        for position, claim in enumerate(claims):
            if claim.state in LIVE:
                await self.end("release", position)
                return

    async def renew(self, position: int, left: int | None = None) -> None:
        """Renew the lease of one of the reservations."""
        claim = self._chosen(position)
        if claim is None:
            return

        async def act() -> Check:
            can = claim.state in LIVE and claim.lease and not self._is_over(claim)
            answer = await _or_refused(self.service.renew(self._caller(claim), claim.id))
            lease = self.reference.now + claim.wish.lease_s * SECOND_MS
            word = answer.reason if isinstance(answer, BcdError) else ""
            return lambda: must(
                word == ("" if can else Reason.INVALID_STATE) and (not can or claim.lease == lease),
                "renewed", claim, answer,
            )  # fmt: skip

        await self.step(act, left=left, cause="renew", ending=claim.id)

    def _is_over(self, claim: Claim) -> bool:
        now = self.reference.now
        return now >= claim.window[1] or bool(claim.lease and now >= claim.lease)

    async def extend(
        self, position: int, by_ms: int, *, deny: bool = False, left: int | None = None
    ) -> None:
        """Extend one of the reservations to an end ``by_ms`` from its own."""
        claim = self._chosen(position)
        if claim is None:
            return
        until = (claim.window[1] or self.reference.now) + by_ms

        async def act() -> Check:
            expected = self._extension(claim, until, deny)
            answer = await _or_refused(
                self.service.extend(self._caller(claim), claim.id, until, deny)
            )
            return lambda: self._check_extension(claim, until, answer, expected)

        self.reference.until = until
        await self.step(act, left=left, cause="extend", ending=claim.id)

    def _extension(self, claim: Claim, until: int, deny: bool) -> str:
        if claim.state not in LIVE or self._is_over(claim) or claim.yields:
            return Reason.INVALID_STATE
        if until <= claim.window[1]:
            return "reached"
        if claim.held_since and claim.held_since >= self.reference.now - HOLD_MS:
            return Reason.CONFLICT
        if deny:
            return Reason.ACCESS_DENIED
        free = self._is_free_after(self.reference.books, claim, until)
        return "extended" if free else "in the way"

    def _is_free_after(self, books: Books, claim: Claim, until: int) -> bool:
        """Whether nobody else has its devices, or too much of its hosts, until then."""
        gap = self.reference.gap
        amounts: Amounts = claim.wish.booked(claim.share)
        for grant in claim.live:
            host = self.reference.hosts[grant.host]
            start, end = claim.window[1] + gap, until + gap
            free = {part.key for part in books.free_parts(host, start, end)}
            # A device that is out of service stays with whoever has it.
            if not grant.parts <= free | (host.parts.keys() - host.well):
                return False
            if not books.could_give(host, Need((), 1, amounts), start, end):
                return False
        return True

    def _check_extension(self, claim: Claim, until: int, answer: Any, expected: str) -> None:
        if isinstance(answer, BcdError):
            must(answer.reason == expected, "another answer was due", answer, expected)
            return
        extended, available = answer
        if expected == "extended" and not extended:
            expected = self._unless_kept(claim, until)
        must(extended == (expected == "extended"), "extended", claim, answer, expected)
        if expected == "in the way":
            must(claim.window[1] <= available < until, "available until", claim, answer)
        else:
            must(not available, "available until", claim, answer)

    def _unless_kept(self, claim: Claim, until: int) -> str:
        """What extending it comes to beside what is kept for one that waits (spec 7.5)."""
        kept = self.reference.kept_from(None)
        books = self.reference.books
        beside = books if kept is None else books.beside(kept)
        return "extended" if self._is_free_after(beside, claim, until) else "in the way"

    async def reassign(self, *, back: bool = False, left: int | None = None) -> None:
        """Hand everything of the first owner to the last, or back."""

        async def act() -> Check:
            owners = [caller.owner for caller in CALLERS.values()]
            ends = (owners[-1], owners[0]) if back else (owners[0], owners[-1])
            await self.service.reassign(*ends)
            return lambda: None

        await self.step(act, left=left, cause="reassign")

    async def idle(self) -> None:
        """Only what is due."""
        await self.step(nothing)


_REFUSED = {"deny": Reason.ACCESS_DENIED, "confirm": Reason.CONFIRMATION_REQUIRED}
Asking = Callable[[], Awaitable[Check]]


async def _or_refused(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except BcdError as error:
        return error


def ended(name: str, before: str) -> str:
    """What a release or cancel of a reservation in a state comes to (spec 14.4)."""
    if before == "pending":
        return "cancelled"
    if name == "cancel":
        return "cancelled" if before == "placed" else Reason.INVALID_STATE
    if before == "awaiting-confirmation":
        return "cancelled"
    return "released" if before in LIVE else before

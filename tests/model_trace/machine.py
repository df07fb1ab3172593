"""The state machine that draws histories; its rules are the operations."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from bcd.model.pool import PlacerKind, PoolPolicy, SharingMode, SharingPolicy
from bcd.placer.pki.authority import Authority
from tests.model_trace.claims import MINUTE_MS, Wish
from tests.model_trace.history import History
from tests.model_trace.moves import Step
from tests.model_trace.reference import Reference
from tests.model_trace.service import Service
from tests.model_trace.shapes import CALLERS, POOLS, QUOTAS, WISHES
from tests.model_trace.stage import Stage

places = st.integers(0, 7)
keys = st.integers(0, 9).map(lambda number: f"key-{number}")
callers = st.sampled_from(sorted(CALLERS))
wishes = st.integers(0, len(WISHES) - 1)
words = st.sampled_from(["create"] * 6 + ["deny", "confirm"])
rarely = st.sampled_from([False] * 5 + [True])
crashes = st.one_of(*[st.none()] * 5, st.integers(0, 40))
waits = st.sampled_from([1_000, 31_000, 100_000, 6 * MINUTE_MS, 61 * MINUTE_MS])
kinds = st.sampled_from(["failed", "released", "foreign", "other", "devices", "bound"])


class Trace(RuleBasedStateMachine):
    """One history. ``stage``, ``runner`` and ``authority`` are set by the test, for all of them."""

    stage: ClassVar[Stage]
    runner: ClassVar[asyncio.Runner]
    authority: ClassVar[Authority]
    steps: ClassVar[Counter[Step]]
    histories: ClassVar[list[int]]
    found: ClassVar[list[str]]

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.histories[-1:] = [self.histories[-1] + 1]
        try:
            self.runner.run(coroutine)
        except BaseException as error:
            self.found.append(f"{type(error).__name__}: {error}")
            raise

    @initialize(
        pool=st.integers(0, len(POOLS) - 1),
        gap=st.sampled_from([0, 0, 5 * MINUTE_MS]),
        queued=st.sampled_from([False, False, True]),
        shared=st.booleans(),
    )
    def begin(self, pool: int, gap: int, queued: bool, shared: bool) -> None:
        self.stage.advance(60 * MINUTE_MS)
        placer = PlacerKind.QUEUED if queued else PlacerKind.INLINE
        sharing = SharingPolicy(mode=SharingMode.TIME_SLICE if shared else SharingMode.NONE)
        policy = PoolPolicy(turnaround_ms=gap, placer=placer, sharing=sharing)
        service = Service(self.stage, self.authority, policy)
        self.history = History(service, Reference(self.stage.now, gap, queued))
        self.histories.append(0)
        self._run(self.history.begin(POOLS[pool], QUOTAS))

    def _wish(self, position: int) -> Wish:
        """A wish whose start counts from now."""
        wish = WISHES[position]
        return replace(wish, start=self.stage.now + wish.start) if wish.start else wish

    @rule(caller=callers, key=keys, wish=wishes, word=words, left=crashes, idle=rarely)
    def create(self, caller: str, key: str, wish: int, word: str, left: Any, idle: bool) -> None:
        asked = (CALLERS[caller], key, self._wish(wish))
        self._run(self.history.create(*asked, word=word, left=left, idle=idle))

    @rule(caller=callers, wanted=st.lists(wishes, min_size=1, max_size=4), left=crashes)
    def create_new(self, caller: str, wanted: list[int], left: int | None) -> None:
        """Under keys that nobody used; the last one crashes, if any does."""
        for position, wish in enumerate(wanted):
            last = position == len(wanted) - 1
            key = f"new-{len(self.history.reference.claims)}-{position}"
            asked = (CALLERS[caller], key, self._wish(wish))
            self._run(self.history.create(*asked, left=left if last else None))

    @rule(place=places, word=words, left=crashes)
    def retry(self, place: int, word: str, left: int | None) -> None:
        claims = list(self.history.reference.claims.values())
        if claims:
            claim = claims[place % len(claims)]
            asked = (CALLERS[claim.who], claim.key, claim.wish)
            self._run(self.history.create(*asked, word=word, left=left))

    @rule(caller=callers, key=keys, wish=wishes, word=words)
    def rehearse(self, caller: str, key: str, wish: int, word: str) -> None:
        asked = (CALLERS[caller], key, self._wish(wish))
        self._run(self.history.create(*asked, dry=True, word=word))

    @rule(first=st.tuples(callers, keys, wishes), second=st.tuples(callers, keys, wishes))
    def race(self, first: Any, second: Any) -> None:
        asks = [(CALLERS[who], key, self._wish(wish)) for who, key, wish in (first, second)]
        self._run(self.history.race(asks))

    @rule(caller=callers, key=keys, wish=wishes)
    def race_for_a_key(self, caller: str, key: str, wish: int) -> None:
        self._run(self.history.race([(CALLERS[caller], key, self._wish(wish))] * 2))

    @rule(name=st.sampled_from(["release", "cancel"]), place=places, left=crashes)
    def end(self, name: str, place: int, left: int | None) -> None:
        self._run(self.history.end(name, place, left))

    @rule(place=places, minutes=st.sampled_from([-1, 5, 60, 600]), deny=rarely, left=crashes)
    def extend(self, place: int, minutes: int, deny: bool, left: int | None) -> None:
        self._run(self.history.extend(place, minutes * MINUTE_MS, deny=deny, left=left))

    @rule(place=places, left=crashes)
    def renew(self, place: int, left: int | None) -> None:
        self._run(self.history.renew(place, left))

    @rule(back=st.booleans(), left=crashes)
    def reassign(self, back: bool, left: int | None) -> None:
        self._run(self.history.reassign(back=back, left=left))

    @rule(count=st.integers(1, 3))
    def release_oldest(self, count: int) -> None:
        """Of those that have devices."""
        for _ in range(count):
            self._run(self.history.release_oldest())

    @rule(left=crashes)
    def bind(self, left: int | None) -> None:
        self._run(self.history.bind(left))

    @rule(place=places, kind=kinds, left=crashes)
    def report(self, place: int, kind: str, left: int | None) -> None:
        self._run(self.history.report(place, kind, left))

    @rule(ms=waits, left=crashes)
    def wait(self, ms: int, left: int | None) -> None:
        self._run(self.history.wait(ms, left))

    @rule(place=places, on=st.booleans())
    def power(self, place: int, on: bool) -> None:
        self._run(self.history.power(place, on))

    @rule(place=places, which=places, change=st.sampled_from(["sick", "gone", "well"]))
    def device(self, place: int, which: int, change: str) -> None:
        self._run(self.history.device(place, which, change))

    @rule(place=places, change=st.sampled_from(["cordon", "drain", "distrust", "open", "open"]))
    def stand(self, place: int, change: str) -> None:
        self._run(self.history.stand(place, change))

    @rule(resource=st.sampled_from(sorted(QUOTAS)), ceiling=st.integers(0, 60))
    def quota(self, resource: str, ceiling: int) -> None:
        self._run(self.history.quota(resource, ceiling))

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.steps.update(self.history.reference.steps)
            self._run(self.history.service.stop())

"""The live sessions of this process: fenced, expired, revoked and woken here.

One pass a second ends what must end and writes all heartbeats of that second in one transaction.
Wake-ups from the database bring a pass forward; what they tell of is read again at every tick,
because they may be lost.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable

from bcd.gateway import ending
from bcd.gateway.ending import Ending
from bcd.gateway.passes import repeat
from bcd.gateway.session import Session
from bcd.gateway.settings import Settings
from bcd.model.ids import NodeId
from bcd.store import certificates, desired_states, sessions
from bcd.store.database import Database, StoreUnavailable, Transaction

logger = logging.getLogger(__name__)

_PASS_S = 1.0
_OPENS_PER_SECOND = 250  # how fast nodes may come back without queueing at the handshake


class Connected:
    """The registry of live sessions, one a node."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        counters: Counter[str],
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._live: dict[NodeId, Session] = {}
        self._closed: list[tuple[NodeId, int]] = []
        self._suspects: set[NodeId] = set()
        self._revoked_due = False
        self._due = asyncio.Event()
        self._tick_at = 0.0
        self.healthy = True

    def __len__(self) -> int:
        return len(self._live)

    def get(self, node_id: NodeId) -> Session | None:
        """A node's live session in this process."""
        return self._live.get(node_id)

    def add(self, session: Session) -> None:
        """Take a session in; of two of one node the one with the lower epoch ends."""
        other = self._live.get(session.node_id)
        if other is not None and other.epoch > session.epoch:
            session.end(ending.superseded(other.process_instance))
            return
        self._live[session.node_id] = session
        if other is not None:
            other.end(ending.superseded(session.process_instance))

    def remove(self, session: Session) -> None:
        """The session's stream has ended; its row is closed in the next pass, which starts now."""
        if self._live.get(session.node_id) is session:
            del self._live[session.node_id]
        self._closed.append((session.node_id, session.epoch))
        self._due.set()

    def end_all(self) -> None:
        """The gateway stops: send the nodes away, spread so that they do not come back at once."""
        spread_ms = 1000 + len(self._live) * 1000 // _OPENS_PER_SECOND
        for session in tuple(self._live.values()):
            session.end(ending.shutdown(random.randint(500, spread_ms)))  # noqa: S311

    async def run(self) -> None:
        """Run passes until cancelled."""
        wakes = self._database.wakes
        stops = [
            wakes.listen("desired", self._on_desired),
            wakes.listen("session", self._on_session),
            wakes.listen("revocation", self._on_revocation),
        ]
        try:
            await repeat(self._pass, self._due, _PASS_S, "sessions")
        finally:
            for stop in stops:
                stop()

    def _on_desired(self, node_id: str) -> None:
        session = self._live.get(NodeId(node_id))
        if session is not None:
            session.state_changed()

    def _on_session(self, node_id: str) -> None:
        if NodeId(node_id) in self._live:
            self._suspects.add(NodeId(node_id))
            self._due.set()

    def _on_revocation(self, _: str) -> None:
        self._revoked_due = True
        self._due.set()

    async def _pass(self) -> None:
        self._end_expired()
        self._end_silent()
        try:
            await self._ask_database()
        except StoreUnavailable:
            self.healthy = False
            self._tick_at = 0.0  # look at everything again as soon as it answers
            raise
        self.healthy = True

    async def _ask_database(self) -> None:
        loop_time = asyncio.get_running_loop().time()
        tick = loop_time >= self._tick_at
        if tick:
            self._tick_at = loop_time + self._settings.tick_ms / 1000
            self._counters["ticks"] += 1
        await self.flush()
        await self._end_fenced()
        if tick or self._revoked_due:
            self._revoked_due = False
            await self._end_revoked()
        if tick:
            await self._find_unsent_states()

    def _end_expired(self) -> None:
        now_ms = self._clock()
        for session in tuple(self._live.values()):
            if session.not_after_ms <= now_ms:
                self._end(session, ending.bad_certificate("the certificate has expired"))

    def _end_silent(self) -> None:
        loop_time = asyncio.get_running_loop().time()
        ttl_s = self._settings.heartbeat_ttl_ms / 1000
        for session in tuple(self._live.values()):
            if session.heard_at + ttl_s <= loop_time:
                self._counters["sessions_silent"] += 1
                self._end(session, None)

    def _end(self, session: Session, reason: Ending | None) -> None:
        logger.info(
            "session ended by the gateway",
            extra={
                "node_id": session.node_id,
                "session_epoch": session.epoch,
                "reason": reason.message if reason is not None else "nothing heard within the TTL",
            },
        )
        session.end(reason)

    async def flush(self) -> None:
        """Write the heartbeats and the ends since the last call; what fails is written again."""
        heard = [session for session in self._live.values() if session.heard]
        closed, self._closed = self._closed, []
        if not heard and not closed:
            return
        touched = [(session.node_id, session.epoch) for session in heard]
        for session in heard:
            session.heard = False
        try:
            fenced = await self._database.write(_record, touched, closed)
        except BaseException:
            self._closed += closed
            for session in heard:
                session.heard = True
            raise
        self._suspects.update(fenced)

    async def _end_fenced(self) -> None:
        suspects, self._suspects = self._suspects, set()
        for node_id in sorted(suspects):
            newest = await self._database.read(sessions.get, node_id)
            session = self._live.get(node_id)
            if session is not None and newest is not None and newest.epoch > session.epoch:
                self._end(session, ending.superseded(newest.process_instance))

    async def _end_revoked(self) -> None:
        revoked = await self._database.read(certificates.revoked_serials)
        for session in tuple(self._live.values()):
            if session.serial in revoked:
                self._end(session, ending.bad_certificate("the certificate was revoked"))

    async def _find_unsent_states(self) -> None:
        if not self._live:
            return
        newest = await self._database.read(desired_states.versions)
        for session in self._live.values():
            if newest.get(session.node_id, session.known_state) != session.known_state:
                session.state_changed()


def _record(
    tx: Transaction, touched: list[tuple[NodeId, int]], closed: list[tuple[NodeId, int]]
) -> list[NodeId]:
    fenced = sessions.touch_all(tx, touched)
    sessions.close_all(tx, closed)
    return list(fenced)

"""The real control plane of one history, and what of it can be seen from outside."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bcd.model.caller import Caller
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import Reservation
from bcd.placer.admission.policy import Allowed, Denied
from bcd.placer.api.nodes import NodeCalls
from bcd.placer.pki.authority import Authority
from bcd.store import desired_states
from bcd.store.database import Row, Transaction
from bcd.wire.compute.v1 import admin_pb2
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.desired import decode_desired
from bcd.wire.node.v1 import desired_pb2
from tests.model_trace.recording import Change, Crashed, RecordedDatabase, commits_after
from tests.model_trace.stage import Stage
from tests.placer.world import ALICE, TENANT, World

T = TypeVar("T")


class Complaints(logging.Handler):
    """What the program logged as an error: it goes on after one, a history does not."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() != "report rejected":
            cause = record.exc_info[1] if record.exc_info else ""
            self.heard.append(f"{record.getMessage()} {getattr(record, 'error', '')} {cause!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that the reference compares, from one snapshot."""

    reservations: Mapping[str, Row]
    allocations: Mapping[str, str]
    assigned: Mapping[str, frozenset[str]]
    atoms: Sequence[Row]


@dataclass
class Service:
    """A placer on a recorded database, and a second one on the same."""

    stage: Stage
    authority: Authority
    policy: PoolPolicy
    read_to: int = 0
    complaints: Complaints = field(default_factory=Complaints)

    async def start(self) -> None:
        """An empty control plane with one pool."""
        self.stage.clear()
        self.database: RecordedDatabase = self.stage.open()
        self.world = World(self.database, self.authority)
        await self.world.add_pool(policy=self.policy)
        logging.getLogger("bcd.placer").addHandler(self.complaints)
        self._wire()

    def _wire(self) -> None:
        world = self.world
        self.other = World(self.database, self.authority, world.pool_id, world.policy)

    async def stop(self) -> None:
        """Close the database."""
        logging.getLogger("bcd.placer").removeHandler(self.complaints)
        await self.database.close()

    async def restart(self) -> None:
        """End the process, and start another that remembers nothing of the last."""
        await self.database.close()
        self.database = self.stage.open()
        before = self.world
        self.world = World(
            self.database, self.authority, before.pool_id, before.policy, nodes=before.nodes
        )
        self._wire()

    async def crashing(self, left: int | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work with that many statements left, None for no end; raises Crashed at the end."""
        self.database.fuse.left = left
        try:
            return await work()
        except Crashed:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            with contextlib.suppress(Crashed):
                await asyncio.gather(*rest, return_exceptions=True)
            raise
        finally:
            self.database.fuse.left = None

    async def create(self, caller: Caller, document: Mapping[str, Any], word: str) -> Reservation:
        """Create by the admission path, under a policy that says that word."""
        with self._policy_says(word):
            _, made = await self.world.admission.create(caller, document)
        return made

    @contextlib.contextmanager
    def _policy_says(self, word: str) -> Iterator[None]:
        answers = {"deny": Denied(), "confirm": Denied(confirmable=True)}
        self.world.policy.answer = answers.get(word, Allowed())
        try:
            yield
        finally:
            self.world.policy.answer = Allowed()

    async def end(self, caller: Caller, name: str, reservation_id: str) -> str:
        """Release or cancel; returns the state that was answered."""
        fields = {"tenant_id": TENANT, "reservation_id": reservation_id}
        if name == "release":
            answer = await self.world.calls.release(caller, pb.ReleaseReservationRequest(**fields))
            return answer.reservation.state
        ended = await self.world.calls.cancel(caller, pb.CancelReservationRequest(**fields))
        return ended.reservation.state

    async def renew(self, caller: Caller, reservation_id: str) -> str:
        """Renew a lease; returns the state that was answered."""
        request = pb.RenewReservationRequest(tenant_id=TENANT, reservation_id=reservation_id)
        return (await self.world.calls.renew(caller, request)).reservation.state

    async def extend(
        self, caller: Caller, reservation_id: str, until: int, deny: bool
    ) -> tuple[bool, int]:
        """Extend; returns whether it was, and until when the devices are free if not, or 0."""
        request = pb.ExtendReservationRequest(
            tenant_id=TENANT, reservation_id=reservation_id, until=until, idempotency_key="x"
        )
        with self._policy_says("deny" if deny else ""):
            answer = await self.world.calls.extend(caller, request)
        return answer.extended, answer.available_until

    async def reassign(self, from_owner: str, to_owner: str) -> None:
        """Hand everything of an owner over."""
        request = pb.ReassignReservationsRequest(
            tenant_id=TENANT, from_owner=from_owner, to_owner=to_owner, reason="left"
        )
        await self.world.calls.reassign(replace(ALICE, admin=True), request)

    async def stand(self, node_id: str, change: str) -> None:
        """Change a node's standing as an administrator; ``open`` undoes all of it."""
        calls, admin = NodeCalls(self.database), replace(ALICE, admin=True)
        if change == "drain":
            await calls.drain_node(admin, admin_pb2.DrainNodeRequest(node_id=node_id))
        if change in ("cordon", "open"):
            cordoned = change == "cordon"
            cordon = admin_pb2.CordonNodeRequest(node_id=node_id, cordoned=cordoned)
            await calls.cordon_node(admin, cordon)
        if change in ("distrust", "open"):
            trusted = change == "open"
            await calls.trust_node(
                admin, admin_pb2.TrustNodeRequest(node_id=node_id, trusted=trusted)
            )

    async def changes(self) -> list[list[Change]]:
        """What was committed since the last look."""
        self.read_to, found = await self.database.read(commits_after, self.read_to)
        return found

    async def seen(self) -> Seen:
        """The rows as they are."""
        return await self.database.read(_seen)


def _seen(tx: Transaction) -> Seen:
    assigned = {}
    states = tx.all("SELECT id, state FROM allocations")
    for row in tx.all("SELECT id FROM nodes"):
        stored = desired_states.get(tx, row["id"])
        if stored is not None:
            frame = desired_pb2.SignedDesiredState.FromString(stored.signed)
            entries = decode_desired(frame.envelope.payload).assignments
            assigned[row["id"]] = frozenset(str(entry.allocation_id) for entry in entries)
    return Seen(
        reservations={row["id"]: row for row in map(dict, tx.all("SELECT * FROM reservations"))},
        allocations={row["id"]: row["state"] for row in states},
        assigned=assigned,
        atoms=[dict(row) for row in tx.all("SELECT id, node_id, class, uuid FROM atoms")],
    )

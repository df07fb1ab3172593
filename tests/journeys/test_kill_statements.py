"""A placer killed at each statement, and around each commit, of the operations that change things.

Each operation is done once undisturbed; then again and again, killed one statement later each
time, until it gets through. After a restart and the same call again, everything is as it was
without the kill, and what was acknowledged before is there.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from bcd.placer.pki.state import load_state
from bcd.store.open import open_database
from bcd.wire.compute.v1 import reservations_pb2
from tests.conftest import Rounds
from tests.journeys.records import event_names, overlaps, query, quota_drift
from tests.journeys.system import DOMAIN, TENANT, Client, System, listens, wait_until
from tests.placer.records import Beside
from tests.placer.world import FakeNode, World, dgx

FOR_EVER_MS = 10**9
_QUIET: dict[str, Any] = {"works": [], "left": None}


@dataclass
class Victim:
    """The placer, its fuse, and one node that is never missed."""

    system: System
    fuse: Path
    command: Sequence[str]
    pool_id: str = ""
    node: FakeNode | None = None
    acknowledged: dict[str, str] = field(default_factory=dict)

    def arm(self, works: Sequence[str] = (), left: int | None = None) -> None:
        """Let so many statements of these functions happen."""
        fresh = self.fuse.with_suffix(".new")
        fresh.write_text(json.dumps({"works": list(works), "left": left}))
        fresh.rename(self.fuse)

    def launch(self) -> None:
        """Start a placer."""
        with (self.system.folder / "placer.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip

    def start(self) -> None:
        """Start a placer and wait for its API."""
        self.launch()
        wait_until("the API listens", lambda: listens(self.system.api_port))
        self.client: Client = self.system.client()
        grpc.channel_ready_future(self.client.channel).result(timeout=20)

    def bury(self) -> None:
        """Wait for the end of a placer that kills itself; what it had claimed comes back."""
        assert self.process.wait(timeout=60) == -signal.SIGKILL
        self.client.channel.close()
        beside = Beside(self.system.url)
        if not self.system.url.startswith("sqlite:"):
            wait_until("the server knows", lambda: beside.open_transactions() == 0)
        beside.execute("UPDATE work SET lock_until_ms = 0")

    def kill(self) -> None:
        """End it now."""
        self.process.kill()
        self.bury()

    def state(self, reservation_id: str) -> str:
        """A reservation's state in the database."""
        rows = query(
            self.system.url, f"SELECT state FROM reservations WHERE id = '{reservation_id}'"
        )
        return str(rows[0]["state"]) if rows else ""

    def wait_for(self, reservation_id: str, state: str) -> None:
        """Wait until the placer has brought it there."""
        wait_until(f"it is {state}", lambda: self.state(reservation_id) == state)

    def create(self, key: str, count: int = 2) -> str:
        """Reserve GPUs; what is answered is acknowledged."""
        made = self.client.create(self.pool_id, count, key)
        self.acknowledged[key] = made.id
        return made.id

    def end_all(self) -> None:
        """Release everything, so that there is room."""
        for row in query(
            self.system.url,
            "SELECT id FROM reservations WHERE state IN ('pending', 'placed', 'binding', 'active')",
        ):
            self.client.release(row["id"])

    async def with_world(self, act: Callable[[World], Any]) -> None:
        """Do something to the database while no placer runs."""
        database = open_database(self.system.url)
        world = World(database, load_state(self.system.state, DOMAIN).authority)
        world.pool_id = self.pool_id  # type: ignore[assignment]
        await act(world)
        await database.close()

    async def add_node(self, world: World) -> None:
        """Eight GPUs that are always reachable."""
        self.node = await world.add_node(dgx("a"))
        await world.database.write(
            lambda tx: tx.run("UPDATE sessions SET ttl_ms = :ttl", ttl=FOR_EVER_MS)
        )

    async def report_bound(self, world: World) -> None:
        """The node reports what it is told to hold."""
        assert self.node is not None
        for allocation in await world.held(self.node):
            envelope = self.node.seal(self.node.report(allocation))
            await world.send(self.node, envelope, allocation.id)


@pytest.fixture
def victim(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Victim]:
    url = f"sqlite:///{tmp_path}/placer.db"
    if engine == "postgresql":
        url = request.getfixturevalue("postgresql").new_database()
    system = System(tmp_path, url)
    system.run(*system.placer_launcher, "init", "--config", str(system.placer_file))
    fuse = tmp_path / "fuse"
    fuse.write_text(json.dumps(_QUIET))
    with_gateway = ("--with-gateway",) if engine == "sqlite" else ()
    arguments = ("run", "--config", str(system.placer_file), *with_gateway)
    program = [sys.executable, "-m", "tests.journeys.killable_placer"]
    made = Victim(system, fuse, [*program, str(fuse), *arguments])
    made.start()
    made.pool_id = system.add_pool()
    made.kill()
    asyncio.run(made.with_world(made.add_node))
    made.start()
    yield made
    made.arm()
    made.kill()


@dataclass(frozen=True)
class Operation:
    """What is killed: the functions whose statements count, and how it is done and repeated.

    ``prepare`` gives the reservation that it is about, undisturbed. ``act`` may be answered, or
    break off; ``again`` is what a caller does who got no answer. ``ends`` is the state in the end.
    """

    works: tuple[str, ...]
    prepare: Callable[[Victim, str], str]
    act: Callable[[Victim, str, str], object]
    ends: str


def _nothing(_victim: Victim, _key: str) -> str:
    return ""


def _started(victim: Victim, key: str) -> str:
    made = victim.create(key)
    victim.wait_for(made, "binding")
    return made


def _reported(victim: Victim, key: str) -> str:
    """Bound as its node says, and nobody has looked at that yet."""
    made = _started(victim, key)
    victim.kill()
    asyncio.run(victim.with_world(victim.report_bound))
    return made


def _waiting(victim: Victim, key: str) -> str:
    """Pending, because somebody has the whole node."""
    victim.wait_for(victim.create(f"{key} holds", 8), "binding")
    made = victim.create(key)
    assert victim.state(made) == "pending"
    return made


def _make_room(victim: Victim, key: str, _made: str) -> None:
    victim.client.release(victim.acknowledged[f"{key} holds"])


def _create(victim: Victim, key: str, _made: str) -> None:
    victim.create(key)


def _release(victim: Victim, _key: str, made: str) -> None:
    victim.client.release(made)


def _only_start(_victim: Victim, _key: str, _made: str) -> None:
    """Whoever starts finds the report."""


def _extend(victim: Victim, key: str, made: str) -> None:
    """To an end, so that whoever asks again asks for the same; the slot of the dead comes back."""
    Beside(victim.system.url).execute("DELETE FROM extend_holds")
    end = victim.client.get(made).during.start + 2 * 3_600_000
    request = reservations_pb2.ExtendReservationRequest(
        tenant_id=TENANT, reservation_id=made, until=end, idempotency_key=key
    )
    client = victim.client
    client.reservations.ExtendReservation(request, metadata=client.metadata, timeout=30)


OPERATIONS = {
    "create": Operation(("open_draft", "Admission._settle"), _nothing, _create, "binding"),
    "start": Operation(("Reconciler.reconcile",), _nothing, _create, "binding"),
    "bind": Operation(("judge_node", "Reconciler.reconcile"), _reported, _only_start, "active"),
    "seek": Operation(("retry_pending", "Reconciler.reconcile"), _waiting, _make_room, "binding"),
    "extend": Operation(("_stage", "Extensions._apply"), _started, _extend, "binding"),
    "release": Operation(("ReservationCalls._end",), _started, _release, "released"),
}


def outcome(victim: Victim, reservation_id: str) -> dict[str, Any]:
    """All that remains of a reservation, but for what differs from one to the next."""
    url, mine = victim.system.url, f"WHERE reservation_id = '{reservation_id}'"
    (row,) = query(url, f"SELECT * FROM reservations WHERE id = '{reservation_id}'")
    return {
        "row": {name: row[name] for name in ("state", "operation", "conditions", "attempts")},
        "version": row["version"],
        "length": row["end_ms"] - row["start_ms"] if row["state"] != "released" else 0,
        "events": event_names(url, reservation_id),
        "charges": query(url, f"SELECT resource, amount FROM quota_charges {mine}"),
        "grants": query(url, f"SELECT state FROM allocations {mine}"),
        "devices": len(query(url, f"SELECT id FROM bookings {mine}")),
        "work": len(query(url, f"SELECT key FROM work WHERE key = '{reservation_id}'")),
    }


def once(victim: Victim, operation: Operation, key: str, left: int | None) -> tuple[bool, Any]:
    """Do it with so many statements left; returns whether it was killed, and the outcome."""
    made = operation.prepare(victim, key)
    victim.arm(operation.works, left)
    killed = False
    try:
        if operation.act is _only_start:
            victim.launch()
            victim.client = victim.system.client()
        operation.act(victim, key, made)
        made = made or victim.acknowledged[key]
        killed = not settles(victim, made, operation.ends)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        killed = True
    if killed:
        victim.bury()
        check_acknowledged(victim)
        victim.arm()
        victim.start()
        operation.act(victim, key, made)
        made = made or victim.acknowledged[key]
        victim.wait_for(made, operation.ends)
    victim.arm()
    return killed, outcome(victim, made)


def settles(victim: Victim, reservation_id: str, state: str) -> bool:
    """Wait until it is in that state, or its placer is dead; returns whether it got there."""
    wait_until(
        f"it is {state}, or nobody works",
        lambda: victim.process.poll() is not None or victim.state(reservation_id) == state,
    )
    return victim.process.poll() is None


def check_acknowledged(victim: Victim) -> None:
    """Everything that was answered is there, no longer a draft; and nothing is counted wrongly."""
    for reservation_id in victim.acknowledged.values():
        assert victim.state(reservation_id) not in ("", "draft")
    assert not overlaps(victim.system.url)
    assert not quota_drift(victim.system.url)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_each_statement_it_ends_as_if_it_had_not_been(
    victim: Victim, name: str, rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = OPERATIONS[name]
    _, expected = once(victim, operation, "undisturbed", None)
    assert expected["row"]["state"] == operation.ends
    stride = rounds(3, 1)
    left, killed, kills = 0, True, 0
    while killed:
        victim.end_all()
        killed, found = once(victim, operation, f"k{left}", left)
        assert found == expected, f"killed at statement {left}"
        kills += killed
        left += stride
    with capsys.disabled():
        print(f" {name}: {kills} kills", end="")
    assert kills * stride > 10

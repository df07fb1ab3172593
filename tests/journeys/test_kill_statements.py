"""A placer killed at each statement, and around each commit, of the operations that change things.

Each operation is done once undisturbed; then again and again, killed one statement later each
time, until it gets through. After a restart and the same call again, everything is as it was
without the kill, and what was acknowledged before is there.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.conftest import Rounds
from tests.journeys import killable_placer
from tests.journeys.deeds import key_of, only_start
from tests.journeys.operations import OPERATIONS, Operation, is_done
from tests.journeys.records import overlaps, quota_drift
from tests.journeys.remains import Remains, in_order, is_told, remains_of, told, told_wrongly
from tests.journeys.system import System, wait_until
from tests.journeys.victim import Victim

Outcome = tuple[dict[str, Remains], list[int]]


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    """Placers are forked from one process as long as these tests run."""
    yield
    killable_placer.end_forks()


@pytest.fixture
def victim(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Victim]:
    url = f"sqlite:///{tmp_path}/placer.db"
    if engine == "postgresql":
        url = request.getfixturevalue("postgresql").new_database()
    made = Victim(System(tmp_path, url), with_gateway=engine == "sqlite")
    yield made
    made.arm()
    made.kill()


def once(victim: Victim, operation: Operation, key: str, left: int | None) -> tuple[bool, Outcome]:
    """Do it with so many statements left; returns whether it was killed, and the outcome."""
    url = victim.system.url
    operation.prepare(victim, key)
    before = told(url)
    victim.arm(operation.works, left)
    killed = not survives(victim, operation, key)
    if killed:
        victim.bury()
        check(victim)
        operation.intact(victim, key)
        victim.arm()
        victim.start()
        operation.act(victim, key)
        wait_until("it is done", lambda: is_done(victim, operation, key))
    check(victim)
    operation.intact(victim, key)
    after = told(url)
    remains = {
        word: remains_of(url, victim.acknowledged[key_of(key, word)]) for word in operation.ends
    }
    more = (after[node] - before.get(node, 0) for node in after)
    return killed, (remains, sorted(filter(None, more)))


def survives(victim: Victim, operation: Operation, key: str) -> bool:
    """Do it, and wait until it is done or its placer is dead; returns whether it got there."""
    if operation.act is only_start:
        victim.launch()
    try:
        operation.act(victim, key)
        wait_until("it is done", lambda: victim.is_dead() or is_done(victim, operation, key))
        victim.arm()
        victim.await_api()
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return not victim.is_dead()


def check(victim: Victim) -> None:
    """Everything that was answered is there, no longer a draft; and nothing is counted wrongly."""
    url = victim.system.url
    for reservation_id in victim.acknowledged.values():
        assert victim.state(reservation_id) not in ("", "draft")
    assert not overlaps(url)
    assert not quota_drift(url)
    assert not told_wrongly(url)
    assert in_order(url)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_each_statement_it_ends_as_if_it_had_not_been(
    victim: Victim, name: str, rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = OPERATIONS[name]
    victim.prepare(operation.policy, operation.node_count)
    _, expected = once(victim, operation, "undisturbed", None)
    assert {word: " ".join(one.names) for word, one in expected[0].items()} == operation.ends
    if operation.grants is not None:
        assert expected[0][""].grants == operation.grants
    stride = rounds(operation.stride, 1)
    left, killed, kills = 0, True, 0
    while killed:
        victim.end_all()
        killed, found = once(victim, operation, f"k{left}", left)
        assert found == expected, f"killed at statement {left}"
        kills += killed
        left += stride
    wait_until("every event has its place", lambda: is_told(victim.system.url))
    assert in_order(victim.system.url)
    with capsys.disabled():
        print(f" {name}: {kills} kills", end="")
    assert kills * stride > 10

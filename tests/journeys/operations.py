"""What a placer is killed in: operations that change things, as somebody outside brings them on."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bcd.model.device import HEALTHY, Health, HealthState
from bcd.model.pool import PlacerKind, PoolPolicy
from bcd.model.units import MINUTE_MS
from bcd.placer.pki.join import JoinRequest, mint
from bcd.signing.certificates import make_csr
from bcd.signing.keys import generate_key
from bcd.store import enrolments
from bcd.wire.compute.v1 import reservations_pb2
from bcd.wire.node.v1 import enrollment_pb2
from tests.journeys.records import event_names, query
from tests.journeys.system import TENANT, wait_until
from tests.journeys.victim import Victim
from tests.placer.pki.test_enrolment import joining
from tests.placer.world import World, dgx

_DEFAULT = PoolPolicy()


def _nothing(_victim: Victim, _key: str) -> None:
    pass


def _yes(_victim: Victim, _key: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is killed: the functions whose statements count, and how it is done and repeated.

    It is about the reservations with the key it is given, or that and a word behind it.
    ``prepare`` makes what is needed, undisturbed. ``act`` may be answered, or break off; whoever
    got no answer does it again. ``ends`` are all events in the end, by the word, and ``grants``
    where that matters the allocations: the state, and the how-manieth node it lies on.
    ``done`` says more about that end, and ``intact`` is what must be so right after a kill too.
    """

    works: tuple[str, ...]
    prepare: Callable[[Victim, str], None]
    act: Callable[[Victim, str], None]
    ends: Mapping[str, str]
    grants: Sequence[tuple[str, int]] | None = None
    done: Callable[[Victim, str], bool] = _yes
    intact: Callable[[Victim, str], None] = _nothing
    node_count: int = 1
    policy: PoolPolicy = _DEFAULT
    stride: int = 3


def key_of(key: str, word: str) -> str:
    """The idempotency key of one of an operation's reservations."""
    return f"{key} {word}".strip()


def has_come(victim: Victim, key: str, wanted: str) -> bool:
    """Whether there are as many events of a reservation as that."""
    return len(event_names(victim.system.url, victim.acknowledged[key])) >= len(wanted.split())


def is_done(victim: Victim, operation: Operation, key: str) -> bool:
    """Whether the operation has come to its end."""
    ends = operation.ends.items()
    come = all(has_come(victim, key_of(key, word), wanted) for word, wanted in ends)
    return come and operation.done(victim, key)


def await_events(victim: Victim, key: str, wanted: str) -> None:
    """Wait until there are as many events of a reservation as that."""
    wait_until(wanted, lambda: has_come(victim, key, wanted))


def only_start(_victim: Victim, _key: str) -> None:
    """Whoever starts finds what is to be done."""


def _create(victim: Victim, key: str) -> None:
    victim.create(key)


def _started(victim: Victim, key: str) -> None:
    victim.create(key)
    await_events(victim, key, "placed binding")


def _reported(victim: Victim, key: str) -> None:
    """Bound as its node says, and nobody has looked at that yet."""
    _started(victim, key)
    victim.kill()

    async def report_bound(world: World) -> None:
        (node,) = victim.nodes
        for allocation in await world.held(node):
            await world.send(node, node.seal(node.report(allocation)), allocation.id)

    victim.with_world(report_bound)


def _booked_ahead(victim: Victim, key: str) -> tuple[str, str]:
    """Two members that start soon, no placer running; returns the first one's (node, device)."""
    start_ms = time.time_ns() // 1_000_000 + 10 * MINUTE_MS
    made = victim.create(key, 1, start=start_ms, gang=reservations_pb2.Gang(size=2))
    victim.kill()
    rows = query(
        victim.system.url,
        f"SELECT node_id, devices FROM allocations WHERE reservation_id = '{made}' ORDER BY id",
    )
    ((device, _),) = json.loads(rows[0]["devices"])
    return rows[0]["node_id"], device


def _node_lost(victim: Victim, key: str) -> None:
    """One member's node is silent; the one that was before is back, and seen to be."""
    node_id, _ = _booked_ahead(victim, key)
    victim.bring_back()

    async def look(world: World) -> None:
        for node in victim.nodes:
            await world.judge_reachability(node)

    victim.with_world(look)
    victim.beside.execute(
        f"UPDATE sessions SET ttl_ms = 0, last_seen_ms = 0 WHERE node_id = '{node_id}'"
    )


def _device_lost(victim: Victim, key: str) -> None:
    """One member's device is ill; the one that was before is well again, and seen to be."""
    node_id, ill = _booked_ahead(victim, key)
    broken = Health(HealthState.UNHEALTHY, "Xid 79")

    async def tell(world: World) -> None:
        for node in victim.nodes:
            devices = [replace(device, health=HEALTHY) for device in node.devices]
            await world.send_inventory(node, devices)
            if node.id == node_id:
                sick = [replace(d, health=broken) if d.id == ill else d for d in devices]
                await world.store_inventory(node, sick)

    victim.with_world(tell)


def _waiting(victim: Victim, key: str) -> None:
    """Pending, because somebody has the whole node."""
    holds = key_of(key, "holds")
    victim.create(holds, 8)
    await_events(victim, holds, "placed binding")
    victim.create(key)
    await_events(victim, key, "pending")


def _three_waiting(victim: Victim, key: str) -> None:
    """The pool's placer has looked at three, and they wait for somebody with the whole node."""
    holds = key_of(key, "holds")
    victim.create(holds, 8)
    await_events(victim, holds, "queued placed binding")
    for word in _THREE:
        victim.create(key_of(key, word))
    for word in _THREE:
        await_events(victim, key_of(key, word), "queued pending")


def _all_or_none(victim: Victim, key: str) -> None:
    """One transaction places them all."""
    names = [
        event_names(victim.system.url, victim.acknowledged[key_of(key, word)]) for word in _THREE
    ]
    assert len({"placed" in mine for mine in names}) == 1, names


def _waits_for_a_model(victim: Victim, key: str) -> None:
    """Pending, because no node has such devices; no placer runs."""
    victim.create(key, model=key)
    await_events(victim, key, "pending")
    victim.kill()


def _asks_to_join(victim: Victim, key: str) -> None:
    """A node with a token asked for its certificate, and nobody has answered."""
    _waits_for_a_model(victim, key)

    async def ask(world: World) -> None:
        write = world.database.write
        token = await write(mint, JoinRequest(pool_id=victim.pool_id), world.authority.pin)
        request = joining(token, make_csr(generate_key()))
        assert await write(enrolments.submit, "join", request)

    victim.with_world(ask)


def _answered(victim: Victim, _key: str) -> bool:
    return not query(victim.system.url, "SELECT id FROM enrolments WHERE answered_ms IS NULL")


def _joined_or_not(victim: Victim, _key: str) -> None:
    """The answer, the node, its one certificate and the end of its token: all or nothing."""
    (asked,) = query(
        victim.system.url,
        "SELECT body, answer, refusal FROM enrolments ORDER BY created_ms DESC LIMIT 1",
    )
    request = enrollment_pb2.EnrollRequest.FromString(bytes(asked["body"]))
    rows = query(
        victim.system.url,
        "SELECT t.used_csr, n.trusted, c.der FROM join_tokens t"
        " LEFT JOIN nodes n ON n.id = t.node_id AND n.pool_id = t.pool_id"
        " LEFT JOIN certificates c ON c.subject_id = t.node_id"
        f" WHERE t.id = '{request.token_id}'",
    )
    assert asked["refusal"] is None
    if asked["answer"] is None:
        assert rows == [{"used_csr": None, "trusted": None, "der": None}]
        return
    answer = enrollment_pb2.Credentials.FromString(bytes(asked["answer"]))
    (row,) = rows
    assert row["trusted"] == 1
    assert row["used_csr"] == hashlib.sha256(request.csr).hexdigest()
    assert list(answer.chain) == [bytes(row["der"])]


def _comes(victim: Victim, key: str) -> None:
    """A node that has joined sent its first inventory: what somebody waits for."""
    _waits_for_a_model(victim, key)

    async def come(world: World) -> None:
        node = await world.enrol()
        await world.open_session(node)
        await world.store_inventory(node, [replace(one, model=key) for one in dgx(key)])

    victim.with_world(come)
    victim.bring_back()


def _make_room(victim: Victim, key: str) -> None:
    victim.client.release(victim.acknowledged[key_of(key, "holds")])


def _release(victim: Victim, key: str) -> None:
    victim.client.release(victim.acknowledged[key])


def _extend(victim: Victim, key: str) -> None:
    """To an end, so that whoever asks again asks for the same; the slot of the dead comes back."""
    victim.beside.execute("DELETE FROM extend_holds")
    client, made = victim.client, victim.acknowledged[key]
    end = client.get(made).during.start + 2 * 3_600_000
    request = reservations_pb2.ExtendReservationRequest(
        tenant_id=TENANT, reservation_id=made, until=end, idempotency_key=key
    )
    client.reservations.ExtendReservation(request, metadata=client.metadata, timeout=30)


_THREE = ("one", "two", "three")
# Of two members the lost one moves, to the third node.
_REPAIRED = {"": "placed repaired"}
_MOVED = (("ended", 0), ("booked", 1), ("booked", 2))

OPERATIONS = {
    "create": Operation(
        works=("open_draft", "Admission._settle"),
        prepare=_nothing,
        act=_create,
        ends={"": "placed binding"},
    ),
    "start": Operation(
        works=("Reconciler.reconcile",),
        prepare=_nothing,
        act=_create,
        ends={"": "placed binding"},
    ),
    "bind": Operation(
        works=("judge_node", "Reconciler.reconcile"),
        prepare=_reported,
        act=only_start,
        ends={"": "placed binding active"},
    ),
    "seek": Operation(
        works=("retry_pending", "Reconciler.reconcile"),
        prepare=_waiting,
        act=_make_room,
        ends={"": "pending placed binding", "holds": "placed binding released"},
    ),
    "extend": Operation(
        works=("_stage", "Extensions._apply"),
        prepare=_started,
        act=_extend,
        ends={"": "placed binding extended"},
    ),
    "release": Operation(
        works=("ReservationCalls._end",),
        prepare=_started,
        act=_release,
        ends={"": "placed binding released"},
    ),
    "repair-node": Operation(
        works=("judge", "Reconciler.reconcile"),
        prepare=_node_lost,
        act=only_start,
        ends=_REPAIRED,
        grants=_MOVED,
        node_count=3,
        stride=12,
    ),
    "repair-device": Operation(
        works=("apply_inventory", "Reconciler.reconcile"),
        prepare=_device_lost,
        act=only_start,
        ends=_REPAIRED,
        grants=_MOVED,
        node_count=3,
        stride=12,
    ),
    "batch": Operation(
        works=("retry_pending",),
        prepare=_three_waiting,
        act=_make_room,
        ends={
            "holds": "queued placed binding released",
            **dict.fromkeys(_THREE, "queued pending placed binding"),
        },
        intact=_all_or_none,
        policy=PoolPolicy(placer=PlacerKind.QUEUED),
        stride=12,
    ),
    "join": Operation(
        works=("EnrolmentKeeper._answer_one",),
        prepare=_asks_to_join,
        act=only_start,
        ends={"": "pending"},
        done=_answered,
        intact=_joined_or_not,
        stride=5,
    ),
    "arrive": Operation(
        works=("judge", "apply_inventory", "retry_pending", "Reconciler.reconcile"),
        prepare=_comes,
        act=only_start,
        ends={"": "pending placed binding"},
        stride=25,
    ),
}

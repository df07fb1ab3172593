"""What somebody outside does, or has done while no placer ran, so that a placer has work.

Each is told its victim and a key: it is about the reservations with that key, or that and a word
behind it. What prepares leaves a placer that runs, unless it says otherwise.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace

from bcd.model.device import HEALTHY, Health, HealthState
from bcd.model.report import Failed
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

THREE = ("one", "two", "three")
_SUCCESSOR = "https://issuer|successor"


def key_of(key: str, word: str) -> str:
    """The idempotency key of one of an operation's reservations."""
    return f"{key} {word}".strip()


def events_of(victim: Victim, key: str) -> Sequence[str]:
    """The events of a reservation, whether or not anybody was told that it was made."""
    url = victim.system.url
    rows = query(url, f"SELECT id FROM reservations WHERE idempotency_key = '{key}'")
    return [name for row in rows for name in event_names(url, row["id"])]


def has_come(victim: Victim, key: str, wanted: str) -> bool:
    """Whether there are as many events of a reservation as that."""
    return len(events_of(victim, key)) >= len(wanted.split())


def await_events(victim: Victim, key: str, wanted: str) -> None:
    """Wait until there are as many events of a reservation as that."""
    wait_until(wanted, lambda: has_come(victim, key, wanted))


def only_start(_victim: Victim, _key: str) -> None:
    """Whoever starts finds what is to be done."""


def create(victim: Victim, key: str) -> None:
    """Two GPUs from now on."""
    victim.create(key)


def started(victim: Victim, key: str) -> None:
    """Two GPUs that their node was told to hold."""
    victim.create(key)
    await_events(victim, key, "placed binding")


def reported(victim: Victim, key: str) -> None:
    """Bound as its node says, and nobody has looked at that yet."""
    started(victim, key)
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


def node_lost(victim: Victim, key: str) -> None:
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


def device_lost(victim: Victim, key: str) -> None:
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


def waiting(victim: Victim, key: str) -> None:
    """Pending, because somebody has the whole node."""
    holds = key_of(key, "holds")
    victim.create(holds, 8)
    await_events(victim, holds, "placed binding")
    victim.create(key)
    await_events(victim, key, "pending")


def three_waiting(victim: Victim, key: str) -> None:
    """The pool's placer has looked at three, and they wait for somebody with the whole node."""
    holds = key_of(key, "holds")
    victim.create(holds, 8)
    await_events(victim, holds, "queued placed binding")
    for word in THREE:
        victim.create(key_of(key, word))
    for word in THREE:
        await_events(victim, key_of(key, word), "queued pending")


def _waits_for_a_model(victim: Victim, key: str) -> None:
    """Pending, because no node has such devices; no placer runs."""
    victim.create(key, model=key)
    await_events(victim, key, "pending")
    victim.kill()


def asks_to_join(victim: Victim, key: str) -> None:
    """A node with a token asked for its certificate, and nobody has answered."""
    _waits_for_a_model(victim, key)

    async def ask(world: World) -> None:
        write = world.database.write
        token = await write(mint, JoinRequest(pool_id=victim.pool_id), world.authority.pin)
        request = joining(token, make_csr(generate_key()))
        assert await write(enrolments.submit, "join", request)

    victim.with_world(ask)


def answered(victim: Victim, _key: str) -> bool:
    """Whether nobody waits for a certificate."""
    return not query(victim.system.url, "SELECT id FROM enrolments WHERE answered_ms IS NULL")


def joined_or_not(victim: Victim, _key: str) -> None:
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


def comes(victim: Victim, key: str) -> None:
    """A node that joined and connected before sent its first inventory: what somebody waits for.

    Had it come later, how often somebody looked at the one that waits would be a matter of luck.
    """
    victim.kill()

    async def connect(world: World) -> None:
        node = await world.enrol()
        await world.connect(node)
        victim.nodes.append(node)

    victim.with_world(connect)
    victim.bring_back()
    victim.start()
    _waits_for_a_model(victim, key)

    async def tell(world: World) -> None:
        devices = [replace(one, model=key) for one in dgx(key)]
        await world.store_inventory(victim.nodes[-1], devices)

    victim.with_world(tell)


def spot_has_it(victim: Victim, key: str) -> None:
    """Somebody has the whole node, and yields to whoever has not asked for that."""
    holds = key_of(key, "holds")
    victim.create(holds, 8, spot=True)
    await_events(victim, holds, "placed binding")


def failed(victim: Victim, key: str) -> None:
    """The node could not bind it, and nobody has looked at that yet."""
    started(victim, key)
    victim.kill()

    async def report_failed(world: World) -> None:
        for node in victim.nodes:
            for allocation in await world.held(node):
                report = node.report(allocation, Failed("device-busy"))
                await world.send(node, node.seal(report), allocation.id)

    victim.with_world(report_failed)


def hand_over(victim: Victim, key: str) -> None:
    """Both, what runs and what waits, to a successor."""
    owner = victim.client.get(victim.acknowledged[key]).owner_identity_id
    if owner == _SUCCESSOR:
        return
    request = reservations_pb2.ReassignReservationsRequest(
        tenant_id=TENANT, from_owner=owner, to_owner=_SUCCESSOR, reason="left"
    )
    admin = victim.system.client(admin=True)
    with admin.channel:
        admin.reservations.ReassignReservations(request, metadata=admin.metadata, timeout=30)


def make_room(victim: Victim, key: str) -> None:
    """Whoever has the whole node gives it back."""
    victim.client.release(victim.acknowledged[key_of(key, "holds")])


def release(victim: Victim, key: str) -> None:
    """Give it back."""
    victim.client.release(victim.acknowledged[key])


def extend(victim: Victim, key: str) -> None:
    """To an end, so that whoever asks again asks for the same; the slot of the dead comes back."""
    victim.beside.execute("DELETE FROM extend_holds")
    client, made = victim.client, victim.acknowledged[key]
    end = client.get(made).during.start + 2 * 3_600_000
    request = reservations_pb2.ExtendReservationRequest(
        tenant_id=TENANT, reservation_id=made, until=end, idempotency_key=key
    )
    client.reservations.ExtendReservation(request, metadata=client.metadata, timeout=30)

"""What the placer looks after in the background."""

from pathlib import Path

import pytest

from bcd.model.errors import AccessDenied, ConfirmationRequired, Conflict, QuotaExceeded
from bcd.placer.admission.create import draft_of, open_draft
from bcd.placer.admission.policy import Allowed, Denied
from bcd.placer.admission.request import parse_create
from bcd.placer.admission.unused import LIMIT
from bcd.placer.pki.command import CommandSigner
from bcd.placer.pki.own import OwnCredentials
from bcd.placer.upkeep import Upkeep
from bcd.signing.certificates import Role
from bcd.store import control, desired_states, enrolments
from bcd.wire.desired import decode_desired
from bcd.wire.node.v1 import desired_pb2
from tests.clock import DatabaseClock
from tests.placer.admission.test_unused import fill
from tests.placer.records import count
from tests.placer.world import ALICE, TENANT, FakeNode, World, dgx

DAY_MS = 86_400_000


@pytest.fixture
def upkeep(world: World, tmp_path: Path) -> Upkeep:
    command = OwnCredentials(tmp_path / "c", world.authority, (Role.COMMAND, "placer"), ())
    api = OwnCredentials(tmp_path / "a", world.authority, (Role.PLACER, "placer"), ("localhost",))
    return Upkeep(world.database, world.signer, command, api)


async def version(world: World, node: FakeNode) -> tuple[int, int]:
    stored = await world.database.read(desired_states.get, node.id)
    assert stored is not None
    frame = desired_pb2.SignedDesiredState.FromString(stored.signed)
    assert frame.envelope.key_id == stored.key_id
    state = decode_desired(frame.envelope.payload)
    assert state.version == (stored.epoch, stored.generation)
    return state.version


async def signers(world: World, nodes: list[FakeNode]) -> set[str]:
    """The keys that signed the nodes' states."""
    found = [await world.database.read(desired_states.get, node.id) for node in nodes]
    return {state.key_id for state in found if state is not None}


async def test_a_state_is_signed_again_while_its_old_key_still_holds(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    clock.advance(0)
    nodes = [await world.add_node(dgx(name)) for name in "abc"]
    for number in range(3):
        await world.create(8, key=f"{number}")
    await world.work()
    old_key = world.signer.key_id
    held = [await world.assigned(node) for node in nodes]
    await upkeep.pass_once()
    first_key = world.signer.key_id
    assert first_key != old_key
    assert await signers(world, nodes) == {first_key}
    assert [await version(world, node) for node in nodes] == [(1, 2)] * 3
    assert [await world.assigned(node) for node in nodes] == held
    await upkeep.pass_once()
    assert [await version(world, node) for node in nodes] == [(1, 2)] * 3
    clock.advance(46 * DAY_MS)
    await upkeep.pass_once()
    assert world.signer.key_id != first_key
    assert await signers(world, nodes) == {first_key}  # good for another 44 days
    clock.advance(15 * DAY_MS)
    await upkeep.pass_once()
    assert [await version(world, node) for node in nodes] == [(1, 3)] * 3
    assert await signers(world, nodes) == {world.signer.key_id}


async def test_another_placers_fresh_key_is_left_alone(
    world: World, upkeep: Upkeep, tmp_path: Path
) -> None:
    node = await world.add_node(dgx("a"))
    await world.active(node)
    await upkeep.pass_once()
    command = OwnCredentials(tmp_path / "d", world.authority, (Role.COMMAND, "other"), ())
    api = OwnCredentials(tmp_path / "b", world.authority, (Role.PLACER, "other"), ("localhost",))
    credentials, _ = world.authority.credentials_for((Role.COMMAND, "other"), 0)
    other = Upkeep(world.database, CommandSigner(credentials), command, api)
    before = await version(world, node)
    for one in (other, upkeep, other):
        await one.pass_once()
    assert await version(world, node) == before


async def test_a_raised_epoch_signs_every_state_again(world: World, upkeep: Upkeep) -> None:
    node = await world.add_node(dgx("a"))
    await world.active(node)
    await upkeep.pass_once()
    generation = (await version(world, node))[1]
    await world.database.write(control.raise_epoch)
    await upkeep.pass_once()
    assert await version(world, node) == (2, generation + 1)


async def test_more_nodes_than_one_transaction_signs_are_all_signed(
    world: World, upkeep: Upkeep
) -> None:
    await upkeep.pass_once()
    nodes = [await world.add_node(dgx(f"n{i}", 1)) for i in range(70)]
    for number in range(70):
        await world.create(1, key=f"{number}")
    await world.work()
    await world.database.write(control.raise_epoch)
    await upkeep.pass_once()
    assert {await version(world, node) for node in nodes} == {(2, 2)}


async def test_drafts_that_were_never_decided_go_after_a_day(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.grant("gpu", 1)
    kept = await world.create(1, key="kept")
    with pytest.raises(QuotaExceeded):
        await world.create(2, key="draft")
    clock.advance(DAY_MS)
    await upkeep.pass_once()
    assert await count(world.database, "SELECT count(*) FROM reservations") == 2
    clock.advance(1)
    await upkeep.pass_once()
    (row,) = await world.rows("SELECT id FROM reservations")
    assert row["id"] == kept.id
    await world.grant("gpu", 3)
    assert (await world.create(2, key="draft")).version == 2


async def test_drafts_of_calls_that_ended_undecided_are_bounded_too(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    """A caller that goes away before the answer leaves a draft that nobody counted."""
    clock.advance(0)
    await world.grant("gpu", 0)
    with pytest.raises(QuotaExceeded):
        await world.create(1, key="first")
    await fill(world)
    clock.advance(1)
    asked = parse_create(world.document(1, "left")).request
    await world.database.write(open_draft, draft_of(ALICE, TENANT, asked, "left"))
    for ms, left in ((60_000, LIMIT + 1), (1, LIMIT)):
        clock.advance(ms)
        await upkeep.pass_once()
        assert await count(world.database, "SELECT count(*) FROM reservations") == left
    with pytest.raises(QuotaExceeded) as error:
        await world.create(1, key="first")
    assert error.value.details["resource"] == "gpu"


async def test_what_was_denied_goes_after_a_week_and_its_key_stays_refused(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    world.policy.answer = Denied()
    with pytest.raises(AccessDenied) as first:
        await world.create(1)
    world.policy.answer = Allowed()
    kept = await world.create(1, key="kept")
    for ms, left in ((7 * DAY_MS, 2), (1, 2), (0, 1)):
        clock.advance(ms)
        await upkeep.pass_once()
        assert await count(world.database, "SELECT count(*) FROM reservations") == left
        for dry_run in (False, True):
            with pytest.raises(AccessDenied) as again:
                await world.create(1, dryRun=dry_run)
            assert again.value.details == {**first.value.details, "caps": ""}
        with pytest.raises(Conflict) as other:
            await world.create(2)
        assert other.value.details == {"reservationId": first.value.details["reservationId"]}
    (row,) = await world.rows("SELECT id FROM reservations")
    assert row["id"] == kept.id


async def test_what_a_person_rejected_is_kept(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    clock.advance(0)
    world.policy.answer = Denied(confirmable=True)
    with pytest.raises(ConfirmationRequired):
        await world.create(1)
    world.policy.answer = Denied()
    with pytest.raises(AccessDenied):
        await world.create(1)
    clock.advance(8 * DAY_MS)
    for _ in range(2):
        await upkeep.pass_once()
    assert await count(world.database, "SELECT count(*) FROM reservations") == 1


async def test_reports_go_a_week_after_they_were_judged_and_enrolments_after_minutes(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    clock.advance(0)
    node = await world.add_node(dgx("a"))
    active = await world.active(node, duration="30d")
    await world.database.write(enrolments.submit, "join", b"x")
    clock.advance(10 * 60_000)
    await upkeep.pass_once()
    assert await count(world.database, "SELECT count(*) FROM enrolments") == 1
    clock.advance(7 * DAY_MS - 10 * 60_000)
    await upkeep.pass_once()
    assert await count(world.database, "SELECT count(*) FROM reports") == 1
    clock.advance(1)
    await upkeep.pass_once()
    assert await count(world.database, "SELECT count(*) FROM reports") == 0
    assert await count(world.database, "SELECT count(*) FROM enrolments") == 0
    assert (await world.view(active.id)).bindings == active.bindings


async def test_certificates_go_when_nobody_would_take_them_any_more(
    world: World, upkeep: Upkeep, clock: DatabaseClock
) -> None:
    clock.advance(0)
    await world.add_node(dgx("a"))
    for days, left in ((8, 1), (2, 0)):
        clock.advance(days * DAY_MS)
        await upkeep.pass_once()
        found = await count(world.database, "SELECT count(*) FROM certificates WHERE role = 'node'")
        assert found == left

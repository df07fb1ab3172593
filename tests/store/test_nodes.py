"""Nodes, their labels, inventories, atoms and desired states; events and the control epoch."""

from dataclasses import replace

import pytest

from bcd.model.device import DeviceClass
from bcd.model.errors import NotFound
from bcd.model.ids import NodeId
from bcd.model.reservation import Condition
from bcd.store import (
    atoms,
    certificates,
    control,
    desired_states,
    events,
    inventories,
    nodes,
    sessions,
)
from bcd.store.certificates import IssuedCertificate
from bcd.store.database import Database, Transaction
from bcd.store.desired_states import StoredState
from bcd.store.nodes import AppliedInventory
from tests.store.test_sessions import opening
from tests.store.world import facts, make_node, make_pool


async def new_node(database: Database) -> NodeId:
    pool_id = await database.write(make_pool)
    return await database.write(make_node, pool_id)


async def test_a_node_is_ready_from_its_first_applied_inventory_on(database: Database) -> None:
    node_id = await new_node(database)
    before = await database.read(nodes.get, node_id)
    assert (before.ready, before.trusted, before.cordoned, before.reachable) == (
        False, True, False, False,
    )  # fmt: skip
    condition = Condition(
        type="CpuList", status="True", reason="Bad", message="m", last_transition_time=1
    )
    applied = AppliedInventory(
        inventory_hash="aa", hostname="h", driver_version="550", conditions=(condition,)
    )
    await database.write(nodes.apply_inventory, node_id, applied)
    after = await database.read(nodes.get, node_id)
    assert after == replace(
        before,
        ready=True,
        inventory_hash="aa",
        hostname="h",
        driver_version="550",
        conditions=(condition,),
    )


async def test_a_node_that_joins_again_keeps_its_rows(database: Database) -> None:
    node_id = await new_node(database)
    pool_id = (await database.read(nodes.get, node_id)).pool_id
    await database.write(nodes.set_cordoned, node_id, True)
    await database.write(lambda tx: nodes.enrol(tx, node_id, pool_id, "node-tenant", trusted=False))
    node = await database.read(nodes.get, node_id)
    assert (node.role, node.trusted, node.cordoned) == ("node-tenant", False, True)


async def test_a_node_that_is_not_there_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound):
        await database.read(nodes.get, NodeId("node_none"))
    with pytest.raises(NotFound):
        await database.write(nodes.set_cordoned, NodeId("node_none"), True)


async def test_the_verdict_on_reachability_says_whether_it_changed(database: Database) -> None:
    node_id = await new_node(database)
    changes = [
        await database.write(nodes.set_reachable, node_id, value)
        for value in (False, True, True, False)
    ]
    assert changes == [False, True, False, True]


async def test_only_system_labels_count_and_capabilities_leave_others_alone(
    database: Database,
) -> None:
    node_id = await new_node(database)

    def label(tx: Transaction, key: str, source: str) -> None:
        tx.run(
            "INSERT INTO node_labels (node_id, key, value, source)"
            " VALUES (:id, :key, 'v', :source)",
            id=node_id,
            key=key,
            source=source,
        )

    for key, source in (("rack", "operator"), ("bc.dev/cap.x", "operator"), ("bc.dev/y", "system")):
        await database.write(label, key, source)
    for names in (("a", "b"), ("b", "c"), ()):
        await database.write(nodes.replace_capabilities, node_id, names)
        expected = {"bc.dev/y"} | {f"bc.dev/cap.{name}" for name in names}
        assert await database.read(nodes.system_labels, [node_id]) == {node_id: expected}
    assert await database.read(nodes.labels, node_id) == [
        ("bc.dev/cap.x", "v", "operator"),
        ("bc.dev/y", "v", "system"),
        ("rack", "v", "operator"),
    ]


async def test_an_inventory_is_stored_by_the_current_session_only(database: Database) -> None:
    node_id = await new_node(database)
    old = await database.write(sessions.open_session, opening(node_id))
    new = await database.write(sessions.open_session, opening(node_id, "two"))
    assert await database.write(inventories.store, node_id, old, "aa", b"old") is False
    assert await database.read(inventories.body, node_id) is None
    assert await database.read(inventories.stored_hash, node_id) == ""
    for content in ("bb", "cc"):
        assert await database.write(inventories.store, node_id, new, content, b"\0new") is True
    assert await database.read(inventories.body, node_id) == ("cc", b"\0new")


async def test_an_inventory_is_unapplied_until_the_node_carries_its_hash(
    database: Database,
) -> None:
    node_id = await new_node(database)
    epoch = await database.write(sessions.open_session, opening(node_id))
    await database.write(inventories.store, node_id, epoch, "aa", b"x")
    assert list(await database.read(inventories.unapplied)) == [node_id]
    applied = AppliedInventory(inventory_hash="aa", hostname="", driver_version="", conditions=())
    await database.write(nodes.apply_inventory, node_id, applied)
    assert list(await database.read(inventories.unapplied)) == []
    await database.write(inventories.store, node_id, epoch, "bb", b"x")
    assert list(await database.read(inventories.unapplied)) == [node_id]


async def test_atoms_follow_the_inventory_and_no_gpu_is_forgotten(database: Database) -> None:
    node_id = await new_node(database)
    mig = facts("MIG-0", DeviceClass.MIG, "GPU-0")
    await database.write(atoms.sync, node_id, [facts("GPU-0"), facts("GPU-1"), mig])
    before = {atom.uuid: atom for atom in await database.read(atoms.on_node, node_id)}
    assert before["MIG-0"].gpu_id == before["GPU-0"].gpu_id != before["GPU-1"].gpu_id
    assert (before["GPU-0"].mode, before["MIG-0"].mode) == (0, 1)
    sick = replace(facts("GPU-0"), bookable=False, health="unhealthy", health_reason="Xid 79")
    await database.write(atoms.sync, node_id, [sick, facts("GPU-2")])
    after = {atom.uuid: atom for atom in await database.read(atoms.on_node, node_id)}
    assert {uuid: atom.bookable for uuid, atom in after.items()} == {
        "GPU-0": False, "GPU-1": False, "GPU-2": True,
    }  # fmt: skip
    assert all(after[uuid].id == before[uuid].id for uuid in ("GPU-0", "GPU-1"))
    assert (after["GPU-0"].health, after["GPU-0"].health_reason) == ("unhealthy", "Xid 79")
    assert after["GPU-1"].health == "unknown"


async def test_an_inventory_that_says_what_is_on_record_is_only_read(database: Database) -> None:
    """Also beside a device that vanished before: a placer that starts looks at every node."""
    node_id = await new_node(database)
    await database.write(atoms.sync, node_id, [facts("GPU-0"), facts("GPU-1"), facts("GPU-2")])
    known = [facts("GPU-0"), facts("GPU-1")]
    await database.write(atoms.sync, node_id, known)
    await database.read(atoms.sync, node_id, known)  # where nothing can be written
    for changed in (
        [facts("GPU-0")],
        [*known, facts("GPU-2")],
        [facts("GPU-0"), replace(facts("GPU-1"), memory_bytes=1)],
    ):
        with pytest.raises(Exception, match=r"read.?only"):
            await database.read(atoms.sync, node_id, changed)


def state(node_id: NodeId, generation: int, epoch: int = 1, key_id: str = "key") -> StoredState:
    return StoredState(
        node_id=node_id,
        epoch=epoch,
        generation=generation,
        hash=f"hash{generation}",
        key_id=key_id,
        signed=b"\0signed",
    )


async def test_the_newest_desired_state_replaces_the_older(database: Database) -> None:
    node_id = await new_node(database)
    assert await database.read(desired_states.get, node_id) is None
    assert await database.write(desired_states.newest_version, node_id) == (1, 0)
    for generation in (1, 2):
        await database.write(desired_states.save, state(node_id, generation))
    assert await database.read(desired_states.get, node_id) == state(node_id, 2)
    assert await database.write(desired_states.newest_version, node_id) == (1, 2)
    assert await database.read(desired_states.versions) == {node_id: (1, 2, "hash2")}


async def test_states_whose_signature_will_not_hold_are_found(database: Database) -> None:
    """Of another epoch, or of a key whose certificate ends soon, is revoked or is not known."""
    pool_id = await database.write(make_pool)
    ids = [await database.write(make_node, pool_id) for _ in range(6)]
    for key_id, not_after_ms in (("fresh", 200), ("other", 150), ("ending", 100), ("gone", 200)):
        issued = IssuedCertificate(
            serial=key_id,
            role="command",
            subject_id=f"placer-{key_id}",
            key_id=key_id,
            der=b"",
            not_after_ms=not_after_ms,
        )
        await database.write(certificates.record, issued)
    await database.write(certificates.revoke_subject, "placer-gone", "lost")
    keys = ("fresh", "other", "ending", "gone", "unknown")
    for node_id, key_id in zip(ids[:5], keys, strict=True):
        await database.write(desired_states.save, state(node_id, 1, key_id=key_id))
    await database.write(desired_states.save, state(ids[5], 1, epoch=2, key_id="fresh"))
    found = await database.read(desired_states.signed_stale, 1, 100)
    assert list(found) == sorted(ids[2:])


async def test_the_control_epoch_only_grows(database: Database) -> None:
    assert await database.read(control.epoch) == 1
    assert await database.write(control.raise_epoch) == 2
    assert await database.read(control.epoch) == 2


async def test_events_of_a_subject_come_in_order(database: Database) -> None:
    def emit(tx: Transaction, number: int) -> None:
        events.emit(tx, "reservation/a", f"reservation.{number}", {"number": number})
        events.emit(tx, "reservation/b", "reservation.other", {})

    for number in range(5):
        await database.write(emit, number)
    found = await database.read(events.of_subject, "reservation/a")
    assert [(event.type, event.data["number"]) for event in found] == [
        (f"reservation.{number}", number) for number in range(5)
    ]

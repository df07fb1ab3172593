"""Which node each physical GPU is booked on: the first that reported it, and no other.

A machine that joined again under another id, or a copied identity, reports GPUs that another node
has already. Its devices are there, and wait: one GPU must not be sold twice. However silent the
first is, only its removal, or an inventory of its own without the GPU, lets others have it, once
nothing is booked there any more. A node's rows here are written under its own pool's lock alone.
"""

from collections.abc import Collection, Mapping, Sequence

from bcd.model.ids import NodeId
from bcd.store.database import Transaction

WITHHELD = "another node has this GPU"
# Whether the GPU {uuid} is booked on a node, now or later; for maintenance it is for nobody.
_BOOKED = (
    "EXISTS (SELECT 1 FROM bookings b JOIN gpus g ON g.id = b.gpu_id"
    " JOIN reservations r ON r.id = b.reservation_id WHERE b.node_id = {node_id}"
    " AND b.end_ms > :now_ms AND g.uuid = {uuid} AND r.kind = 'reservation')"
)


def follow(
    tx: Transaction,
    node_id: NodeId,
    reported: Collection[str],
    now_ms: int,
    *,
    trusted: bool,
) -> Mapping[str, NodeId]:
    """Claim the GPUs that a node's inventory has, and let go of those that it has no more.

    Returns which of the reported UUIDs another node has, with that node; empty for what a node
    that is not ``trusted`` may not have although nobody has it. One that the node does not report
    stays its own while it is booked there. Call under the pool's lock, in the transaction that
    applies the inventory. Nodes of other pools take theirs at the same time: the key decides, and
    everybody goes by ascending UUID, so that no two wait for each other.
    """
    mine = {
        row["uuid"]: bool(row["leaving"])
        for row in tx.all("SELECT uuid, leaving FROM gpu_claims WHERE node_id = :id", id=node_id)
    }
    elsewhere: dict[str, NodeId] = {}
    for uuid in sorted({*reported, *mine}):
        if uuid not in reported:
            _leave(tx, node_id, uuid, now_ms)
        elif mine.get(uuid, True):
            may_have = trusted or uuid in mine
            holder = _claim(tx, node_id, uuid) if may_have else _holder(tx, uuid)
            if holder != node_id:
                elsewhere[uuid] = holder
    _wait_for(tx, node_id, elsewhere)
    return elsewhere


def _holder(tx: Transaction, uuid: str) -> NodeId:
    row = tx.one("SELECT node_id FROM gpu_claims WHERE uuid = :uuid", uuid=uuid)
    return NodeId("" if row is None else row["node_id"])


def _claim(tx: Transaction, node_id: NodeId, uuid: str) -> NodeId:
    """Who has the GPU from now on."""
    row = tx.one(
        "INSERT INTO gpu_claims (uuid, node_id) VALUES (:uuid, :node_id)"
        " ON CONFLICT (uuid) DO UPDATE SET leaving ="
        " CASE WHEN gpu_claims.node_id = excluded.node_id THEN 0 ELSE gpu_claims.leaving END"
        " RETURNING node_id",
        uuid=uuid,
        node_id=node_id,
    )
    assert row is not None
    return NodeId(row["node_id"])


def let_go_of_ended(tx: Transaction, node_id: NodeId, now_ms: int) -> None:
    """Let go of the GPUs that a node reports no more and that are booked there no more."""
    rows = tx.all(
        "SELECT uuid FROM gpu_claims WHERE node_id = :node_id AND leaving = 1", node_id=node_id
    )
    for uuid in sorted(row["uuid"] for row in rows):
        _leave(tx, node_id, uuid, now_ms)


def _leave(tx: Transaction, node_id: NodeId, uuid: str, now_ms: int) -> None:
    booked = _BOOKED.format(node_id=":node_id", uuid=":uuid")
    kept = tx.run(
        f"UPDATE gpu_claims SET leaving = 1 WHERE uuid = :uuid AND node_id = :node_id AND {booked}",
        node_id=node_id,
        uuid=uuid,
        now_ms=now_ms,
    )
    if not kept:
        _let_go(tx, node_id, uuid)


def _let_go(tx: Transaction, node_id: NodeId, uuid: str) -> None:
    tx.run(
        "DELETE FROM gpu_claims WHERE uuid = :uuid AND node_id = :node_id",
        uuid=uuid,
        node_id=node_id,
    )
    for row in tx.all("SELECT node_id FROM gpu_waits WHERE uuid = :uuid", uuid=uuid):
        tx.wake("inventory", row["node_id"])


def _wait_for(tx: Transaction, node_id: NodeId, elsewhere: Mapping[str, NodeId]) -> None:
    if waited_for(tx, node_id) == elsewhere:
        return
    tx.run("DELETE FROM gpu_waits WHERE node_id = :node_id", node_id=node_id)
    tx.many(
        "INSERT INTO gpu_waits (node_id, uuid, holder) VALUES (:node_id, :uuid, :holder)",
        [
            {"node_id": node_id, "uuid": uuid, "holder": holder}
            for uuid, holder in elsewhere.items()
        ],
    )


def waited_for(tx: Transaction, node_id: NodeId) -> Mapping[str, NodeId]:
    """GPUs that the node's applied inventory has and may not book, with who has each.

    Nobody, an empty id, where it is not trusted with a GPU that is free.
    """
    rows = tx.all("SELECT uuid, holder FROM gpu_waits WHERE node_id = :id", id=node_id)
    return {row["uuid"]: NodeId(row["holder"]) for row in rows}


def due(tx: Transaction, now_ms: int) -> Sequence[NodeId]:
    """Nodes whose claims are not as they should be any more, by id.

    What one waits for is free or somebody else's now, where it is trusted and there to take it; or
    what one lets go of is booked no more.
    """
    booked = _BOOKED.format(node_id="c.node_id", uuid="c.uuid")
    rows = tx.all(
        "SELECT w.node_id FROM gpu_waits w JOIN nodes n ON n.id = w.node_id"
        " LEFT JOIN gpu_claims c ON c.uuid = w.uuid WHERE n.trusted = 1 AND n.reachable = 1"
        " AND (c.node_id IS NULL OR c.node_id <> w.holder) UNION "
        f"SELECT c.node_id FROM gpu_claims c WHERE c.leaving = 1 AND NOT {booked}"
        " ORDER BY node_id",
        now_ms=now_ms,
    )
    return [NodeId(row["node_id"]) for row in rows]


def free(tx: Transaction, node_id: NodeId) -> None:
    """Let go of everything that a node has or waits for, and wake those who wait for it."""
    rows = tx.all("SELECT uuid FROM gpu_claims WHERE node_id = :node_id", node_id=node_id)
    for uuid in sorted(row["uuid"] for row in rows):
        _let_go(tx, node_id, uuid)
    tx.run("DELETE FROM gpu_waits WHERE node_id = :node_id", node_id=node_id)

"""Which node each physical GPU is booked on: the first that reported it, and no other.

A machine that joined again under another id, or a copied identity, reports GPUs that another node
has already. Its devices are there, and wait: one GPU must not be sold twice. A node that is silent
or distrusted gives way to one that is neither, but for what it has handed out.
"""

from collections.abc import Collection, Mapping, Sequence

from bcd.model.ids import NodeId
from bcd.store.database import Transaction

WITHHELD = "another node has this GPU"
# What a node has handed out, or is handing out, of the GPU {uuid}. Windows that are still to come
# are repaired onto whoever has the GPU by then, and maintenance hands nothing out.
_HANDED_OUT = (
    "EXISTS (SELECT 1 FROM bookings b JOIN gpus g ON g.id = b.gpu_id"
    " JOIN reservations r ON r.id = b.reservation_id WHERE b.node_id = {node_id}"
    " AND b.end_ms > :now_ms AND g.uuid = {uuid} AND r.state IN ('binding', 'active')"
    " AND r.kind = 'reservation')"
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
    stays its own while it has that handed out. Call under the pool's lock, in the transaction that
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
            holder = _claim(tx, node_id, uuid, now_ms) if may_have else _holder(tx, uuid)
            if holder != node_id:
                elsewhere[uuid] = holder
    _wait_for(tx, node_id, elsewhere)
    return elsewhere


def _holder(tx: Transaction, uuid: str) -> NodeId:
    row = tx.one("SELECT node_id FROM gpu_claims WHERE uuid = :uuid", uuid=uuid)
    return NodeId("" if row is None else row["node_id"])


def _claim(tx: Transaction, node_id: NodeId, uuid: str, now_ms: int) -> NodeId:
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
    holder = NodeId(row["node_id"])
    if holder != node_id and _gives_way(tx, holder, uuid, now_ms):
        _take_over(tx, node_id, holder, uuid)
        return node_id
    return holder


def _gives_way(tx: Transaction, holder: NodeId, uuid: str, now_ms: int) -> bool:
    """Whether a node is silent or distrusted, and has not handed the GPU out.

    The row is locked: whoever finds it back waits, and sees then what it has lost.
    """
    row = tx.one(f"SELECT reachable, trusted FROM nodes WHERE id = :id{tx.for_update}", id=holder)
    if row is None or (row["reachable"] and row["trusted"]):
        return False
    handed_out = _HANDED_OUT.format(node_id=":node_id", uuid=":uuid")
    found = tx.one(
        f"SELECT CASE WHEN {handed_out} THEN 1 ELSE 0 END AS found",
        node_id=holder,
        uuid=uuid,
        now_ms=now_ms,
    )
    assert found is not None
    return not found["found"]


def _take_over(tx: Transaction, node_id: NodeId, holder: NodeId, uuid: str) -> None:
    """Take a GPU from a node that takes no bookings now; nothing on it does when it is back.

    It is told whose it is once it is: it is due then, as it waits for nobody in particular.
    """
    tx.run(
        "UPDATE gpu_claims SET node_id = :node_id, leaving = 0 WHERE uuid = :uuid",
        node_id=node_id,
        uuid=uuid,
    )
    tx.run(
        "INSERT INTO gpu_waits (node_id, uuid, holder) VALUES (:holder, :uuid, '')"
        " ON CONFLICT (node_id, uuid) DO UPDATE SET holder = excluded.holder",
        uuid=uuid,
        holder=holder,
    )
    tx.run(
        "UPDATE atoms SET bookable = 0, health = 'unknown', health_reason = :reason"
        " WHERE gpu_id IN (SELECT id FROM gpus WHERE node_id = :holder AND uuid = :uuid)",
        reason=WITHHELD,
        holder=holder,
        uuid=uuid,
    )


def let_go_of_ended(tx: Transaction, node_id: NodeId, now_ms: int) -> None:
    """Let go of the GPUs that a node reports no more and has not handed out any more."""
    rows = tx.all(
        "SELECT uuid FROM gpu_claims WHERE node_id = :node_id AND leaving = 1", node_id=node_id
    )
    for uuid in sorted(row["uuid"] for row in rows):
        _leave(tx, node_id, uuid, now_ms)


def _leave(tx: Transaction, node_id: NodeId, uuid: str, now_ms: int) -> None:
    handed_out = _HANDED_OUT.format(node_id=":node_id", uuid=":uuid")
    kept = tx.run(
        f"UPDATE gpu_claims SET leaving = 1 WHERE uuid = :uuid AND {handed_out}",
        node_id=node_id,
        uuid=uuid,
        now_ms=now_ms,
    )
    if not kept:
        _let_go(tx, uuid)


def _let_go(tx: Transaction, uuid: str) -> None:
    tx.run("DELETE FROM gpu_claims WHERE uuid = :uuid", uuid=uuid)
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

    What one waits for is free, somebody else's or given way now, where it is trusted and there to
    take it; or what one lets go of is handed out no more.
    """
    handed_out = _HANDED_OUT.format(node_id="c.node_id", uuid="c.uuid")
    rows = tx.all(
        "SELECT w.node_id FROM gpu_waits w JOIN nodes n ON n.id = w.node_id"
        " LEFT JOIN gpu_claims c ON c.uuid = w.uuid LEFT JOIN nodes h ON h.id = c.node_id"
        " WHERE n.trusted = 1 AND n.reachable = 1 AND (c.node_id IS NULL OR c.node_id <> w.holder"
        f" OR ((h.reachable = 0 OR h.trusted = 0) AND NOT {handed_out})) UNION "
        f"SELECT c.node_id FROM gpu_claims c WHERE c.leaving = 1 AND NOT {handed_out}"
        " ORDER BY node_id",
        now_ms=now_ms,
    )
    return [NodeId(row["node_id"]) for row in rows]


def free(tx: Transaction, node_id: NodeId) -> None:
    """Let go of everything that a node has or waits for, and wake those who wait for it."""
    rows = tx.all("SELECT uuid FROM gpu_claims WHERE node_id = :node_id", node_id=node_id)
    for uuid in sorted(row["uuid"] for row in rows):
        _let_go(tx, uuid)
    tx.run("DELETE FROM gpu_waits WHERE node_id = :node_id", node_id=node_id)

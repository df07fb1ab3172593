"""Labels as placement reads them: capabilities that count, and where a node stands."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bcd.model.ids import NodeId
from bcd.store.database import Row, Transaction

_RACK, _BLOCK = "rack", "block"
_READ = (
    "SELECT l.node_id, l.key, l.value, l.source FROM node_labels l"
    " JOIN nodes n ON n.id = l.node_id"
    " WHERE (l.source = 'system' OR l.key IN ('rack', 'block')) AND"
)


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """``system`` are keys whose source is the system; ``rack`` and ``block`` may come from anyone.

    Where both say something of a place, the operator knows better.
    """

    system: frozenset[str] = frozenset()
    rack: str = ""
    block: str = ""


def in_pool(tx: Transaction, pool_id: str) -> Mapping[NodeId, NodeLabels]:
    """The labels of a pool's nodes; nodes without any are absent."""
    return _by_node(tx.all(f"{_READ} n.pool_id = :pool_id", pool_id=pool_id))


def on_nodes(tx: Transaction, node_ids: Iterable[NodeId]) -> Mapping[NodeId, NodeLabels]:
    """The labels of these nodes; nodes without any are absent."""
    rows: list[Row] = []
    for node_id in node_ids:
        rows += tx.all(f"{_READ} l.node_id = :node_id", node_id=node_id)
    return _by_node(rows)


def _by_node(rows: Sequence[Row]) -> Mapping[NodeId, NodeLabels]:
    system: dict[NodeId, set[str]] = {}
    places: dict[tuple[NodeId, str], str] = {}
    for row in rows:
        node_id, key, source = row["node_id"], row["key"], row["source"]
        keys = system.setdefault(node_id, set())
        if source == "system":
            keys.add(key)
        if key in (_RACK, _BLOCK) and (source == "operator" or (node_id, key) not in places):
            places[(node_id, key)] = row["value"]
    return {
        node_id: NodeLabels(
            frozenset(keys), places.get((node_id, _RACK), ""), places.get((node_id, _BLOCK), "")
        )
        for node_id, keys in system.items()
    }

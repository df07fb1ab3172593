"""What fits where: amounts that are confined to NUMA nodes, shared out over what the nodes have.

Holds that may use several nodes make room for one that may not, so their order does not matter:
this is a maximal flow from amounts to nodes, found by shortest augmenting paths. Pure; the daemon's
``fit`` and the control plane's ``limits`` ask it for memory and for huge pages, and so agree.
"""

from collections.abc import Mapping

Nodes = frozenset[int]


class Room:
    """What nodes have left; ``supply`` is an amount by node, below zero counts as none."""

    def __init__(self, supply: Mapping[int, int]) -> None:
        self._spare = {node: max(0, amount) for node, amount in supply.items()}
        self._all = frozenset(self._spare)
        self._given: dict[tuple[Nodes, int], int] = {}

    def take(self, nodes: Nodes, amount: int) -> int:
        """Take from these nodes, from any where none is named or known; returns what was there.

        What was taken before may move to other nodes of its own for it, and never gets less.
        """
        nodes = nodes & self._all or self._all
        left = amount
        while left > 0:
            path = self._path(nodes)
            if not path:
                break
            left -= self._move(path, left)
        return amount - left

    def _path(self, start: Nodes) -> list[tuple[Nodes, int]]:
        """(who, node) pairs: each takes the node that the one before it gives up, to spare room."""
        came: dict[int, tuple[Nodes, int | None]] = dict.fromkeys(start, (start, None))
        queue = sorted(start)
        for node in queue:  # grows while it is read: breadth first
            if self._spare[node] > 0:
                path: list[tuple[Nodes, int]] = []
                at: int | None = node
                while at is not None:
                    who, before = came[at]
                    path.append((who, at))
                    at = before
                return path[::-1]
            for (who, given), amount in self._given.items():
                if given == node and amount > 0:
                    fresh = sorted(who - came.keys())
                    came |= dict.fromkeys(fresh, (who, node))
                    queue += fresh
        return []

    def _move(self, path: list[tuple[Nodes, int]], most: int) -> int:
        handed = [(who, path[i][1]) for i, (who, _) in enumerate(path[1:])]
        last = path[-1][1]
        amount = min(most, self._spare[last], *(self._given[pair] for pair in handed))
        for pair in path:
            self._given[pair] = self._given.get(pair, 0) + amount
        for pair in handed:
            self._given[pair] -= amount
        self._spare[last] -= amount
        return amount

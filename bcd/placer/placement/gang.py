"""Picks the members of a gang among the nodes that could take one. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from bcd.model.ids import NodeId
from bcd.placer.placement.choose import Choice
from bcd.placer.placement.node import NodeView

_Score = tuple[bool, int, int, int, NodeId]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can take a member, what it would give, and how good that is (less is better).

    ``score`` is (to be avoided, broken, leftover, idle time left, id).
    """

    node: NodeView
    choice: Choice
    score: _Score


def best_gang(
    ranked: Iterable[Candidate], size: int, *, places: bool
) -> Sequence[Candidate] | None:
    """The best ``size`` of these, the best first; None when there are fewer.

    Members that stand together come before members that break less: all in one rack, else all in
    one block. Where no rack or block has enough, or without ``places`` (no node of the pool says
    where it stands), they are the best there are; then no more nodes than needed are looked at.
    """
    if size == 1 or not places:
        first = tuple(islice(ranked, size))
        return first if len(first) == size else None
    every = list(ranked)
    if len(every) < size:
        return None
    for place in (_rack, _block):
        together = [group[:size] for group in _by(place, every) if len(group) >= size]
        if together:
            return min(together, key=_total)
    return every[:size]


_Place = Callable[[Candidate], tuple[str, ...] | None]


def _by(place: _Place, candidates: Iterable[Candidate]) -> Iterable[list[Candidate]]:
    found: defaultdict[tuple[str, ...], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        where = place(candidate)
        if where is not None:
            found[where].append(candidate)
    return found.values()


def _total(members: Sequence[Candidate]) -> tuple[int, int, int, int, list[NodeId]]:
    scores = [member.score for member in members]
    return (
        sum(score[0] for score in scores),
        sum(score[1] for score in scores),
        sum(score[2] for score in scores),
        sum(score[3] for score in scores),
        sorted(score[4] for score in scores),
    )


def _rack(candidate: Candidate) -> tuple[str, ...] | None:
    """A rack's name counts within its block only."""
    facts = candidate.node.facts
    return (facts.block, facts.rack) if facts.rack else None


def _block(candidate: Candidate) -> tuple[str, ...] | None:
    facts = candidate.node.facts
    return (facts.block,) if facts.block else None

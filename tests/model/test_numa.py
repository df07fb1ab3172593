"""Amounts on NUMA nodes: what is said to fit fits, and what fits is not refused."""

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from bcd.model.numa import Room

NODES = range(4)
supplies = st.dictionaries(st.sampled_from(NODES), st.integers(-2, 9), min_size=1)
amounts = st.lists(st.tuples(st.frozensets(st.sampled_from(NODES)), st.integers(0, 12)), max_size=6)


def most(supply: dict[int, int], asked: list[tuple[frozenset[int], int]]) -> int:
    """How much can be given in all, by the other way to say it: the smallest cut."""
    known = frozenset(supply)
    subsets = chain.from_iterable(combinations(sorted(known), n) for n in range(len(known) + 1))
    return min(
        sum(max(0, supply[node]) for node in cut)
        + sum(amount for nodes, amount in asked if not (nodes & known or known) <= set(cut))
        for cut in subsets
    )


@given(supplies, amounts)
def test_every_amount_gets_what_can_be_given_beside_those_before(
    supply: dict[int, int], asked: list[tuple[frozenset[int], int]]
) -> None:
    room = Room(supply)
    for index, (nodes, amount) in enumerate(asked):
        more = most(supply, asked[: index + 1]) - most(supply, asked[:index])
        assert room.take(nodes, amount) == more


def test_who_may_go_elsewhere_makes_room() -> None:
    room = Room({0: 10, 1: 10, 2: 10})
    assert room.take(frozenset({0, 1}), 10) == 10
    assert room.take(frozenset({1, 2}), 10) == 10
    assert room.take(frozenset({0}), 10) == 10
    assert room.take(frozenset(), 1) == 0


def test_many_nodes_and_amounts_are_shared_out_at_once() -> None:
    room = Room(dict.fromkeys(range(34), 1 << 40))
    for start in range(34):
        for width in (1, 2, 17, 34):
            assert room.take(frozenset(range(start, min(34, start + width))), 1 << 37) == 1 << 37

"""When something would fit and for how long, against a look at every moment."""

from collections.abc import Sequence

from hypothesis import given, settings

from bcd.placer.placement.demand import Demand
from bcd.placer.placement.earliest import earliest, longest_free
from bcd.placer.placement.search import Where, find
from bcd.placer.placement.view import PoolView
from tests.placer.placement.machines import ask, demand
from tests.placer.placement.pools import DEMANDS, WINDOWS, Host, busy, pool, pools
from tests.placer.world import dgx

LAST = 140  # bookings of drawn pools are over by then


def fits(view: PoolView, wanted: Demand, start: int, end: int) -> bool:
    return find(view, wanted, Where(start_ms=start, end_ms=end)) is not None


@settings(max_examples=300)
@given(pools(), WINDOWS, DEMANDS)
def test_the_nearest_time_is_the_first_moment_at_which_the_search_finds_something(
    hosts: Sequence[Host], window: tuple[int, int], wanted: Demand
) -> None:
    now, duration = window
    view = pool(hosts)
    moments = (m for m in range(now, LAST) if fits(view, wanted, m, m + duration))
    assert earliest(view, wanted, now, duration) == next(moments, None)


@settings(max_examples=300)
@given(pools(), WINDOWS, DEMANDS)
def test_the_longest_window_is_the_last_length_that_the_search_finds(
    hosts: Sequence[Host], window: tuple[int, int], wanted: Demand
) -> None:
    start = window[0]
    view = pool(hosts)
    lengths = [n for n in range(1, LAST - start) if fits(view, wanted, start, start + n)]
    expected = max(lengths, default=0)
    endless = fits(view, wanted, start, start + 10 * LAST)
    assert longest_free(view, wanted, start) == (None if endless else expected)


def test_a_gang_waits_for_a_moment_at_which_all_its_nodes_are_free() -> None:
    """Each is free for a while before, never at once."""
    hosts = [
        Host("a", dgx("a"), (*busy(8, 0, 10), *busy(8, 60, 200))),
        Host("b", dgx("b"), (*busy(8, 0, 55), *busy(8, 120, 300))),
    ]
    view = pool(hosts)
    assert earliest(view, demand(ask(8)), 0, 50) == 10
    assert earliest(view, demand(ask(8), gang=2), 0, 5) == 55
    assert earliest(view, demand(ask(8), gang=2), 0, 50) == 300
    assert longest_free(view, demand(ask(8), gang=2), 56) == 4
    assert longest_free(view, demand(ask(8)), 56) == 64


def test_a_time_is_named_also_where_the_search_would_succeed_at_once() -> None:
    assert earliest(pool([Host("a", dgx("a"))]), demand(ask(1)), 17, 50) == 17

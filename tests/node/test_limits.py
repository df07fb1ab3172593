"""Limits as a host can hold them: never less than booked, and the same when rounded again."""

from hypothesis import given
from hypothesis import strategies as st

from bcd.model.assignment import Limits
from bcd.node.limits import canonical, enforced


def _limits(cpu_millis: int = 0, memory_bytes: int = 0, cpus: str = "") -> Limits:
    return Limits(cpu_millis=cpu_millis, memory_bytes=memory_bytes, hugepages_1gi=3, cpus=cpus)


@given(st.integers(0, 10**9), st.integers(0, 1 << 60), st.sets(st.integers(0, 8191)))
def test_rounding_gives_no_less_and_settles_at_once(cpu: int, memory: int, ids: set[int]) -> None:
    asked = _limits(cpu, memory, ",".join(map(str, ids)))
    held = enforced(asked)
    assert enforced(held) == held
    assert 0 <= held.cpu_millis - cpu < 10
    assert 0 <= held.memory_bytes - memory < 64 * 1024
    assert held.hugepages_1gi == 3


def test_no_limit_stays_no_limit() -> None:
    assert enforced(_limits()) == _limits()


def test_a_quota_below_a_per_cent_becomes_one() -> None:
    assert enforced(_limits(cpu_millis=1)).cpu_millis == 10


def test_a_cpulist_that_does_not_parse_stays_as_it_is() -> None:
    assert canonical("9-1") == "9-1"
    assert canonical(" 3,1,2") == "1-3"

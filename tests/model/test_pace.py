"""A burst at once, then a steady rate."""

from bcd.model.pace import Pace


def allowed(pace: Pace, now_s: float, tries: int) -> int:
    return sum(pace.allows(now_s) for _ in range(tries))


def test_a_burst_is_allowed_and_then_one_every_interval() -> None:
    pace = Pace(burst=5, interval_s=2.0)
    assert allowed(pace, 100.0, 9) == 5
    assert allowed(pace, 101.9, 9) == 0
    assert allowed(pace, 102.0, 9) == 1
    assert allowed(pace, 106.0, 9) == 2


def test_a_rest_earns_one_burst_and_no_more() -> None:
    pace = Pace(burst=5, interval_s=2.0)
    assert allowed(pace, 0.0, 9) == 5
    assert allowed(pace, 1_000_000.0, 9) == 5


def test_the_steady_rate_is_never_refused() -> None:
    pace = Pace(burst=1, interval_s=0.1)
    assert all(pace.allows(number * 0.125) for number in range(1000))

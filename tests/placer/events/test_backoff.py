"""When deliveries are tried again, and when they are given up."""

from bcd.model.units import HOUR_MS, MINUTE_MS
from bcd.placer.events.backoff import RETRIES_MS, next_try_ms, rest_ms


def test_every_rest_is_longer_than_the_one_before_it_and_their_sum_is_bounded() -> None:
    assert list(RETRIES_MS) == sorted(RETRIES_MS)
    assert sum(RETRIES_MS) * 1.2 < 36 * HOUR_MS


def test_a_delivery_is_given_up_after_its_last_try() -> None:
    last = len(RETRIES_MS)
    assert next_try_ms(last, 0, 0.5) is not None
    assert next_try_ms(last + 1, 0, 0.5) is None


def test_tries_are_spread_around_their_moment() -> None:
    assert [next_try_ms(1, 1_000, chance) for chance in (0, 0.5, 1)] == [5_000, 6_000, 7_000]


def test_a_receiver_that_is_away_is_asked_less_and_less_often() -> None:
    rests = [rest_ms(failures) for failures in range(1, 100)]
    assert rests == sorted(rests)
    assert (rests[0], rests[-1]) == (1_000, MINUTE_MS)

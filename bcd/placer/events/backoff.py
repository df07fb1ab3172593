"""When a delivery is tried again, and when it is given up. Pure."""

from bcd.model.units import HOUR_MS, MINUTE_MS, SECOND_MS

# The rest behind each failed attempt: nine attempts within 28 hours and their jitter.
RETRIES_MS = (
    5 * SECOND_MS,
    MINUTE_MS,
    5 * MINUTE_MS,
    30 * MINUTE_MS,
    2 * HOUR_MS,
    5 * HOUR_MS,
    10 * HOUR_MS,
    10 * HOUR_MS,
)
_JITTER = 0.2
_LONGEST_REST_MS = MINUTE_MS


def next_try_ms(attempts: int, now_ms: int, chance: float) -> int | None:
    """When to try again after ``attempts`` failed ones; None when that was the last.

    ``chance``, from 0 to 1, spreads tries by a fifth either way.
    """
    if attempts > len(RETRIES_MS):
        return None
    return now_ms + int(RETRIES_MS[attempts - 1] * (1 - _JITTER + 2 * _JITTER * chance))


def rest_ms(failures: int) -> int:
    """How long a receiver is left alone after ``failures`` rounds in a row that all failed.

    A receiver that is away is asked about its other events at this pace, not all at once.
    """
    return int(min(_LONGEST_REST_MS, SECOND_MS * 2 ** min(max(failures, 1) - 1, 10)))

"""How often a node may do something: a burst, and then a steady rate."""


class Pace:
    """``burst`` times at once, and again one every ``interval_s`` seconds."""

    def __init__(self, burst: int, interval_s: float) -> None:
        self._burst_s = burst * interval_s
        self._interval_s = interval_s
        self._spent_until = 0.0

    def allows(self, now_s: float) -> bool:
        """Whether it may happen at ``now_s``, of a clock that only goes forward; counts it then."""
        spent_until = max(self._spent_until, now_s) + self._interval_s
        if spent_until > now_s + self._burst_s:
            return False
        self._spent_until = spent_until
        return True

"""Durations and amounts: the spellings that people may use, and the one that is stored."""

import re
from functools import lru_cache

from bcd.model.errors import InvalidInput

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MAX_DURATION_MS = 10 * 365 * DAY_MS + 3 * DAY_MS  # ten years, leap days included
GIB = 1 << 30

_UNIT_MS = {
    "w": 7 * DAY_MS,
    "d": DAY_MS,
    "h": HOUR_MS,
    "m": MINUTE_MS,
    "s": SECOND_MS,
    "ms": 1,
}
_TERM = re.compile(r"([0-9]+)(ms|[wdhms])", re.ASCII)
_SPELLING = re.compile(r"(?:[0-9]+(?:ms|[wdhms]))+\Z|[0-9]+\Z", re.ASCII)
_RULE = "must be a duration such as 8h, 90m, 1d12h, 28800000ms or milliseconds"


@lru_cache(maxsize=1024)
def parse_duration_ms(text: str, field: str = "duration") -> int:
    """Read a duration in milliseconds: ``8h``, ``90m``, ``3d``, ``1w``, sums, ``5ms`` or digits.

    Raises InvalidInput naming ``field`` for zero, signs, fractions, other units and anything
    over ten years.
    """
    if len(text) > 64 or not _SPELLING.match(text):
        raise InvalidInput(field, _RULE)
    if text.isdigit():
        total = int(text)
    else:
        total = sum(int(count) * _UNIT_MS[unit] for count, unit in _TERM.findall(text))
    if total == 0:
        raise InvalidInput(field, "must be longer than zero")
    if total > MAX_DURATION_MS:
        raise InvalidInput(field, "must be at most ten years")
    return total


def format_duration(duration_ms: int) -> str:
    """Spell a duration for people, largest units first: ``1d12h``, ``250ms``; zero is ``0s``.

    From a minute on in whole seconds, and never as more than it is: who asks for as long gets it.
    """
    parts: list[str] = []
    rest = duration_ms if duration_ms < MINUTE_MS else duration_ms - duration_ms % SECOND_MS
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"

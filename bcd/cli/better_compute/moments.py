"""Reads a moment that a person wrote: never without a zone, never a time that a clock skips.

Inside the system a moment is epoch milliseconds UTC; zones are known only here, at the edge.
"""

import datetime
import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bcd.model.errors import InvalidInput

_SHAPE = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?) ?"
    r"(Z|[+-]\d\d:\d\d|[A-Za-z][A-Za-z0-9_+/-]{0,63})?",
    re.ASCII,
)
_RULE = (
    'must be a date and time with its zone: "2026-12-07 09:00 Europe/Berlin", or'
    " 2026-12-07T09:00:00+01:00"
)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def parse_moment_ms(text: str, field: str = "at") -> int:
    """Epoch milliseconds of a local time with a zone's name, or of RFC 3339 with an offset.

    Raises InvalidInput for a time without a zone, for one that the zone's clocks skip, and for one
    that they show twice: there an offset says which is meant.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(field, _RULE)
    day, clock, zone = match.groups()
    if zone is None:
        raise InvalidInput(field, f"{text.strip()} has no zone; it {_RULE}")
    try:
        naive = datetime.datetime.fromisoformat(f"{day}T{clock}")
        if zone == "Z" or zone[0] in "+-":
            offset = datetime.datetime.fromisoformat(f"{day}T{clock}{zone}")
            return _epoch_ms(offset)
        return _epoch_ms(_located(naive, _zone(zone, field), field))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(field, f"{text.strip()} is on no calendar") from error


def _zone(name: str, field: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            field, f"this machine knows no time zone {name}; write an offset such as +01:00"
        ) from error


def _located(naive: datetime.datetime, zone: ZoneInfo, field: str) -> datetime.datetime:
    """The one moment at which a zone's clocks show this time."""
    found: list[datetime.datetime] = []
    for fold in (0, 1):
        local = naive.replace(tzinfo=zone, fold=fold)
        shown = local.astimezone(datetime.UTC).astimezone(zone)
        known = [other.utcoffset() for other in found]
        if shown.replace(tzinfo=None, fold=0) == naive and local.utcoffset() not in known:
            found.append(local)
    if not found:
        raise InvalidInput(
            field, f"{naive} does not exist in {zone.key}: clocks are put forward over it"
        )
    if len(found) > 1:
        one, other = (local.isoformat() for local in found)
        raise InvalidInput(
            field,
            f"{naive} comes twice in {zone.key}: clocks are put back; write {one} or {other}",
        )
    return found[0]


def _epoch_ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND

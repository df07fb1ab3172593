"""Moments that people write: the zone is never guessed (spec 17.1)."""

import datetime
from zoneinfo import ZoneInfo

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.cli.better_compute.moments import parse_moment_ms
from bcd.cli.better_compute.parameters import Moment
from bcd.model.errors import InvalidInput

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/St_Johns",
    "Africa/Casablanca",
    "UTC",
)
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def utc_ms(*parts: int) -> int:
    """Epoch milliseconds of a moment in UTC."""
    return int(datetime.datetime(*parts, tzinfo=datetime.UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-07 09:00 Europe/Berlin", utc_ms(2026, 12, 7, 8)),
        ("2026-07-07 09:00 Europe/Berlin", utc_ms(2026, 7, 7, 7)),
        ("2026-12-07T09:00:30 America/New_York", utc_ms(2026, 12, 7, 14, 0, 30)),
        ("2026-12-07T09:00:00+01:00", utc_ms(2026, 12, 7, 8)),
        ("2026-12-07T09:00Z", utc_ms(2026, 12, 7, 9)),
        ("2026-12-07 09:00 UTC", utc_ms(2026, 12, 7, 9)),
        ("2026-12-07T09:00:00.250-05:30", utc_ms(2026, 12, 7, 14, 30) + 250),
    ],
)
def test_a_time_with_its_zone_is_one_moment(text: str, expected: int) -> None:
    assert parse_moment_ms(text) == expected


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("2026-12-07 09:00", "has no zone"),
        ("09:00 Europe/Berlin", "must be a date and time"),
        ("tomorrow", "must be a date and time"),
        ("2026-12-07 09:00 Europe/Atlantis", "knows no time zone Europe/Atlantis"),
        ("2026-12-07 09:00 Europe", "knows no time zone Europe"),
        ("2026-12-07 09:00 Europe/../../passwd", "must be a date and time"),
        ("2026-02-30 09:00 UTC", "on no calendar"),
        ("2026-12-07 25:00 UTC", "on no calendar"),
        ("2026-12-07T09:00+99:00", "on no calendar"),
        ("2026-12-07 09:00 Europe/Berlin; rm", "must be a date and time"),
        ("٢٠٢٦-12-07 09:00 UTC", "must be a date and time"),
        ("2026-03-29 02:30 Europe/Berlin", "does not exist in Europe/Berlin"),
        ("2026-10-25 02:30 Europe/Berlin", "write 2026-10-25T02:30:00+02:00 or"),
    ],
)
def test_what_is_no_one_moment_is_refused_with_a_sentence(text: str, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule.replace("+", r"\+")):
        parse_moment_ms(text)


def test_a_time_that_comes_twice_is_one_moment_with_its_offset() -> None:
    first = parse_moment_ms("2026-10-25T02:30:00+02:00")
    assert parse_moment_ms("2026-10-25T02:30:00+01:00") == first + HOUR_MS


@given(
    st.sampled_from(ZONES),
    st.integers(utc_ms(2025, 1, 1) // MINUTE_MS, utc_ms(2036, 1, 1) // MINUTE_MS),
)
def test_what_a_zones_clock_shows_is_read_back_or_refused_as_shown_twice(
    name: str, minute: int
) -> None:
    zone = ZoneInfo(name)
    moment = datetime.datetime.fromtimestamp(minute * 60, zone)
    text = f"{moment:%Y-%m-%d %H:%M} {name}"
    folds = {moment.replace(fold=fold).utcoffset() for fold in (0, 1)}
    if len(folds) == 1:
        assert parse_moment_ms(text) == minute * MINUTE_MS
    else:
        with pytest.raises(InvalidInput, match="comes twice"):
            parse_moment_ms(text)
    assert parse_moment_ms(moment.isoformat()) == minute * MINUTE_MS


@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime.datetime(2025, 1, 1), datetime.datetime(2036, 1, 1)),
)
def test_a_moment_that_is_read_shows_as_it_was_written(
    name: str, written: datetime.datetime
) -> None:
    """Around changes too: a skipped time is refused, never moved by an hour."""
    written = written.replace(second=0, microsecond=0)
    try:
        read_ms = parse_moment_ms(f"{written:%Y-%m-%d %H:%M} {name}")
    except InvalidInput:
        return  # skipped or shown twice, as the tests above say
    shown = datetime.datetime.fromtimestamp(read_ms / 1000, ZoneInfo(name))
    assert shown.replace(tzinfo=None, fold=0) == written


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_every_quarter_of_an_hour_around_a_change_is_read_or_refused(zone: str) -> None:
    """A day has as many moments as it has: none is lost and none is made up."""
    for day in (datetime.date(2026, 1, 1) + datetime.timedelta(n) for n in range(365)):
        offsets = {
            datetime.datetime.combine(day, datetime.time(hour), ZoneInfo(zone)).utcoffset()
            for hour in (0, 23)
        }
        if len(offsets) == 1:
            continue
        outcomes = []
        for quarter in range(96):
            try:
                text = f"{day} {quarter // 4:02}:{quarter % 4 * 15:02} {zone}"
                outcomes.append(parse_moment_ms(text))
            except InvalidInput:
                outcomes.append(0)
        read = [moment for moment in outcomes if moment]
        assert read == sorted(set(read))
        assert 0 in outcomes


@pytest.mark.parametrize("text", ["-2h", "2h", "1d12h"])
def test_a_moment_ahead_without_its_plus_says_how_it_is_written(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"moments ahead are written \+2h"):
        Moment(ahead=True).convert(text, None, None)


def test_a_moment_ahead_counts_from_now_only_where_that_makes_sense() -> None:
    before = Moment(ahead=True).convert("+12h", None, None)
    assert Moment(ahead=True).convert("+13h", None, None) - before >= HOUR_MS
    for kind, text in ((Moment(), "+12h"), (Moment(ahead=True), "+12"), (Moment(), "nonsense")):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)

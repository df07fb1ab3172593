"""Durations: every spelling that is allowed, and nothing else (spec 1.2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.errors import InvalidInput
from bcd.model.units import (
    DAY_MS,
    HOUR_MS,
    MAX_DURATION_MS,
    MINUTE_MS,
    SECOND_MS,
    format_duration,
    parse_duration_ms,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("8h", 8 * HOUR_MS),
        ("90m", 90 * MINUTE_MS),
        ("3d", 3 * DAY_MS),
        ("1w", 7 * DAY_MS),
        ("1d12h", 36 * HOUR_MS),
        ("1w1d1h1m1s1ms", 8 * DAY_MS + HOUR_MS + MINUTE_MS + 1001),
        ("28800000ms", 8 * HOUR_MS),
        ("28800000", 8 * HOUR_MS),
        ("1", 1),
        ("0h1ms", 1),
        ("007", 7),
        ("10m5m", 15 * MINUTE_MS),
        ("3650d", 3650 * DAY_MS),
        (str(MAX_DURATION_MS), MAX_DURATION_MS),
    ],
)
def test_spellings(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "h", "8 h", " 8h", "8h ", "8h\n", "-8h", "+8h", "8.5h", "1.0", "1e3", "8H", "8hr",
        "8h30", "PT8H", "0x10", "1_000", "٣h", "³h", "8h\0", "½h", "1ms1", "8µs", "5ns",
    ],
)  # fmt: skip
def test_junk_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(InvalidInput, match="duration: must be a duration such as 8h"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["0", "0h", "0ms", "000", "0d0h"])
def test_zero_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="longer than zero"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["3700d", str(MAX_DURATION_MS + 1), "9" * 60, "9" * 30 + "w"])
def test_more_than_ten_years_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="at most ten years"):
        parse_duration_ms(text)


def test_a_very_long_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidInput):
        parse_duration_ms("1h" * 100_000)


def test_the_field_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration_ms("soon", "lease")
    assert caught.value.field == "lease"


@given(st.integers(min_value=1, max_value=MAX_DURATION_MS))
def test_what_is_written_for_people_reads_the_same(ms: int) -> None:
    shown = parse_duration_ms(format_duration(ms))
    assert shown == (ms if ms < MINUTE_MS else ms - ms % SECOND_MS)
    assert parse_duration_ms(f"{ms}ms") == parse_duration_ms(str(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "words"),
    [(59_999, "59s999ms"), (60_500, "1m"), (7_197_475, "1h59m57s"), (DAY_MS, "1d")],
)
def test_nobody_is_shown_milliseconds_of_what_lasts_minutes(ms: int, words: str) -> None:
    assert format_duration(ms) == words


def test_zero_is_written_too() -> None:
    assert format_duration(0) == "0s"

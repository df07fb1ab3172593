"""Cpulists: the kernel's format, read within bounds before anything is expanded (spec 6.6)."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.cpuset import (
    MAX_BYTES,
    MAX_ID,
    MAX_PARTS,
    MalformedCpuList,
    format_cpulist,
    parse_cpulist,
)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("0-3,8", {0, 1, 2, 3, 8}),
        (" 0-1 , 4 \n", {0, 1, 4}),
        ("5,3,4", {3, 4, 5}),
        ("1,1,0-2", {0, 1, 2}),
        ("7-7", {7}),
        ("0-31:2/4", {c for c in range(32) if c % 4 < 2}),
        ("0-9:1/10", {0}),
        ("0-9:10/10", set(range(10))),
        (f"{MAX_ID}", {MAX_ID}),
        ("007", {7}),
    ],
)
def test_lists_that_the_kernel_writes_or_takes(text: str, ids: set[int]) -> None:
    assert parse_cpulist(text) == ids


@pytest.mark.parametrize(
    "text",
    [
        ",", "0,", ",0", "0,,1", "-", "0-", "-3", "a", "0-a", "1 2", "0x1", "+1", "1.5", "0--1",
        "0-1-2", "0-3:", "0-3:1", "0-3:1/", "0-3:/2", "0:1/2", "٣", "0\0", "0-1\x00", "0\n1", "N0",
    ],
)  # fmt: skip
def test_what_does_not_parse_is_said_so(text: str) -> None:
    with pytest.raises(MalformedCpuList):
        parse_cpulist(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("3-1", "reversed"),
        (f"{MAX_ID + 1}", "over"),
        (f"0-{MAX_ID + 1}", "over"),
        ("0-999999999", "over"),
        ("9999999999", "no id"),
        ("0-3:0/2", "stride"),
        ("0-3:3/2", "stride"),
        ("0-3:0/0", "stride"),
        (",".join("1" for _ in range(MAX_PARTS + 1)), "parts"),
        ("1" * (MAX_BYTES + 1), "bytes"),
    ],
)
def test_what_is_out_of_bounds_names_the_rule(text: str, rule: str) -> None:
    with pytest.raises(MalformedCpuList, match=rule):
        parse_cpulist(text)


def test_the_bounds_themselves_are_allowed() -> None:
    assert parse_cpulist(f"0-{MAX_ID}") == set(range(MAX_ID + 1))
    assert parse_cpulist(",".join("1" for _ in range(MAX_PARTS))) == {1}


def test_more_ids_than_asked_for_are_refused() -> None:
    assert parse_cpulist("0-3,2-5", at_most=6) == set(range(6))
    with pytest.raises(MalformedCpuList, match="more than 5 ids"):
        parse_cpulist("0-3,2-5", at_most=5)
    assert parse_cpulist("", at_most=0) == frozenset()


@pytest.mark.parametrize("stride", ["", ":1/1", ":1/2", ":4095/8190", ":999/999999999"])
def test_the_worst_that_is_allowed_costs_little(stride: str) -> None:
    """A frame holds a few such lists, and a gateway reads them between other nodes' frames."""
    part = f"1-{MAX_ID}{stride}"
    worst = ",".join([part] * min(MAX_PARTS, MAX_BYTES // (len(part) + 1)))
    start = time.process_time()
    assert parse_cpulist(worst) == parse_cpulist(part)
    assert time.process_time() - start < 0.1


@given(
    st.integers(min_value=0, max_value=200),
    st.integers(min_value=0, max_value=200),
    st.integers(min_value=1, max_value=50),
    st.integers(min_value=1, max_value=300),
)
def test_a_stride_takes_the_first_of_every_group(
    first: int, length: int, used: int, group: int
) -> None:
    last, used = first + length, min(used, group)
    expected = {cpu for cpu in range(first, last + 1) if (cpu - first) % group < used}
    assert parse_cpulist(f"{first}-{last}:{used}/{group}") == expected


@given(st.sets(st.integers(min_value=0, max_value=MAX_ID), max_size=300))
def test_what_is_written_reads_the_same(ids: set[int]) -> None:
    text = format_cpulist(ids)
    if len(text.split(",")) <= MAX_PARTS:
        assert parse_cpulist(text) == ids


@given(st.sets(st.integers(min_value=0, max_value=64)))
def test_the_written_form_is_canonical(ids: set[int]) -> None:
    text = format_cpulist(ids)
    assert format_cpulist(parse_cpulist(text)) == text
    parts = [tuple(int(n) for n in part.split("-")) for part in text.split(",") if part]
    assert all(later[0] > earlier[-1] + 1 for earlier, later in itertools.pairwise(parts))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        ids = parse_cpulist(text)
    except MalformedCpuList:
        return
    assert all(0 <= cpu <= MAX_ID for cpu in ids)

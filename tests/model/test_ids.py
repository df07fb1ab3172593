"""Ids: made in canonical form, and refused in every other."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.errors import InvalidInput
from bcd.model.ids import (
    is_allocation_id,
    is_plain_name,
    is_reservation_id,
    is_type_id,
    parse_type_id,
    type_id,
)

MOMENTS = st.integers(min_value=0, max_value=(1 << 48) - 1)
ENTROPY = st.binary(min_size=10, max_size=16)
HOSTILE = ["", "../x", "a/b", "a\0", "a\n", "a b", "ä", "a" * 300, "-a", ".a", "_a"]


@given(MOMENTS, ENTROPY)
def test_a_type_id_is_a_prefixed_uuid_of_version_7(now_ms: int, entropy: bytes) -> None:
    text = type_id("node", now_ms, entropy)
    assert is_type_id("node", text)
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value = 0
    for character in text.removeprefix("node_"):
        value = value << 5 | alphabet.index(character)
    decoded = uuid.UUID(int=value)
    assert (decoded.version, decoded.variant) == (7, uuid.RFC_4122)
    assert value >> 80 == now_ms


def test_a_published_type_id_is_read() -> None:
    """The example of the TypeID specification."""
    assert is_type_id("prefix", "prefix_01h2xcejqtf2nbrexx3vqjhp41")


@given(MOMENTS, MOMENTS, ENTROPY, ENTROPY)
def test_type_ids_sort_by_time(one: int, other: int, a: bytes, b: bytes) -> None:
    if one != other:
        assert (type_id("evt", one, a) < type_id("evt", other, b)) is (one < other)


@pytest.mark.parametrize("change", [
    lambda text: text.upper(),
    lambda text: text + "0",
    lambda text: text[:-1],
    lambda text: text + "\n",
    lambda text: text.replace("_", "-"),
    lambda text: text[:6] + "8" + text[7:],  # over 128 bits
    lambda text: text[:-1] + "i",
    lambda text: text[:-1] + "u",
    lambda text: "../" + text,
    lambda text: text[:-1] + "\0",
])  # fmt: skip
def test_other_spellings_are_no_type_ids(change: "re.Pattern[str] | object") -> None:
    text = type_id("alloc", 1_700_000_000_000, b"entropy123")
    assert is_allocation_id(text)
    assert not is_allocation_id(change(text))  # type: ignore[operator]


def test_the_prefix_must_be_the_one_asked_for() -> None:
    text = type_id("pool", 1, b"entropy123")
    assert parse_type_id("pool", text, "poolId") == text
    with pytest.raises(InvalidInput, match="poolId: is not an id of the form node_"):
        parse_type_id("node", text, "poolId")


def test_reservation_ids_have_the_length_of_a_hash() -> None:
    assert is_reservation_id("rsv_" + "a2" * 26)
    for text in ("rsv_" + "a" * 51, "rsv_" + "a" * 53, "rsv_" + "A" * 52, "rsv_" + "1" * 52, ""):
        assert not is_reservation_id(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_no_names_and_no_ids(text: str) -> None:
    assert not is_plain_name(text)
    assert not is_allocation_id(text)
    assert not is_reservation_id(text)


@pytest.mark.parametrize("text", ["a", "A1", "devices.limits", "attested-reports", "a_b", "9"])
def test_plain_names(text: str) -> None:
    assert is_plain_name(text)

"""Names that people give: printable, not empty, bounded in bytes."""

import pytest

from bcd.model.errors import InvalidInput
from bcd.model.texts import MAX_TEXT_BYTES, check_text


@pytest.mark.parametrize("text", ["a", "Käthe & Söhne", "日本", "x" * MAX_TEXT_BYTES, "é" * 128])
def test_a_name_is_taken_as_it_is(text: str) -> None:
    assert check_text("name", text) == text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "empty"),
        ("x" * 257, "256 bytes"),
        ("é" * 129, "256 bytes"),
        ("a\nb", "printable"),
        ("\0", "printable"),
        ("\x1b[31m", "printable"),
        ("\ud800", "printable"),
        ("\u202e", "printable"),
    ],
    ids=ascii,
)
def test_what_no_name_can_be_is_refused_by_field_and_rule(text: str, rule: str) -> None:
    with pytest.raises(InvalidInput, match=f"^labels.k: must .*{rule}"):
        check_text("labels.k", text)


def test_a_name_that_may_be_left_out_may_be_empty() -> None:
    assert check_text("model", "", empty=True) == ""

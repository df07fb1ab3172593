"""The one rule for names that people give: in requests, in tokens, on the command line."""

from bcd.model.errors import InvalidInput

MAX_TEXT_BYTES = 256


def check_text(field: str, text: str, *, empty: bool = False) -> str:
    """The text itself; raises InvalidInput naming the field.

    Bytes, not characters, are bounded (spec 2.5); no database stores a NUL or half a character,
    and no terminal should be shown control characters.
    """
    if not text and not empty:
        raise InvalidInput(field, "must not be empty")
    if not text.isprintable():
        raise InvalidInput(field, "must have printable characters only")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise InvalidInput(field, f"must be at most {MAX_TEXT_BYTES} bytes")
    return text

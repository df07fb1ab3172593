"""Finds texts that no database keeps, at any depth of a message.

protobuf takes a NUL in a string and SQLite does too, PostgreSQL does not: it is refused at the edge
with its path, before it becomes an internal error somewhere behind.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def text_with_nul(message: Message, path: str = "") -> str | None:
    """The path of the first text with a NUL, such as ``devices[0].model``, or None."""
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING):
            continue
        found = _in_value(value, f"{path}{field.json_name}", field)
        if found is not None:
            return found
    return None


def _in_value(value: Any, path: str, field: Any) -> str | None:
    if isinstance(value, str):
        return path if "\x00" in value else None
    if isinstance(value, Message):
        return text_with_nul(value, f"{path}.")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return path if any("\x00" in key + text for key, text in value.items()) else None
    for position, item in enumerate(value):
        found = _in_value(item, f"{path}[{position}]", field)
        if found is not None:
            return found
    return None

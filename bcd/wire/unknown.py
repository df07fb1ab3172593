"""Finds fields that this version does not know, at any depth of a message.

The API refuses them (spec 2.2); the node protocol tolerates them. protobuf's own JSON parser
refuses unknown names but nothing refuses unknown tags in binary, hence this walk.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet


def unknown_field(message: Message, path: str = "") -> str | None:
    """The path of the first unknown field, ``devices[0].#99`` for tag 99, or None."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"{path}#{unknown[0].field_number}"
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        found = _in_value(field, value, path)
        if found is not None:
            return found
    return None


def _in_value(field: Any, value: Any, path: str) -> str | None:
    name = f"{path}{field.json_name}"
    if isinstance(value, Message):
        return unknown_field(value, f"{name}.")
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return None  # the API's maps hold plain strings
    for position, item in enumerate(value):
        found = unknown_field(item, f"{name}[{position}].")
        if found is not None:
            return found
    return None

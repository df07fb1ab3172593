"""The one JSON codec: protobuf messages to lower-camel documents with real numbers, and back.

protobuf's own JSON writes 64-bit integers as strings and reports errors by proto names; people
and programs here see the same names and numbers in requests, answers and errors.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from bcd.model.errors import InvalidInput

MAX_DOCUMENT_BYTES = 1 << 20
_MAX_DEPTH = 16
_MAX_DIGITS = 40
_BYTE_ORDER_MARK = "\ufeff"  # some editors begin every file with it

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
# A duration may be written as a bare number of milliseconds.
_NUMBER_OR_TEXT = frozenset(
    f"bcd.wire.compute.v1.{message}.duration"
    for message in ("CreateReservationRequest", "PreviewCapacityRequest")
)

# The two protobuf runtimes share no descriptor type.
_Field = Any
_M = TypeVar("_M", bound=Message)


def to_document(message: Message, *, defaults: bool = False) -> dict[str, Any]:
    """The message as a JSON-ready mapping, keys in lower camel case, in field order.

    Unset fields are left out; with ``defaults`` those without presence show their zero value.
    """
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence:
            if message.HasField(field.name):
                document[field.json_name] = _value_out(field, value, defaults)
        elif defaults or value:
            document[field.json_name] = _value_out(field, value, defaults)
    return document


def _value_out(field: _Field, value: Any, defaults: bool) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_single_out(field, item, defaults) for item in value]
    return _single_out(field, value, defaults)


def _single_out(field: _Field, value: Any, defaults: bool) -> Any:
    if field.message_type is not None:
        return to_document(value, defaults=defaults)
    return value


def parse_json(text: str | bytes, what: str) -> dict[str, Any]:
    """Decode one JSON object of at most 1 MiB; raises InvalidInput naming ``what``.

    A key that stands there twice is refused: one of the two is not what somebody meant.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for key, value in pairs:
            if key in document:
                raise InvalidInput(what, f"has the key {key[:64]} twice")
            document[key] = value
        return document

    def constant(name: str) -> object:
        raise InvalidInput(what, f"has {name}, which is not JSON")

    if len(text) > MAX_DOCUMENT_BYTES:
        raise InvalidInput(what, f"is larger than {MAX_DOCUMENT_BYTES} bytes")
    try:
        plain = text if isinstance(text, str) else text.decode()
        document = json.loads(
            plain.removeprefix(_BYTE_ORDER_MARK),
            object_pairs_hook=unique,
            parse_int=_integer,
            parse_constant=constant,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInput(what, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput(what, "is not a JSON object")
    return document


def _integer(digits: str) -> int:
    """The number, or one that is just as far out of range: its field says so, by name."""
    return int(digits[:_MAX_DIGITS])


def from_document(document: Mapping[str, Any], kind: type[_M]) -> _M:
    """Build a message from a JSON document; strict in names, types and ranges.

    Raises InvalidInput with the field's path, such as ``devices[0].count``.
    """
    message = kind()
    _fill(message, document, "", 0)
    return message


def _fill(message: Message, document: Mapping[str, Any], path: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise InvalidInput(path.rstrip("."), "is nested too deeply")
    fields = {field.json_name: field for field in message.DESCRIPTOR.fields}
    for key, value in document.items():
        field = fields.get(key)
        if field is None:
            raise InvalidInput(f"{path}{key}", "is not a known field")
        if value is not None:
            _set(message, field, value, f"{path}{key}", depth)


def _set(message: Message, field: _Field, value: Any, path: str, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(value, dict):
            raise InvalidInput(path, "must be an object of strings")
        getattr(message, field.name).update(
            {_text(key, path): _text(item, path) for key, item in value.items()}
        )
    elif field.is_repeated:
        if not isinstance(value, list):
            raise InvalidInput(path, "must be an array")
        for position, item in enumerate(value):
            _append(message, field, item, f"{path}[{position}]", depth)
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        _fill(child, _object(value, path), f"{path}.", depth + 1)
    else:
        setattr(message, field.name, _scalar(field, value, path))


def _append(message: Message, field: _Field, item: Any, path: str, depth: int) -> None:
    items = getattr(message, field.name)
    if field.message_type is not None:
        _fill(items.add(), _object(item, path), f"{path}.", depth + 1)
    else:
        items.append(_scalar(field, item, path))


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(path, "must be an object")
    return value


def _scalar(field: _Field, value: Any, path: str) -> object:
    if field.cpp_type in _INTEGERS:
        low, high = _INTEGERS[field.cpp_type]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidInput(path, "must be an integer within range")
        return value
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise InvalidInput(path, "must be true or false")
        return value
    if field.full_name in _NUMBER_OR_TEXT and type(value) is int:
        return str(value)
    return _text(value, path)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(path, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(path, "has half of a surrogate pair") from error
    return value

"""Identifiers: TypeIDs, reservation ids, SPIFFE ids of certificates.

An id that came from outside is parsed here before it names a file, a unit or a row.
"""

import re
from typing import NewType

from bcd.model.errors import InvalidInput

NodeId = NewType("NodeId", str)
PoolId = NewType("PoolId", str)
AllocationId = NewType("AllocationId", str)
ReservationId = NewType("ReservationId", str)
ConfirmationId = NewType("ConfirmationId", str)

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_TYPE_ID = re.compile(r"([a-z]{2,10})_[0-7][0-9a-hjkmnp-tv-z]{25}\Z")
_RESERVATION_ID = re.compile(r"rsv_[a-z2-7]{52}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def type_id(prefix: str, now_ms: int, entropy: bytes) -> str:
    """Make a TypeID: ``prefix``, ``_`` and 26 Crockford base32 characters of a UUIDv7.

    ``entropy`` gives at least 10 random bytes. Ids made in one process sort by time.
    https://github.com/jetify-com/typeid, RFC 9562 section 5.7.
    """
    random = int.from_bytes(entropy[:10], "big")
    value = (now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64
    value |= 0b10 << 62 | random & (1 << 62) - 1
    return prefix + "_" + "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def is_type_id(prefix: str, text: str) -> bool:
    """Whether ``text`` is a TypeID of that prefix, in its canonical spelling."""
    match = _TYPE_ID.match(text)
    return match is not None and match[1] == prefix


def parse_type_id(prefix: str, text: str, field: str) -> str:
    """Return ``text`` when it is a TypeID of that prefix; raises InvalidInput naming ``field``."""
    if not is_type_id(prefix, text):
        raise InvalidInput(field, f"is not an id of the form {prefix}_ and 26 characters")
    return text


def is_allocation_id(text: str) -> bool:
    """Whether ``text`` may name an allocation's files and units: nothing but ``[a-z0-9_]``."""
    return is_type_id("alloc", text)


def is_reservation_id(text: str) -> bool:
    """Whether ``text`` has the form of a reservation's id (spec 3.1)."""
    return _RESERVATION_ID.match(text) is not None


def is_plain_name(text: str) -> bool:
    """Whether ``text`` is a short name of letters, digits, dots, dashes and underscores."""
    return _NAME.match(text) is not None

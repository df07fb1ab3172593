"""Addresses and names in settings: where to listen, and what others dial."""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

_PORT = (
    r"(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}|0)"
)
_LISTEN = rf"^(?:\[[0-9a-fA-F:.]*\]|[A-Za-z0-9._-]+):{_PORT}\Z"
_NAME = r"^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)\Z"

_DIALLED = rf"^(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?!0\Z){_PORT}\Z"
# The same form; the empty group makes it a pattern of its own, with words of its own.
_API = rf"(?:){_DIALLED}"
# Everybody may read what is served there without asking: not for other hosts.
LOOPBACK_OR_NONE = rf"^(?:(?:127(?:\.[0-9]{{1,3}}){{3}}|\[::1\]|localhost):{_PORT})?\Z"

Listen = Annotated[str, msgspec.Meta(pattern=_LISTEN)]
Dialled = Annotated[str, msgspec.Meta(pattern=_DIALLED)]
DialledApi = Annotated[str, msgspec.Meta(pattern=_API)]
DialledName = Annotated[str, msgspec.Meta(pattern=_NAME)]


def is_dialled(text: str) -> bool:
    """Whether ``text`` is an address that can be dialled."""
    return re.match(_DIALLED, text) is not None


# What each pattern asks for, in words.
FORMS: Mapping[str, str] = {
    _LISTEN: "must be host:port, such as [::]:7443 or 127.0.0.1:0 (0 takes a free port)",
    LOOPBACK_OR_NONE: "must be a port of this host alone, such as 127.0.0.1:9410, or empty",
    _DIALLED: "must be host:port, such as gateway.example:7443",
    _API: "must be host:port of the placer, such as placer.example:7445",
    _NAME: "must be a DNS name or an IP address, as it goes into a certificate",
}

"""Where a webhook may point: which URLs are sound, and which addresses may be dialled. Pure.

Whoever may set a webhook chooses where this machine connects to: not to itself, its neighbours or
the metadata service of its cloud. A name is judged by the addresses that it has when it is dialled.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from bcd.model.errors import BadConfiguration, InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL = 1024
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?\Z")
_VISIBLE = re.compile(r"[!-~]+\Z")
# The addresses inside belong to whoever runs the translation.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
# What Python's own tables call global, in some version at least: protocol assignments (a cloud's
# metadata service is there), documentation, and an address inside every machine of one cloud.
_INSIDE = tuple(
    ipaddress.ip_network(text) for text in ("192.0.0.0/24", "3fff::/20", "168.63.129.16/32")
)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart; ``path`` has the query."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As the Host header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reach:
    """What the settings let webhooks reach beside HTTPS at public addresses."""

    allow_http: bool = False
    networks: tuple[Network, ...] = ()

    def may_dial(self, address: Address) -> bool:
        """Whether connections to an address are allowed."""
        plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return is_public(address) or any(
            one.version == network.version and one in network
            for one in (address, plain)
            if one is not None
            for network in self.networks
        )


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read a setting's networks, such as ``10.0.0.0/8``; raises BadConfiguration."""
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise BadConfiguration(
            f"webhooks.allow_private: {error}; write networks such as 10.0.0.0/8 or ::1/128"
        ) from error


def is_public(address: Address) -> bool:
    """Whether an address, and one that it carries inside, is of the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in _UNICAST:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(one.version == address.version and address in one for one in _INSIDE)
    )


def parse_target(url: str, reach: Reach) -> Target:
    """Take a URL apart; raises InvalidInput naming ``url``."""
    if len(url) > MAX_URL or not _VISIBLE.match(url):
        raise InvalidInput("url", f"must be at most {MAX_URL} visible ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput("url", "is not a URL; write https://host/path") from error
    if parts.scheme not in ("https", "http"):
        raise InvalidInput("url", "must begin with https://")
    if parts.scheme == "http" and not reach.allow_http:
        raise InvalidInput("url", "must begin with https://; http is not allowed here")
    if "@" in parts.netloc or "#" in url:
        raise InvalidInput("url", "must have neither a user name nor a fragment")
    host = parts.hostname or ""
    if not _is_host(host) or port == 0:
        raise InvalidInput("url", "must name a host, by a DNS name or an address")
    secure = parts.scheme == "https"
    query = f"?{parts.query}" if parts.query else ""
    return Target(secure, host, port or (443 if secure else 80), (parts.path or "/") + query)


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return "%" not in host  # a zone means something on one host only
    return len(host) <= 253 and _DNS_NAME.match(host) is not None

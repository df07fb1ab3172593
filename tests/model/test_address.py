"""Addresses and names in settings: what a socket or a certificate can take, and nothing else."""

from typing import Any

import msgspec
import pytest

from bcd.model.address import Dialled, DialledName, Listen


@pytest.mark.parametrize(
    "address",
    ["[::]:7443", "127.0.0.1:0", "localhost:65535", "gateway-1.gpu.example:7443", "[fe80::1]:1"],
)
def test_an_address_to_listen_on(address: str) -> None:
    assert msgspec.convert(address, Listen) == address


@pytest.mark.parametrize(
    "address",
    ["", ":7443", "host", "host:", "host:65536", "host:070", "::1:7443", "h h:1", "h:1\n", "http://h:1"],
)  # fmt: skip
def test_what_is_no_address_to_listen_on(address: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(address, Listen)


@pytest.mark.parametrize(
    "name", ["localhost", "gateway.gpu.example", "10.0.0.1", "::1", "a", "x" * 253]
)
def test_a_name_to_dial(name: str) -> None:
    assert msgspec.convert(name, DialledName) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "a b", "a:7443/", "https://a", "*.example", "a\n", "x" * 254, 1]
)
def test_what_is_no_name_to_dial(name: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, DialledName)


def test_an_address_to_dial_has_a_port() -> None:
    for address in ("placer.gpu.example:7445", "[::1]:1", "10.0.0.1:65535"):
        assert msgspec.convert(address, Dialled) == address
    for address in ("", "host", "host:0", "host:65536", "host:99999", ":1", "[]:1", "h:1\n"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(address, Dialled)

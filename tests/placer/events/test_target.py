"""Where webhooks may point."""

import ipaddress

import pytest

from bcd.model.errors import BadConfiguration, InvalidInput
from bcd.placer.events.target import Reach, Target, is_public, networks_of, parse_target

PRIVATE = (
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:0.0.0.0",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "64:ff9b::7f00:1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "3fff::1",
    "ff02::1",
    "ff0e::1",
)
PUBLIC = (
    "1.1.1.1",
    "8.8.8.8",
    "172.32.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2606:4700:4700::1111",
)


@pytest.mark.parametrize("text", PRIVATE)
def test_an_address_inside_is_not_public(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert not is_public(address)
    assert not Reach().may_dial(address)


@pytest.mark.parametrize("text", PUBLIC)
def test_an_address_of_the_internet_may_be_dialled(text: str) -> None:
    assert Reach().may_dial(ipaddress.ip_address(text))


def test_a_network_of_the_settings_may_be_dialled_and_no_other() -> None:
    reach = Reach(networks=networks_of(["10.20.0.0/16", "::1/128"]))
    for text, may in (
        ("10.20.3.4", True),
        ("::ffff:10.20.3.4", True),
        ("::1", True),
        ("10.21.0.1", False),
        ("127.0.0.1", False),
        ("::ffff:127.0.0.1", False),
    ):
        assert reach.may_dial(ipaddress.ip_address(text)) is may


@pytest.mark.parametrize("text", ["10.0.0.1/8", "lan", "10.0.0.0/33", ""])
def test_a_setting_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(BadConfiguration, match=r"webhooks\.allow_private.*10\.0\.0\.0/8"):
        networks_of([text])


def test_a_url_is_taken_apart() -> None:
    assert parse_target("https://Hooks.Example/in?a=1&b", Reach()) == Target(
        True, "hooks.example", 443, "/in?a=1&b"
    )
    plain = parse_target("http://[2606:4700::1]:8080", Reach(allow_http=True))
    assert plain == Target(False, "2606:4700::1", 8080, "/")
    assert plain.authority == "[2606:4700::1]:8080"
    assert parse_target("https://h", Reach()).authority == "h"
    assert parse_target("https://h:8443", Reach()).authority == "h:8443"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example",
        "http://hooks.example/",
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user@hooks.example/",
        "https://user:secret@hooks.example/",
        "https://hooks.example/#part",
        "https://hooks.example:0/",
        "https://hooks.example:70000/",
        "https://hooks.example:port/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://[nonsense]/",
        "https://-hooks.example/",
        "https://hooks..example/",
        "https://hooks.example/a b",
        "https://hooks.example/\r\nx-injected: 1",
        "https://höoks.example/",
        "https://hooks.example/\x00",
        "https://" + "a" * 64 + ".example/",
        "https://hooks.example/" + "a" * 1024,
    ],
)
def test_a_url_that_is_not_sound_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_target(url, Reach())
    assert refused.value.field == "url"

"""The settings file: samples that work as they stand, and refusals that name the key."""

from pathlib import Path

import msgspec
import pytest

from bcd.cli.program import load_settings
from bcd.model.errors import BadConfiguration
from bcd.node.settings import (
    CdiSettings,
    GatewaySettings,
    LogSettings,
    NvmlSettings,
    PassSettings,
    PathSettings,
    Settings,
    paths_of,
    settled,
)

PACKAGING = Path(__file__).parents[2] / "packaging"
GATEWAY = '[gateway]\naddress = "g:7443"\nenroll_address = "g:7444"\n'


def load(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "bcd.toml"
    path.write_bytes(text.encode())
    return load_settings(path, Settings)


def test_the_short_sample_is_all_that_a_host_needs() -> None:
    settings = load_settings(PACKAGING / "bcd.toml", Settings)
    assert settings == Settings(gateway=settings.gateway)


def test_the_full_sample_shows_every_setting_with_its_default() -> None:
    short = load_settings(PACKAGING / "bcd.toml", Settings)
    assert load_settings(PACKAGING / "bcd-full.toml", Settings) == short
    text = (PACKAGING / "bcd-full.toml").read_text()
    sections = msgspec.to_builtins(short)
    for name, section in sections.items():
        assert f"[{name}]" in text
        for key in section:
            assert f"\n{key} = " in text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "gateway"),
        ("[gateway]\naddress = 3\n", "address"),
        (GATEWAY + "[path]\n", "path"),
        (GATEWAY + "[paths]\nrot = '/'\n", "rot"),
        (GATEWAY + "[paths]\nroot = 'here'\n", "paths.root must be an absolute path"),
        (GATEWAY + "[paths]\nsocket = 'x'\n", "paths.socket"),
        (GATEWAY + '[paths]\nstate = "/x\\u0000y"\n', "paths.state must be an absolute path"),
        (GATEWAY + '[paths]\nroot = "/\\u0000"\n', "paths.root must be an absolute path"),
        (GATEWAY + "[cdi]\nannotations = 'sometimes'\n", "annotations"),
        (GATEWAY + "[cdi]\nhook = 'perhaps'\n", "cdi.hook"),
        (GATEWAY + '[cdi]\nhook = "/x\\n"\n', "cdi.hook"),
        (GATEWAY + "[cdi]\ndriver_root = 'run/nvidia'\n", "cdi.driver_root"),
        (GATEWAY + "[log]\nlevel = 'loud'\n", "level"),
        (GATEWAY + "[passes]\nevery_seconds = 0\n", "every_seconds"),
        (GATEWAY + "[passes]\nevery_seconds = 1e9\n", "every_seconds"),
        (GATEWAY + "[passes]\nwatch_seconds = nan\n", "watch_seconds"),
        (
            '[gateway]\naddress = "g"\nenroll_address = "g:1"\n',
            "gateway.address: must be host:port",
        ),
        ('[gateway]\naddress = "g:99999"\nenroll_address = "g:1"\n', "gateway.address"),
        ('[gateway]\naddress = "g:1"\nenroll_address = "g:0"\n', "gateway.enroll_address"),
        ('[gateway]\naddress = "a b:1"\nenroll_address = "g:1"\n', "gateway.address"),
        ("[gateway\n", "not TOML"),
        ("\0", "not TOML"),
        ("x = " + "[" * 5_000, "bcd.toml"),
    ],
)
def test_a_bad_setting_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        load(tmp_path, text)
    assert named in caught.value.message
    assert "bcd.toml" in caught.value.message


def test_ipv6_addresses_are_addresses() -> None:
    settings = GatewaySettings(address="[::1]:7443", enroll_address="[2001:db8::1]:7444")
    assert Settings(gateway=settings).gateway == settings


def test_everything_lies_below_the_root_unless_it_is_placed() -> None:
    paths = paths_of(PathSettings(root="/scratch", env="/elsewhere"))
    assert paths.state == Path("/scratch/var/lib/bcd")
    assert paths.cdi == Path("/scratch/etc/cdi")
    assert paths.env == Path("/elsewhere")


def test_a_socket_that_unix_cannot_name_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadConfiguration, match=r"paths\.socket.*set a shorter path"):
        paths_of(PathSettings(root="/" + "x" * 120))


def test_only_some_settings_are_taken_over_while_running() -> None:
    gateway = GatewaySettings(address="gw.example:1", enroll_address="gw.example:2")
    running = Settings(gateway=gateway)
    read = Settings(
        gateway=gateway,
        passes=PassSettings(every_seconds=5),
        log=LogSettings(level="debug"),
        cdi=CdiSettings(annotations="never"),
    )
    assert settled(running, read) == (read, ())
    other = msgspec.structs.replace(
        read,
        cdi=CdiSettings(annotations="never", driver_root="/run/nvidia/driver"),
        nvml=NvmlSettings(busy_check=False),
    )
    kept, names = settled(running, other)
    assert kept == read
    assert names == ("cdi", "nvml")

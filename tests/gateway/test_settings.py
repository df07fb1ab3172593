"""The gateway's settings: refused by name where nobody could have meant them."""

from pathlib import Path

import pytest

from bcd.cli.program import load_settings
from bcd.gateway.settings import Program
from bcd.model.errors import BadConfiguration


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('node_listen = "7443"', "gateway.node_listen: must be host:port"),
        ("heartbeat_interval_ms = 0", "gateway.heartbeat_interval_ms"),
        ("heartbeat_interval_ms = 20000", "at least twice heartbeat_interval_ms"),
        ("tick_ms = -1", "gateway.tick_ms"),
        ("max_sessions = 0", "gateway.max_sessions"),
        ("hello_timeout_ms = 3600001", "gateway.hello_timeout_ms"),
        ("colour = 1", "colour"),
    ],
)
def test_a_setting_out_of_bounds_is_named(tmp_path: Path, setting: str, named: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(f'database = "postgresql:///x"\n[gateway]\n{setting}\n')
    with pytest.raises(BadConfiguration, match=named) as caught:
        load_settings(path, Program)
    assert str(path) in caught.value.message


def test_names_and_log_levels_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    for line, named in (
        ('names = ["https://gw"]', "must be a DNS name"),
        ('log_level = "loud"', "log_level"),
    ):
        path.write_text(f'database = "postgresql:///x"\n{line}\n')
        with pytest.raises(BadConfiguration, match=named):
            load_settings(path, Program)

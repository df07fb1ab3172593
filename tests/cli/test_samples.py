"""The placer's sample settings and the units are real, complete and true."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bcd.cli.placer import Settings
from bcd.cli.program import EXIT_CONFIGURATION, load_settings

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def differences(document: dict[str, Any], kind: type, path: str = "") -> list[str]:
    """Settings that a full sample leaves out, or gives another value than the default."""
    found = []
    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.encode_name}"
        if field.default is None or field.required:
            continue  # shown as a comment, or without a default
        value = document.get(field.encode_name)
        if isinstance(field.default, msgspec.Struct):
            nested = value if isinstance(value, dict) else {}
            found += differences(nested, type(field.default), f"{name}.")
        elif msgspec.json.decode(msgspec.json.encode(field.default, enc_hook=str)) != value:
            found.append(name)
    return found


def test_both_samples_load() -> None:
    for name in ("placer.toml", "placer-full.toml"):
        assert load_settings(PACKAGING / name, Settings).database.startswith("sqlite:////")


def test_the_full_sample_gives_every_setting_with_its_default() -> None:
    document = tomllib.loads((PACKAGING / "placer-full.toml").read_text())
    assert differences(document, Settings) == []
    del document["api"]["listen"]
    document["gateway"]["tick_ms"] = 1
    assert differences(document, Settings) == ["api.listen", "gateway.tick_ms"]


@pytest.mark.parametrize("program", ["bcd", "bcd-gateway", "bcd-placer"])
def test_a_unit_waits_for_somebody_when_the_settings_cannot_be_used(program: str) -> None:
    unit = (ROOT / "systemd" / f"{program}.service").read_text()
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert str(EXIT_CONFIGURATION) in codes.split()


def test_the_folder_that_the_readme_gives_a_simulated_host_is_one_that_its_unit_may_write() -> None:
    (root,) = re.findall(r'\[paths\] root = "([^"]+)"', (ROOT / "README.md").read_text())
    unit = (ROOT / "systemd/bcd.service").read_text()
    (own,) = re.findall(r"^StateDirectory=(.*)$", unit, re.MULTILINE)
    assert Path(root).is_relative_to(f"/var/lib/{own}")

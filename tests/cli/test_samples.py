"""The placer's sample settings are real, complete and true."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from bcd.cli.placer import Settings
from bcd.cli.program import load_settings

PACKAGING = Path(__file__).parents[2] / "packaging"


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

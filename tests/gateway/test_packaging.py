"""The sample configurations are what the program reads, and say what its defaults are."""

from pathlib import Path

from bcd.cli.program import load_settings
from bcd.gateway.settings import Program, Settings

PACKAGING = Path(__file__).parents[2] / "packaging"


def test_the_short_sample_needs_nothing_but_defaults() -> None:
    settings = load_settings(PACKAGING / "gateway.toml", Program)
    assert settings == Program(database=settings.database, names=settings.names)


def test_the_full_sample_names_every_setting_with_its_default() -> None:
    path = PACKAGING / "gateway-full.toml"
    settings = load_settings(path, Program)
    assert settings == load_settings(PACKAGING / "gateway.toml", Program)
    lines = path.read_text().splitlines()
    for name in (*Program.__struct_fields__, *Settings.__struct_fields__):
        assert any(line.startswith((f"{name} = ", f"[{name}]")) for line in lines), name

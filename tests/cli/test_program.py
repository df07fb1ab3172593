"""What the daemons' commands share: settings files, secrets, and their help."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd.cli import bcd, gateway, placer, program
from bcd.cli.program import load_settings, read_secret
from bcd.model.errors import BadConfiguration
from bcd.node.settings import Settings
from tests.closed import ordinary_user


def test_a_missing_file_of_a_package_is_made_from_its_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "SETTINGS", tmp_path / "etc/bcd")
    monkeypatch.setattr(program, "SAMPLES", tmp_path / "share")
    path = tmp_path / "etc/bcd/placer.toml"
    with pytest.raises(BadConfiguration, match="name another file with --config"):
        load_settings(path, Settings)
    sample = tmp_path / "share/bcd-control/placer.toml"
    sample.parent.mkdir(parents=True)
    sample.touch()
    with pytest.raises(BadConfiguration, match=f"install -D -m 644 {sample} {path}"):
        load_settings(path, Settings)
    with pytest.raises(BadConfiguration, match="name another file with --config"):
        load_settings(tmp_path / "placer.toml", Settings)


def test_a_file_that_is_closed_to_this_user_is_for_root() -> None:
    with ordinary_user(), pytest.raises(BadConfiguration, match="run it as root"):
        load_settings(Path("/proc/1/mem"), Settings)


def test_a_token_that_others_may_read_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    for mode, told in ((0o600, False), (0o640, True), (0o604, True)):
        path.chmod(mode)
        assert read_secret(str(path), 1024) == "secret"
        said = capsys.readouterr()
        assert ("so others may have read the token" in said.err) is told
        assert "secret" not in said.err + said.out


@pytest.mark.parametrize(
    "parser", [bcd._parser(), placer._parser(), gateway._parser()], ids=lambda p: p.prog
)
def test_every_verb_says_what_it_does_and_every_option_what_it_is_for(
    parser: argparse.ArgumentParser,
) -> None:
    parsers = dict(verbs(parser))
    assert len(parsers) >= 2
    for name, verb in parsers.items():
        assert verb.description, name
        for action in verb._actions:
            assert action.help, (name, action)
    assert "78 (run)" in str(parser.epilog)


def verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The verbs of a command, with their parsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def test_the_order_of_words_is_judged_for_every_verb_that_there_is() -> None:
    assert set(bcd._VERBS) == {name for name, _ in verbs(bcd._parser())}

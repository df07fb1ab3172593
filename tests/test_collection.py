"""Folders of slow tests: naming one without its option is told, and finds no test in silence."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EXTRAS

ROOT = Path(__file__).parents[1]


def collect(*words: str) -> subprocess.CompletedProcess[str]:
    """What pytest would run."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("tests/vm", "--vm"),
        ("tests/promtool/test_promtool.py::test_the_rules_are_sound", "--promtool"),
        ("tests/store/postgresql", "--engine postgresql"),
    ],
)
def test_a_folder_without_its_option_is_refused_with_the_option(path: str, option: str) -> None:
    done = collect(path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{path}: add {option}" in done.stdout + done.stderr


def test_with_its_option_it_is_collected() -> None:
    done = collect("tests/promtool", "--promtool")
    assert done.returncode == 0
    assert "test_the_rules_are_sound" in done.stdout


def test_every_option_has_its_folder() -> None:
    assert [name for name in EXTRAS if not (ROOT / "tests" / name).is_dir()] == []

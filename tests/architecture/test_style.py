"""Format, lint and types, over the whole project."""

from tests.architecture.tree import run


def test_the_code_is_formatted() -> None:
    done = run("ruff", "format", "--check", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_finds_nothing() -> None:
    done = run("ruff", "check", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_hold_strictly() -> None:
    done = run("mypy")
    assert done.returncode == 0, done.stdout + done.stderr

"""The tree that the rules are about, and copies of it in which a rule can be broken."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def own_modules(root: Path = ROOT) -> Iterator[Path]:
    """Every module of the package that a person wrote, sorted."""
    for path in sorted(root.joinpath("bcd").rglob("*.py")):
        if "_pb2" not in path.name:
            yield path


def parsed(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text("utf-8"), str(path))


def copy_tree(target: Path, *folders: str) -> None:
    """Copy folders of the repository, so that a test may change them."""
    for folder in folders:
        shutil.copytree(
            ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__")
        )


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment; its output is returned, whatever its exit code."""
    program = Path(sys.executable).with_name(command[0])
    return subprocess.run(
        [str(program), *command[1:]], cwd=cwd, capture_output=True, text=True, check=False
    )

"""A command whose extra is not installed says which one to install."""

import subprocess
import sys

import pytest

HIDDEN = "import sys; sys.modules[{library!r}] = None; sys.argv = {argv!r}; from bcd import cli; "


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [
        ("better_compute --help", "click", "cli"),
        ("better_compute list", "rich", "cli"),
        ("better_compute dev --sim 1", "cedarpy", "control"),
        ("bcd_placer run", "cedarpy", "control"),
        ("bcd_placer token --subject you", "jwt", "control"),
    ],
)
def test_the_missing_library_and_its_extra_are_named(
    command: str, library: str, extra: str
) -> None:
    argv = command.split()
    done = subprocess.run(
        [sys.executable, "-c", f"{HIDDEN.format(library=library, argv=argv)} cli.{argv[0]}()"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"{argv[0].replace('_', '-')}: the library {library} is not installed; install the extra"
        f" {extra}: pip install '/path/to/better-compute[{extra}]'\n"
    )

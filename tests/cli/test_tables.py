"""Tables for people, as pipes and terminals of several widths get them (spec 17.1)."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

_RSV = "rsv_" + "abcdefghijklm234" * 3 + "xyz7"
_PROGRAM = f"""
from bcd.cli.better_compute.tables import print_table
print_table(
    ("ID", "STATE", "NODE", "WORDS"),
    [("{_RSV}", "active", "node_01m8n3a6kre5gaqddtrrg0ebqe", "one two three " * count)
     for count in (0, 5)],
)
"""


def in_a_pipe() -> list[str]:
    """The lines that another program reads."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def on_a_terminal(columns: int, **environment: str) -> list[str]:
    """The lines that a terminal of so many columns shows, with what colours them."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    keep = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=slave, stdout=slave, stderr=subprocess.STDOUT,
        env={**keep, "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(slave)
    said = b""
    try:
        while chunk := os.read(master, 65536):
            said += chunk
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(master)
    assert process.wait(60) == 0, said
    return said.decode().splitlines()


def plain(lines: list[str]) -> list[str]:
    """The lines without what makes them bold."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


def test_a_pipe_gets_whole_lines_and_no_blanks_behind_them() -> None:
    heading, empty, full = in_a_pipe()
    assert heading.split() == ["ID", "STATE", "NODE", "WORDS"]
    assert empty == f"{_RSV}  active  node_01m8n3a6kre5gaqddtrrg0ebqe"
    assert full.endswith("one two three one two three one two three one two three one two three")


def test_a_wide_terminal_gets_what_a_pipe_gets() -> None:
    assert [line.rstrip() for line in plain(on_a_terminal(240))] == in_a_pipe()


@pytest.mark.parametrize("columns", [80, 90, 120])
def test_a_narrower_one_gets_short_ids_and_folded_words(columns: int) -> None:
    lines = plain(on_a_terminal(columns))
    assert max(map(len, lines)) <= columns
    assert lines[1].split()[:3] == [_RSV[:16], "active", "node_01m8n3a6kre5gaqddtrrg0ebqe"]
    assert len(lines) > 3


def test_a_very_narrow_one_gets_blocks_in_which_nothing_is_broken() -> None:
    lines = plain(on_a_terminal(60))
    assert lines[0] == f"id     {_RSV[:16]}"
    assert lines[2:5] == ["node   node_01m8n3a6kre5gaqddtrrg0ebqe", "", f"id     {_RSV[:16]}"]


def test_no_color_is_honoured() -> None:
    """A heading may be bold; no sequence sets a colour."""
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9|10)[0-7]m", "".join(on_a_terminal(80, NO_COLOR="1")))
    assert "\x1b" not in "".join(on_a_terminal(80, TERM="dumb"))

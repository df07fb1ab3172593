"""SONAMEs of real, made and damaged libraries."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcd.node.host.driver.elf import soname, triplet
from tests.node.host.driver.fake import elf

GOOD = elf("libcuda.so.1")


def test_the_c_library_of_this_process_names_itself() -> None:
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"(/\S*/(libc\.so\.6))$", maps, re.MULTILINE)
    assert found is not None
    assert soname(found[1]) == found[2]
    assert triplet(found[1])


def test_a_made_library_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(GOOD)
    assert soname(str(path)) == "libcuda.so.1"


def test_a_platform_is_named_as_debian_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    for machine, name in ((62, "x86_64-linux-gnu"), (183, "aarch64-linux-gnu"), (3, "")):
        path.write_bytes(GOOD[:18] + machine.to_bytes(2, "little") + GOOD[20:])
        assert triplet(str(path)) == name


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\nb", "", "x" * 300, "a b", "ä"])
def test_a_name_that_cannot_be_one_is_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(elf(name))
    assert soname(str(path)) == ""


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert soname(str(tmp_path / "pipe")) == triplet(str(tmp_path / "pipe")) == ""


def test_what_is_no_library_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("#!/bin/sh\n")
    (tmp_path / "link").symlink_to("text")
    for name in ("folder", "pipe", "text", "link", "nothing", "nul\0"):
        assert soname(f"{tmp_path}/{name}") == ""
    for name in ("folder", "text", "link", "nothing"):
        assert triplet(f"{tmp_path}/{name}") == ""


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    at=st.integers(0, len(GOOD) - 1),
    by=st.binary(min_size=1, max_size=16),
    keep=st.integers(0, len(GOOD)),
)
def test_a_damaged_library_has_a_plain_name_or_none(
    tmp_path: Path, at: int, by: bytes, keep: int
) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes((GOOD[:at] + by + GOOD[at + len(by) :])[:keep])
    assert re.fullmatch(r"[A-Za-z0-9_.+-]*", soname(str(path)))

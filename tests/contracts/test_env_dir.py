"""What every ``EnvDir`` does."""

from pathlib import Path

import pytest

from bcd.node.host.env import EnvFolder
from bcd.node.ports import EnvDir
from tests.node.memory import MemoryEnv
from tests.node.world import alloc_id


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> EnvDir:
    return EnvFolder(tmp_path / "env") if request.param == "disk" else MemoryEnv()


def test_a_new_folder_is_empty(folder: EnvDir) -> None:
    assert folder.read() == {}


def test_what_was_written_is_read_by_allocation(folder: EnvDir) -> None:
    folder.write(alloc_id(2), b"A=2\n")
    folder.write(alloc_id(1), b"A=1\n")
    folder.write(alloc_id(1), b"A=3\n")
    assert folder.read() == {alloc_id(1): b"A=3\n", alloc_id(2): b"A=2\n"}


def test_removing_is_idempotent(folder: EnvDir) -> None:
    folder.write(alloc_id(1), b"A=1\n")
    folder.remove(alloc_id(1))
    folder.remove(alloc_id(1))
    assert folder.read() == {}


def test_the_fingerprint_tells_of_changes(folder: EnvDir) -> None:
    before = folder.fingerprint()
    folder.write(alloc_id(1), b"A=1\n")
    assert folder.fingerprint() != before

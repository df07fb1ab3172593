"""What every ``CdiDir`` does: the folders on disk, and the ones in memory that other tests use."""

from pathlib import Path

import pytest

from bcd.node.host.cdi import SpecFolders
from bcd.node.ports import CdiDir
from tests.node.memory import MemoryCdi
from tests.node.world import alloc_id

MAIN = f"bcd-{alloc_id(1)}.json"
OTHER = f"bcd-{alloc_id(1)}.gpu.mig.json"


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> CdiDir:
    if request.param == "disk":
        return SpecFolders(tmp_path / "cdi", tmp_path / "dynamic")
    return MemoryCdi()


def names(folder: CdiDir) -> list[tuple[str, str, bytes | None]]:
    return [(spec.name, spec.device_class, spec.content) for spec in folder.read().own]


def test_a_new_folder_is_empty(folder: CdiDir) -> None:
    assert names(folder) == []
    assert folder.read().foreign == ()


def test_what_was_written_is_read_by_name(folder: CdiDir) -> None:
    folder.write(OTHER, b"other")
    folder.write(MAIN, b"main")
    assert names(folder) == [(OTHER, "gpu.mig", b"other"), (MAIN, "", b"main")]
    assert {spec.allocation_id for spec in folder.read().own} == {alloc_id(1)}


def test_writing_again_replaces(folder: CdiDir) -> None:
    folder.write(MAIN, b"one")
    folder.write(MAIN, b"two")
    assert names(folder) == [(MAIN, "", b"two")]


def test_removing_is_idempotent(folder: CdiDir) -> None:
    folder.write(MAIN, b"one")
    folder.remove(MAIN)
    folder.remove(MAIN)
    assert names(folder) == []


@pytest.mark.parametrize("name", ["../x.json", "bcd-x.json", "nvidia.json", "", f"{MAIN}\n"])
def test_a_name_that_is_not_a_holds_is_never_written_or_removed(folder: CdiDir, name: str) -> None:
    with pytest.raises(ValueError):
        folder.write(name, b"x")
    with pytest.raises(ValueError):
        folder.remove(name)


def test_the_fingerprint_tells_of_changes(folder: CdiDir) -> None:
    before = folder.fingerprint()
    assert folder.fingerprint() == before
    folder.write(MAIN, b"one")
    written = folder.fingerprint()
    assert written != before
    folder.write(MAIN, b"two")
    assert folder.fingerprint() != written

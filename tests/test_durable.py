"""Files that are replaced whole: the reader sees old or new, and a failure leaves the old."""

import os
import resource
from pathlib import Path

import pytest

from bcd.durable import remove_file, replace_file


def test_a_file_is_replaced_with_the_mode_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "state"
    replace_file(path, b"one")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one", 0o600)
    replace_file(path, b"two", mode=0o644)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o644)
    assert os.listdir(tmp_path) == ["state"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "inside").touch()
    with pytest.raises(OSError):
        replace_file(path, b"content")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_failure_names_the_file_whatever_failed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "nowhere" / "file"):
        with pytest.raises(OSError) as caught:
            replace_file(path, b"content")
        assert (caught.value.filename, caught.value.filename2) == (str(path), None)


def test_a_full_disk_names_the_file_too(tmp_path: Path) -> None:
    """A limit on the size of files stands in for it."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(OSError) as caught:
            replace_file(tmp_path / "state", bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.filename == str(tmp_path / "state")
    assert os.listdir(tmp_path) == []


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"target")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"target", b"new", False)


def test_removing_says_whether_there_was_something(tmp_path: Path) -> None:
    path = tmp_path / "state"
    replace_file(path, b"one")
    assert (remove_file(path), remove_file(path)) == (True, False)

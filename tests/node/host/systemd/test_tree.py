"""Control groups that a workload nested or spread, walked and removed within bounds."""

import os
from pathlib import Path

import psutil
import pytest

from bcd.node.host.systemd.tree import Cleared, remove_below, walk


def nest(folder: Path, depth: int, name: str = "a") -> None:
    """Folders in folders, deeper than a path can say."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


def test_thousands_of_nested_folders_are_removed(tmp_path: Path) -> None:
    nest(tmp_path, 3000, "n" * 200)
    before = psutil.Process().num_fds()
    assert remove_below(tmp_path) is Cleared.NONE_LEFT
    assert os.listdir(tmp_path) == []
    assert psutil.Process().num_fds() == before


def test_many_folders_beside_each_other_are_removed_and_files_stay(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}/x/y").mkdir(parents=True)
    (tmp_path / "cgroup.procs").touch()
    assert remove_below(tmp_path) is Cleared.NONE_LEFT
    assert os.listdir(tmp_path) == ["cgroup.procs"]


def test_what_is_not_empty_ends_the_removal_and_stays(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/cgroup.procs").touch()
    assert remove_below(tmp_path) is Cleared.BUSY
    assert (tmp_path / "a/b/cgroup.procs").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside/kept").mkdir(parents=True)
    (tmp_path / "slice").mkdir()
    (tmp_path / "slice/link").symlink_to(tmp_path / "outside")
    assert remove_below(tmp_path / "slice") is Cleared.NONE_LEFT
    assert [os.fstat(d).st_ino for d in walk(tmp_path / "slice")] == [
        (tmp_path / "slice").stat().st_ino
    ]
    assert (tmp_path / "outside/kept").is_dir()


def test_more_than_the_bound_are_removed_in_several_goes(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / str(number)).mkdir()
    assert [remove_below(tmp_path, 10) for _ in range(3)] == [
        Cleared.LEFT,
        Cleared.LEFT,
        Cleared.NONE_LEFT,
    ]


def test_a_folder_that_is_not_there_cannot_be_cleared(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_below(tmp_path / "none")
    assert list(walk(tmp_path / "none")) == []


def test_a_walk_is_bounded_in_depth_and_in_count(tmp_path: Path) -> None:
    nest(tmp_path, 1100)
    for number in range(50):
        (tmp_path / f"b{number}/c").mkdir(parents=True)
    before = psutil.Process().num_fds()
    deep = [os.fstat(descriptor).st_ino for descriptor in walk(tmp_path)]
    assert 64 < len(deep) == len(set(deep)) < 64 + 100 + 2
    assert {(tmp_path / f"b{number}/c").stat().st_ino for number in range(50)} <= set(deep)
    assert len(list(walk(tmp_path, 20))) == 20
    assert psutil.Process().num_fds() == before
    remove_below(tmp_path)  # or whoever removes the test's folder cannot

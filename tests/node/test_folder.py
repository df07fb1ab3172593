"""The daemon's own folder: one daemon's, and closed to everybody else."""

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bcd.model.errors import BadConfiguration, Unavailable
from bcd.node.host.folder import claim, unusable
from tests.closed import ordinary_user


def test_a_folder_has_one_daemon_at_a_time(tmp_path: Path) -> None:
    claimed = claim(tmp_path / "state")
    with pytest.raises(Unavailable, match="another bcd runs"):
        claim(tmp_path / "state")
    os.close(claimed)
    os.close(claim(tmp_path / "state"))


def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    os.close(claim(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_could_write_is_looked_at_first(tmp_path: Path, mode: int) -> None:
    os.chmod(tmp_path, mode)
    for _ in range(2):  # the claim is given back
        with pytest.raises(BadConfiguration, match=rf"mode {mode:o}.*chmod 700"):
            claim(tmp_path)


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(
        BadConfiguration, match=r"state cannot be used \(what is there is no folder"
    ):
        claim(tmp_path / "state")


def test_what_is_closed_to_this_user_is_for_root_and_not_to_be_moved_away() -> None:
    for path in ("/proc/bcd/state", "/root-only/x"):
        error = PermissionError(errno.EACCES, "Permission denied", path)
        message = unusable(error).message
        assert "run it as root" in message
        assert "away" not in message
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        try:
            with ordinary_user(), pytest.raises(BadConfiguration, match="run it as root") as caught:
                claim(Path(folder) / "state")
        finally:
            os.chmod(folder, 0o700)
    assert "away" not in caught.value.message

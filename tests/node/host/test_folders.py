"""The folders on disk, beyond what their ports promise: modes, links, leftovers, strangers."""

import os
import stat
from pathlib import Path

import pytest

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.errors import BadConfiguration, Unavailable
from bcd.node.cdi import names_device
from bcd.node.host.cdi import SpecFolders
from bcd.node.host.env import EnvFolder
from bcd.node.host.folder import claim
from tests.node.world import alloc_id

MAIN = f"bcd-{alloc_id(1)}.json"


@pytest.fixture
def specs(tmp_path: Path) -> SpecFolders:
    return SpecFolders(tmp_path / "cdi", tmp_path / "dynamic")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_specs_are_readable_by_rootless_runtimes_whatever_the_mask(
    specs: SpecFolders, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        specs.write(MAIN, b"{}")
        envs = EnvFolder(tmp_path / "env")
        envs.write(alloc_id(1), b"A=1\n")
    finally:
        os.umask(before)
    assert mode(tmp_path / "cdi" / MAIN) == 0o644
    assert mode(tmp_path / "env" / f"{alloc_id(1)}.env") == 0o644


def test_a_write_leaves_nothing_else_in_the_folder(specs: SpecFolders, tmp_path: Path) -> None:
    specs.write(MAIN, b"{}")
    assert os.listdir(tmp_path / "cdi") == [MAIN]


def test_half_written_files_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    for name in (f".{MAIN}.0a1b2c3d.tmp", ".theirs.0a1b2c3d.tmp", f".{MAIN}.tmp", "x.tmp"):
        (folder / name).write_text("x")
    SpecFolders(folder, tmp_path / "dynamic")
    assert sorted(os.listdir(folder)) == [f".{MAIN}.tmp", ".theirs.0a1b2c3d.tmp", "x.tmp"]


def test_a_folder_that_a_person_removed_comes_back(specs: SpecFolders, tmp_path: Path) -> None:
    (tmp_path / "cdi").rmdir()
    assert specs.read().own == ()
    assert (tmp_path / "cdi").is_dir()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "huge"])
def test_an_own_name_that_is_no_plain_file_reads_as_unreadable(
    specs: SpecFolders, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "cdi" / MAIN
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.write_bytes(b"x" * ((1 << 20) + 1))
    [spec] = specs.read().own
    assert spec.content is None
    if kind != "folder":
        specs.write(MAIN, b"{}")
        assert specs.read().own[0].content == b"{}"
        assert not path.is_symlink()


def test_foreign_files_that_mention_us_are_seen_in_both_folders(
    specs: SpecFolders, tmp_path: Path
) -> None:
    (tmp_path / "dynamic").mkdir()
    spec = "kind: bcd.dev/gpu\n"
    (tmp_path / "cdi/theirs.yaml").write_text(spec)
    (tmp_path / "cdi/.hidden.json").write_text(spec)
    (tmp_path / "cdi/nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    (tmp_path / "cdi/notes.txt").write_text(spec)
    (tmp_path / "dynamic" / MAIN).write_text(spec)
    os.symlink("/nowhere", tmp_path / "dynamic/dangling.json")
    (tmp_path / "dynamic/folder.json").mkdir()
    found = {Path(foreign.path).relative_to(tmp_path) for foreign in specs.read().foreign}
    assert found == {Path("cdi/theirs.yaml"), Path("cdi/.hidden.json"), Path("dynamic") / MAIN}


def test_a_kind_whose_slash_is_escaped_is_a_mention_too(specs: SpecFolders, tmp_path: Path) -> None:
    text = r'{"kind": "bcd.dev\/gpu", "devices": [{"name": "GPU-0"}]}'
    (tmp_path / "cdi/theirs.json").write_text(text)
    [foreign] = specs.read().foreign
    assert names_device(foreign, AssignedDevice("GPU-0", DeviceClass.GPU))


def test_a_foreign_file_that_changes_is_read_again(specs: SpecFolders, tmp_path: Path) -> None:
    path = tmp_path / "cdi/theirs.json"
    path.write_text("{}")
    assert specs.read().foreign == ()
    path.write_text('{"kind": "bcd.dev/gpu"}')
    [foreign] = specs.read().foreign
    assert foreign.text == '{"kind": "bcd.dev/gpu"}'
    path.unlink()
    assert specs.read().foreign == ()


def test_foreign_files_are_never_touched(specs: SpecFolders, tmp_path: Path) -> None:
    names = ["theirs.json", "bcd-theirs.json", f"bcd-{alloc_id(1)}.json.bak"]
    for name in names:
        (tmp_path / "cdi" / name).write_text("{}")
        with pytest.raises(ValueError):
            specs.remove(name)
    assert specs.read().own == ()
    assert sorted(os.listdir(tmp_path / "cdi")) == sorted(names)


def test_strangers_in_the_env_folder_are_left_alone(tmp_path: Path) -> None:
    envs = EnvFolder(tmp_path)
    for name in ("notes.env", "alloc_x.env", f"{alloc_id(1)}.txt"):
        (tmp_path / name).write_text("x")
    assert envs.read() == {}
    with pytest.raises(ValueError):
        envs.write("../../etc/profile", b"x")  # type: ignore[arg-type]
    assert len(os.listdir(tmp_path)) == 3


def test_one_daemon_has_the_folder_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    descriptor = claim(folder)
    assert mode(folder) == 0o700
    with pytest.raises(Unavailable, match="another bcd runs"):
        claim(folder)
    os.close(descriptor)
    os.close(claim(folder))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadConfiguration, match=r"paths\.state"):
        claim(tmp_path / "file/state")

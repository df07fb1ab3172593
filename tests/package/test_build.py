"""What a build makes: the same bytes each time, and nothing in them that does not belong there."""

import re
import stat
import subprocess
from pathlib import Path

import pytest

from tests.package.build import ROOT, Debs, build, copy_sources, field, source_date, unpack


@pytest.fixture(scope="module")
def trees(debs: Debs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packages' files by package."""
    folder = tmp_path_factory.mktemp("trees")
    return {
        "bcd": unpack(debs.daemon, folder / "bcd"),
        "bcd-control": unpack(debs.control, folder / "bcd-control"),
    }


def test_two_builds_in_different_places_are_the_same_bytes(debs: Debs, tmp_path: Path) -> None:
    copy_sources(tmp_path / "elsewhere")
    (tmp_path / "scratch").mkdir()
    again = build(
        tmp_path / "out",
        tmp_path / "elsewhere",
        SOURCE_DATE_EPOCH=source_date(),
        TMPDIR=str(tmp_path / "scratch"),
    )
    for first, second in ((debs.daemon, again.daemon), (debs.control, again.control)):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_build_without_a_known_time_says_what_to_set(tmp_path: Path) -> None:
    copy_sources(tmp_path / "elsewhere")
    done = subprocess.run(
        [tmp_path / "elsewhere/packaging/build-deb", tmp_path / "out"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "set SOURCE_DATE_EPOCH" in done.stderr


def test_every_file_is_readable_and_only_its_owner_may_write(trees: dict[str, Path]) -> None:
    for tree in trees.values():
        for path in tree.joinpath("usr").rglob("*"):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                assert mode in (0o644, 0o755), f"{path}: {mode:o}"
                assert mode == 0o755 or path.is_file()


def test_no_file_names_the_place_it_was_built_in(trees: dict[str, Path]) -> None:
    for tree in trees.values():
        for path in tree.rglob("*"):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                assert str(ROOT).encode() not in content, path
                assert not re.search(rb"/tmp\.[A-Za-z0-9]{10}/", content), path


def test_every_module_comes_with_its_byte_code_and_no_byte_code_without_module(
    trees: dict[str, Path],
) -> None:
    for package, tree in trees.items():
        site = next(tree.joinpath(f"usr/lib/{package}/lib").glob("python3.*/site-packages"))
        sources = {path.relative_to(site) for path in site.rglob("*.py")}
        compiled = {
            path.relative_to(site).parent.parent / f"{path.name.split('.')[0]}.py"
            for path in site.rglob("__pycache__/*.pyc")
        }
        assert compiled == sources


def test_only_linked_files_need_an_interpreter_of_this_release(debs: Debs) -> None:
    for deb in (debs.daemon, debs.control):
        depends = field(deb, "Depends").split(", ")
        assert "python3 (>= 3.11)" in depends
        assert "python3 (<< 3.12~)" in depends
        assert any(one.startswith("libstdc++6 ") for one in depends)
    assert "libsystemd0" in field(debs.daemon, "Depends")


def test_every_unit_sample_and_library_list_is_in_one_package(trees: dict[str, Path]) -> None:
    def of(tree: Path, *folders: str) -> set[str]:
        return {
            path.name for folder in folders for path in (tree / folder).rglob("*") if path.is_file()
        }

    folders = ("usr/lib/systemd", "usr/lib/tmpfiles.d", "usr/lib/sysusers.d")
    daemon, control = of(trees["bcd"], *folders), of(trees["bcd-control"], *folders)
    assert daemon | control == of(ROOT, "systemd")
    assert not daemon & control
    assert "bcd.service" in daemon
    assert control >= {"bcd-gateway.service", "bcd-placer.service"}
    samples = {
        path.name for end in ("toml", "cedar", "conf") for path in ROOT.glob(f"packaging/*.{end}")
    }
    shared = of(trees["bcd"], "usr/share/bcd"), of(trees["bcd-control"], "usr/share/bcd-control")
    assert shared[0] | shared[1] >= samples
    assert all("libraries.txt" in names for names in shared)


def test_a_gpu_host_carries_no_control_plane(trees: dict[str, Path]) -> None:
    (own,) = trees["bcd"].glob("usr/lib/bcd/lib/python3.*/site-packages/bcd")
    parts = {path.name for path in own.iterdir()}
    assert not parts & {"placer", "gateway", "store"}
    assert not [path for path in own.parent.iterdir() if re.match("psycopg|cedar|click", path.name)]

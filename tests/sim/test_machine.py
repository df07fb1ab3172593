"""Scratch roots: machines of data, with real device nodes where that is allowed."""

import os
import stat
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import msgspec
import pytest

from bcd.model.errors import BadConfiguration, Unavailable
from bcd.node.host.facts import ProcSysHost
from bcd.sim import machine as machines
from bcd.sim.gpus import SimulatedGpus
from bcd.sim.machine import build_machine, profile_of
from bcd.sim.profile import load_profile, profile_names, unit_uuid
from tests.captured import DATA
from tests.closed import ordinary_user


def build(root: Path, profile: str = "dgx-h100", seed: str = "node1") -> machines.Machine:
    return build_machine(root, profile, seed=seed, hostname="host")


def test_there_are_the_three_profiles() -> None:
    assert profile_names() == ("dgx-h100", "hgx-a100-mig", "l40s-pcie")


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadConfiguration, match="dgx-h100, hgx-a100-mig, l40s-pcie"):
        load_profile("../dgx-h100")


def test_a_dgx_h100_is_8_gpus_on_two_nodes_in_one_fabric(tmp_path: Path) -> None:
    devices = SimulatedGpus(build(tmp_path)).snapshot().devices
    assert [device.numa_node for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({device.nvlink_domain for device in devices}) == 1
    assert devices[0].nvlink_domain
    host = ProcSysHost(tmp_path).facts()
    assert len(host.online_cpus) == 224
    assert [len(node.cpus) for node in host.numa_nodes] == [112, 112]


def test_gpus_in_mig_mode_are_no_part_of_the_fabric(tmp_path: Path) -> None:
    devices = SimulatedGpus(build(tmp_path, "hgx-a100-mig")).snapshot().devices
    assert [d.nvlink_domain for d in devices if d.mig_enabled or d.profile] == [""] * 13
    assert len([d for d in devices if d.nvlink_domain]) == 6


def test_a_pcie_server_has_no_nvlink(tmp_path: Path) -> None:
    devices = SimulatedGpus(build(tmp_path, "l40s-pcie")).snapshot().devices
    assert {(d.nvlink_domain, d.nvlink_peers) for d in devices} == {("", ())}


def test_the_a100_profile_agrees_with_a_captured_a100() -> None:
    captured = ElementTree.parse(DATA / "nvidia-smi-q-a100-sxm4-mig4.xml")  # our own file
    profile = load_profile("hgx-a100-mig")
    assert captured.findtext("driver_version") == profile.driver
    assert captured.findtext("cuda_version") == profile.cuda
    gpu = captured.find("gpu")
    assert gpu is not None
    assert gpu.findtext("product_name") == profile.model
    instance = gpu.findtext("mig_devices/mig_device/fb_memory_usage/total")
    sizes = {m.profile: m.memory_mib for g in profile.gpus for m in g.mig}
    assert instance == f"{sizes['2g.20gb']} MiB"


def test_uuids_follow_from_the_seed(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("a", "b", "c")]
    one, same, other = (
        [d.id for d in SimulatedGpus(build(root, seed=seed)).snapshot().devices]
        for root, seed in zip(roots, ("node1", "node1", "node2"), strict=True)
    )
    assert one == same
    assert not set(one) & set(other)
    assert unit_uuid("a", "bc") != unit_uuid("ab", "c")


def test_nodes_are_character_devices_with_numbers_of_their_own(tmp_path: Path) -> None:
    machine = build(tmp_path, "hgx-a100-mig")
    paths = [path for path in (tmp_path / "dev").rglob("nvidia*") if not path.is_dir()]
    assert len(paths) == 8 + 4 + 2 * 11
    assert machine.real_nodes is may_make_nodes(tmp_path)
    if machine.real_nodes:
        found = [os.lstat(path) for path in paths]
        assert all(stat.S_ISCHR(f.st_mode) for f in found)
        assert len({f.st_rdev for f in found}) == len(paths)
        # Majors for local and experimental use: no driver of this machine answers on them.
        assert {os.major(f.st_rdev) for f in found} == {60, 61}


def may_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o600, os.makedev(60, 0))
    except PermissionError:
        return False
    return True


def test_a_user_who_may_make_no_nodes_gets_files_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.mknod", refuse)
    machine = build(tmp_path)
    assert not machine.real_nodes
    assert SimulatedGpus(machine).prepare(()) is None
    (tmp_path / "dev/nvidiactl").unlink()
    assert SimulatedGpus(machine).prepare(()) is not None


def test_a_second_start_finds_the_same_machine(tmp_path: Path) -> None:
    build(tmp_path)
    before = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*") if not p.is_dir()}
    build(tmp_path, seed="another")
    assert {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*") if not p.is_dir()} == before


@pytest.mark.parametrize("name", ["/", "//", "/tmp/..", "/proc/self/root"])
def test_the_real_root_is_never_simulated_under_whatever_name(name: str) -> None:
    with pytest.raises(BadConfiguration, match="not /"):
        build(Path(name))


@pytest.mark.parametrize("target", ["/", "dev", "etc", "proc", "sys"])
def test_nor_is_a_link_to_it_or_a_root_with_a_part_of_it(tmp_path: Path, target: str) -> None:
    root = tmp_path / "root"
    if target == "/":
        root.symlink_to("/")
    else:
        root.mkdir()
        (root / target).symlink_to(f"/{target}")
    with pytest.raises(BadConfiguration, match="not /"):
        build(root)


@pytest.mark.parametrize("name", ["usr", "file", ".config", "sim"])
def test_a_folder_of_somebody_elses_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "dev").mkdir()
    with pytest.raises(BadConfiguration, match=f"has {name} in it.*empty folder"):
        build(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted([name, "dev"])


def test_what_enrolment_and_a_person_leave_before_the_first_start_is_fine(tmp_path: Path) -> None:
    (tmp_path / "var/lib/bcd").mkdir(parents=True)
    for name in ("bcd.toml", "bcd.log", ".sim.json.0a0b0c0d.tmp"):
        (tmp_path / name).touch()
    assert build(tmp_path).seed == "node1"


def test_a_file_of_the_machine_that_is_no_text_is_written_again(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "proc/meminfo").write_bytes(b"\xff\xfe")
    build(tmp_path)
    assert ProcSysHost(tmp_path).facts().memory_bytes > 0


def test_a_root_of_another_profile_is_refused(tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(BadConfiguration, match="was made for dgx-h100"):
        build(tmp_path, "l40s-pcie")


def test_a_root_with_a_broken_mark_is_refused(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "sim.json").write_text("{")
    with pytest.raises(BadConfiguration, match=r"sim\.json is broken; restore it") as caught:
        build(tmp_path)
    assert "remove" not in caught.value.message


def test_after_the_remedy_it_is_the_same_machine(tmp_path: Path) -> None:
    before = SimulatedGpus(build(tmp_path)).snapshot().devices
    (tmp_path / "sim.json").rename(tmp_path / "sim.json.broken")
    assert SimulatedGpus(build(tmp_path)).snapshot().devices == before


@pytest.mark.parametrize("name", ["dgx-h100", "hgx-a100-mig", "l40s-pcie"])
def test_profiles_are_plain_data(name: str) -> None:
    text = (Path(machines.__file__).parent / "profiles" / f"{name}.toml").read_text()
    assert msgspec.to_builtins(load_profile(name))["model"] == tomllib.loads(text)["model"]


def test_the_machine_that_we_run_on_is_never_simulated(tmp_path: Path) -> None:
    mark = '{"profile":"dgx-h100","seed":"s","hostname":"h"}'
    for name, real in (("whole", "/"), ("part", "/proc")):
        root = tmp_path / name
        if real == "/":
            root.symlink_to("/")
        else:
            root.mkdir()
            (root / "proc").symlink_to(real)
            (root / "sim.json").write_text(mark)
        assert profile_of(root) is None
    (tmp_path / "made").mkdir()
    (tmp_path / "made/sim.json").write_text(mark)
    assert profile_of(tmp_path / "made") == "dgx-h100"
    assert profile_of(tmp_path / "none") is None


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"x" * 100_000])
def test_a_mark_that_is_broken_is_not_taken_for_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sim.json").write_bytes(content)
    with pytest.raises(BadConfiguration, match=r"sim\.json is broken; restore it"):
        profile_of(tmp_path)


def test_a_mark_that_is_closed_to_this_user_is_not_taken_for_none() -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "sim.json").write_text("{}")
        root.chmod(0)
        try:
            with ordinary_user(), pytest.raises(Unavailable, match="run it as root"):
                profile_of(root)
        finally:
            root.chmod(0o700)

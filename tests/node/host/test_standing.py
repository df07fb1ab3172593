"""Holds as they lie on disk, read by the operator's tools without a daemon."""

from pathlib import Path

import pytest

from bcd.node.host.standing import (
    Runner,
    Standing,
    StandingHold,
    cgroup_slices,
    standing_holds,
    unlimited,
)
from bcd.node.host.systemd.tree import Cleared, remove_below
from tests.node.host.made_host import MadeHost
from tests.node.host.systemd.test_tree import nest
from tests.node.world import alloc_id, limits, node_id


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    return MadeHost(tmp_path / "root")


def holds(host: MadeHost) -> tuple[StandingHold, ...]:
    return standing_holds(host.paths, cgroup_slices(host.root))


def only(host: MadeHost) -> StandingHold:
    [hold] = holds(host)
    return hold


def test_a_whole_hold_stands_with_all_that_belongs_to_it(host: MadeHost) -> None:
    hold = only(host)
    assert (hold.state, hold.problems, hold.node_id) == (Standing.BOUND, (), node_id())
    assert hold.specs == (f"bcd-{alloc_id(1)}.json",)
    assert hold.env_file == str(host.env(1))
    assert hold.slice == f"bcd-alloc-{alloc_id(1)}.slice"
    assert hold.found is not None
    assert hold.found.empty
    assert hold.hold is not None
    assert hold.hold.limits == limits()


def test_a_hold_without_limits_needs_no_slice(host: MadeHost) -> None:
    host.hold(2)
    assert [hold.state for hold in holds(host)] == [Standing.BOUND] * 2
    assert holds(host)[1].slice == ""


def test_who_runs_in_a_slice_is_named_however_deep(host: MadeHost) -> None:
    host.run_in_slice(1, (41, "python3"), (42, "torch"))
    found = only(host).found
    assert found is not None
    assert not found.empty
    assert found.runners == (Runner(41, "python3"), Runner(42, "torch"))


def test_a_thousand_nested_control_groups_hide_no_process(host: MadeHost) -> None:
    host.run_in_slice(1, (41, "python3"))
    nested = host.root / host.slice(1) / "run-1.scope"
    nest(nested, 1100)
    found = only(host).found
    assert found is not None
    assert found.runners == (Runner(41, "python3"),)
    assert remove_below(nested) is Cleared.NONE_LEFT


def test_a_released_hold_with_processes_lingers(host: MadeHost) -> None:
    host.spec(1).unlink()
    host.env(1).unlink()
    host.run_in_slice(1, (41, "python3"))
    hold = only(host)
    assert (hold.state, hold.hold) == (Standing.LINGERS, None)
    assert hold.problems == ("processes are left in its slice; end them",)


def test_a_spec_without_its_env_file_is_incomplete(host: MadeHost) -> None:
    host.env(1).unlink()
    assert only(host).problems == ("its env file is missing",)
    assert only(host).state is Standing.INCOMPLETE


def test_an_env_file_without_its_spec_still_says_what_it_was(host: MadeHost) -> None:
    host.spec(1).unlink()
    hold = only(host)
    assert hold.state is Standing.LINGERS
    assert hold.hold is not None
    assert "without a spec" in hold.problems[0]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 99, b"[" * 99_999, b"{}"])
def test_a_broken_spec_is_named_and_hides_no_other_hold(host: MadeHost, content: bytes) -> None:
    host.hold(2)
    host.spec(1).write_bytes(content)
    first, second = holds(host)
    assert first.state is Standing.UNREADABLE
    assert str(host.spec(1)) in first.problems[0]
    assert second.state is Standing.BOUND


def test_what_is_no_plain_file_is_not_followed(host: MadeHost) -> None:
    host.spec(1).rename(host.root / "elsewhere")
    host.spec(1).symlink_to(host.root / "elsewhere")
    assert only(host).state is Standing.UNREADABLE


def test_a_host_without_any_folder_has_no_holds(tmp_path: Path) -> None:
    host = MadeHost(tmp_path / "root")
    host.paths.cdi.rename(tmp_path / "cdi")
    host.paths.env.rename(tmp_path / "env")
    (host.root / "sys").rename(tmp_path / "sys")
    assert holds(host) == ()


def test_a_slice_of_another_name_is_none_of_ours(host: MadeHost) -> None:
    host.write(f"{host.slice(1)}x/cgroup.events", "populated 1\n")
    host.write(f"{host.slice(1)}/../bcd-alloc-..slice/cgroup.events", "populated 1\n")
    assert set(cgroup_slices(host.root)) == {alloc_id(1)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.max", "max"),
        ("memory.max", ""),
        ("memory.max", str(1 << 50)),
        ("cpu.max", "max 100000"),
        ("cpu.max", "99999999 100000"),
        ("cpuset.cpus", ""),
        ("cpuset.mems", "0-1"),
        ("memory.swap.max", "max"),
        ("hugetlb.1GB.max", "max"),
    ],
)
def test_a_slice_with_another_limit_than_was_booked_is_found_out(
    host: MadeHost, name: str, text: str
) -> None:
    (host.root / "sys/kernel/mm/hugepages/hugepages-1048576kB").mkdir(parents=True)
    hold = host.hold(1, limits(cpus="0-3", mems="0"))
    for file in ("hugetlb.1GB.max", "hugetlb.1GB.rsvd.max"):
        host.write(f"{host.slice(1)}/{file}", "0\n")
    assert unlimited(host.root, hold) == ""
    host.write(f"{host.slice(1)}/{name}", f"{text}\n")
    assert unlimited(host.root, hold).endswith(f"/{name}")


def test_a_hold_without_limits_has_none_that_could_be_wrong(host: MadeHost) -> None:
    assert unlimited(host.root, host.hold(2)) == ""


def test_limits_of_a_slice_that_is_not_there_are_not_in_force(host: MadeHost) -> None:
    hold = host.hold(1, limits())
    host.remove(f"{host.slice(1)}/cgroup.events")
    assert unlimited(host.root, hold).endswith(host.slice(1))

"""What systemd is asked, and what becomes of a conversation that goes wrong."""

import ast
import re
from pathlib import Path

import pytest

from bcd.model.assignment import Limits
from bcd.node.host.systemd import conversation
from bcd.node.host.systemd.conversation import SystemdUnits, id_mask, properties_of


@pytest.mark.parametrize(
    ("cpulist", "mask"),
    [
        ("", ()),
        ("0", (1,)),
        ("2-3", (12,)),
        ("8,10", (0, 5)),
        ("10-23", (0, 252, 255)),
        ("8,184", (0, 1, *[0] * 21, 1)),
    ],
)
def test_ids_are_bytes_with_the_lowest_first(cpulist: str, mask: tuple[int, ...]) -> None:
    assert id_mask(cpulist) == mask


def test_every_limit_that_the_drop_in_sets_is_set_again() -> None:
    text = Path("systemd/bcd-alloc-.slice.d/10-bcd-failclosed.conf").read_text()
    tight = {line.partition("=")[0] for line in text.splitlines() if "=" in line}
    none = Limits(cpu_millis=0, memory_bytes=0, hugepages_1gi=0)
    assert tight
    assert tight <= {each.name for each in properties_of(none)}


def test_nothing_but_limits_is_asked_of_a_slice() -> None:
    """Dependencies, device rules and the like are systemd's defaults: it ignores some of ours."""
    some = Limits(cpu_millis=1, memory_bytes=1, hugepages_1gi=1, cpus="1", mems="0")
    assert [each.name for each in properties_of(some)] == [
        *("CPUQuotaPerSecUSec", "MemoryMax", "MemoryHigh", "MemorySwapMax", "TasksMax"),
        *("AllowedCPUs", "AllowedMemoryNodes"),
    ]


def test_systemd_is_never_asked_to_read_its_units_again() -> None:
    """A daemon-reload of ours could take GPUs from containers, and would on every bind.

    Nor to restart one: what runs in it may serve workloads.
    """
    text = Path(conversation.__file__).with_name("units.py").read_text()
    called = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    firsts = [call.args[0] for call in called if call.args]
    methods = {
        first.value
        for first in firsts
        if isinstance(first, ast.Constant) and isinstance(first.value, bytes)
        if re.match(rb"[A-Z][A-Za-z]+\Z", first.value)
    }
    assert methods == {
        *(b"LoadUnit", b"StartTransientUnit", b"SetUnitProperties", b"StartUnit"),
        *(b"StopUnit", b"ResetFailedUnit", b"RevertUnitFiles"),
    }


def test_zero_is_no_limit_and_a_quota_is_microseconds_per_second() -> None:
    infinity = (1 << 64) - 1
    none = {
        p.name: p.value
        for p in properties_of(Limits(cpu_millis=0, memory_bytes=0, hugepages_1gi=0))
    }
    assert (none["CPUQuotaPerSecUSec"], none["MemoryMax"]) == (infinity, infinity)
    some = {
        p.name: p.value
        for p in properties_of(Limits(cpu_millis=1240, memory_bytes=1 << 30, hugepages_1gi=0))
    }
    assert (some["CPUQuotaPerSecUSec"], some["MemoryMax"]) == (1_240_000, 1 << 30)


def test_a_systemd_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    said = SystemdUnits(tmp_path).stop("bcd-alloc-x.slice")
    assert said
    assert "Traceback" not in said


def test_properties_that_outlive_a_slice_are_found(tmp_path: Path) -> None:
    units = SystemdUnits(tmp_path)
    assert not units.left_over("bcd-alloc-x.slice")
    for top in ("run", "etc"):
        folder = tmp_path / top / "systemd/system.control/bcd-alloc-x.slice.d"
        folder.mkdir(parents=True)
        assert units.left_over("bcd-alloc-x.slice")
        folder.rmdir()

"""Admission: what fits is let in, and every refusal has its own reason."""

from dataclasses import replace
from typing import Any

import pytest

from bcd.model.assignment import AssignedDevice, Assignment, HostReserve
from bcd.model.device import DeviceClass, Health, HealthState
from bcd.model.report import FailureReason
from bcd.node.fit import Capacity, Ledger
from bcd.node.hold import hold_of
from bcd.node.ports import MachinesUse
from tests.node.memory import DEVICES, GIB, HOST, MIG, SHARED, SLOTS, SPLIT, WHOLE
from tests.node.world import assignment, limits


def ledger(**changes: Any) -> Ledger:
    fields: dict[str, Any] = {
        "devices": {d.id: d for d in DEVICES},
        "host": HOST,
        "reserve": HostReserve(2, 4 * GIB),
        "machines": MachinesUse(),
        "slice_problem": "",
    }
    return Ledger(Capacity(**(fields | changes)))


def reason(wanted: Assignment, into: Ledger | None = None) -> str | None:
    failed = (into or ledger()).admit(hold_of(wanted))
    return None if failed is None else failed.reason


def test_healthy_free_devices_are_admitted() -> None:
    assert reason(assignment(1, *WHOLE, *MIG)) is None


@pytest.mark.parametrize("name", ["GPU-99", "../../etc/passwd", "GPU-0\n", "", "\0", "x" * 250])
def test_a_device_that_this_host_has_not_is_unknown(name: str) -> None:
    wanted = assignment(1, AssignedDevice(name, DeviceClass.GPU))
    assert reason(wanted) == FailureReason.UNKNOWN_DEVICE


def test_a_device_under_another_class_is_unknown() -> None:
    wanted = assignment(1, AssignedDevice("GPU-0", DeviceClass.MIG))
    assert reason(wanted) == FailureReason.UNKNOWN_DEVICE


def test_a_device_whose_id_is_no_cdi_name_is_unknown() -> None:
    odd = replace(WHOLE[0], id="MIG-GPU-0/1/0")
    found = ledger(devices={odd.id: odd})
    assert reason(assignment(1, odd), found) == FailureReason.UNKNOWN_DEVICE


@pytest.mark.parametrize("state", [s for s in HealthState if s is not HealthState.HEALTHY])
def test_only_healthy_devices_take_new_holds(state: HealthState) -> None:
    sick = replace(WHOLE[0], health=Health(state, "Xid 79"))
    assert reason(assignment(1, sick), ledger(devices={sick.id: sick})) == (
        FailureReason.DEVICE_UNHEALTHY
    )


def test_a_gpu_in_mig_mode_is_not_bound_as_a_whole() -> None:
    assert reason(assignment(1, SPLIT)) == FailureReason.DEVICE_UNHEALTHY


def test_a_device_of_another_hold_is_in_use() -> None:
    found = ledger()
    found.enter(hold_of(assignment(1, WHOLE[0])))
    assert reason(assignment(2, WHOLE[1], WHOLE[0]), found) == FailureReason.DEVICE_IN_USE
    assert reason(assignment(1, WHOLE[0]), found) is None


def test_whole_and_shared_modes_of_one_gpu_exclude_each_other() -> None:
    found = ledger()
    found.enter(hold_of(assignment(1, SLOTS[0])))
    assert reason(assignment(2, SHARED), found) == FailureReason.DEVICE_IN_USE
    assert reason(assignment(3, SLOTS[1]), found) is None


SLOT = AssignedDevice("GPU-0::7", DeviceClass.SLOT)


def test_a_slot_of_a_healthy_whole_gpu_is_admitted_though_no_inventory_lists_it() -> None:
    assert reason(assignment(1, SLOT)) is None
    found = ledger()
    found.enter(hold_of(assignment(1, SLOT)))
    other = AssignedDevice("GPU-0::8", DeviceClass.SLOT)
    assert reason(assignment(2, other), found) is None
    assert reason(assignment(3, SLOT), found) == FailureReason.DEVICE_IN_USE
    assert reason(assignment(4, WHOLE[0]), found) == FailureReason.DEVICE_IN_USE


def test_a_slot_of_a_gpu_that_is_held_as_a_whole_is_in_use() -> None:
    found = ledger()
    found.enter(hold_of(assignment(1, WHOLE[0])))
    assert reason(assignment(2, SLOT), found) == FailureReason.DEVICE_IN_USE


def test_a_slot_is_as_healthy_as_its_gpu() -> None:
    sick = replace(WHOLE[0], health=Health(HealthState.UNHEALTHY, "Xid 79"))
    unhealthy = FailureReason.DEVICE_UNHEALTHY
    assert reason(assignment(1, SLOT), ledger(devices={sick.id: sick})) == unhealthy
    split = replace(WHOLE[0], mig_enabled=True)
    assert reason(assignment(1, SLOT), ledger(devices={split.id: split})) == unhealthy


@pytest.mark.parametrize(
    "name",
    [
        "GPU-77::0",
        "GPU-0::",
        "GPU-0::x",
        "GPU-0::01",
        "GPU-0::-1",
        "GPU-0::0::1",
        "GPU-0::12345",
        "GPU-0::1\n",
        "GPU-0",
        "MIG-0::0",
        "::0",
    ],
)
def test_a_slot_of_nothing_that_can_be_shared_is_unknown(name: str) -> None:
    wanted = assignment(1, AssignedDevice(name, DeviceClass.SLOT))
    assert reason(wanted) == FailureReason.UNKNOWN_DEVICE


@pytest.mark.parametrize(
    ("cpus", "mems"),
    [("0-16", ""), ("15", ""), ("14", ""), ("", "3"), ("", "0-9"), ("x", ""), ("", "9-1")],
)
def test_cpus_and_nodes_must_be_online_and_not_isolated(cpus: str, mems: str) -> None:
    wanted = assignment(1, WHOLE[0], limits=limits(cpus=cpus, mems=mems))
    assert reason(wanted) == FailureReason.INVALID_LIMITS


def test_a_cpuset_of_online_cpus_is_admitted() -> None:
    assert reason(assignment(1, WHOLE[0], limits=limits(cpus="0-13", mems="0-2"))) is None


def test_a_host_without_slices_takes_no_limits() -> None:
    found = ledger(slice_problem="no memory controller")
    assert reason(assignment(1, WHOLE[0], limits=limits()), found) == (
        FailureReason.LIMITS_UNSUPPORTED
    )
    assert reason(assignment(1, WHOLE[0]), found) is None


def test_memory_beside_pools_reserve_machines_and_holds_must_suffice() -> None:
    free = 256 - 16 - 4  # MemTotal without the huge page pools and the reserve
    assert reason(assignment(1, WHOLE[0], limits=limits(memory_gib=free))) is None
    exhausted = FailureReason.RESOURCES_EXHAUSTED
    assert reason(assignment(1, WHOLE[0], limits=limits(memory_gib=free + 1))) == exhausted
    beside = ledger(machines=MachinesUse(GIB))
    assert reason(assignment(1, WHOLE[0], limits=limits(memory_gib=free)), beside) == exhausted
    beside = ledger()
    beside.enter(hold_of(assignment(2, WHOLE[1], limits=limits(memory_gib=100))))
    beside.enter_limits(limits(memory_gib=100))
    assert reason(assignment(1, WHOLE[0], limits=limits(memory_gib=37)), beside) == exhausted
    assert reason(assignment(1, WHOLE[0], limits=limits(memory_gib=36)), beside) is None


def test_huge_pages_must_suffice_on_the_nodes_of_the_hold_and_in_all() -> None:
    exhausted = FailureReason.RESOURCES_EXHAUSTED
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=8, mems="0"))) is None
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=9, mems="0"))) == exhausted
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=16))) is None
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=17))) == exhausted
    beside = ledger(machines=MachinesUse(0, 3))
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=13)), beside) is None
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=14)), beside) == exhausted
    found = ledger()
    found.enter(hold_of(assignment(2, WHOLE[1], limits=limits(pages=6, mems="0"))))
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=3, mems="0")), found) == exhausted
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=8, mems="1")), found) is None
    assert reason(assignment(1, WHOLE[0], limits=limits(pages=11)), found) == exhausted


def test_memory_must_suffice_on_the_nodes_of_the_hold() -> None:
    exhausted = FailureReason.RESOURCES_EXHAUSTED
    node = 128 - 8  # MemTotal of a node without its huge page pool
    confined = [limits(memory_gib=gib, mems="0") for gib in (node, node + 1)]
    assert reason(assignment(1, WHOLE[0], limits=confined[0])) is None
    assert reason(assignment(1, WHOLE[0], limits=confined[1])) == exhausted
    # The reserve and the machines may lie on the other node, until it is full.
    beside = ledger(machines=MachinesUse(GIB))
    beside.enter(hold_of(assignment(2, WHOLE[1], limits=limits(memory_gib=node - 5, mems="1"))))
    assert reason(assignment(1, WHOLE[0], limits=confined[0]), beside) is None
    beside.enter_limits(limits(memory_gib=1))
    assert reason(assignment(1, WHOLE[0], limits=confined[0]), beside) == exhausted


def test_a_hold_on_one_node_does_not_pay_for_another_that_is_full() -> None:
    full = ledger()
    full.enter(hold_of(assignment(2, WHOLE[1], limits=limits(memory_gib=120, pages=8, mems="1"))))
    wanted = limits(memory_gib=100, pages=8, mems="0")
    assert reason(assignment(1, WHOLE[0], limits=wanted), full) is None


def test_a_refusal_says_how_much_is_free_where() -> None:
    failed = ledger().admit(
        hold_of(assignment(1, WHOLE[0], limits=limits(memory_gib=130, mems="0-0")))
    )
    assert failed is not None
    assert f"{130 * GIB} bytes of memory on NUMA nodes 0, {120 * GIB} are free" in failed.message


def test_a_hold_that_stands_is_judged_for_conflicts_only() -> None:
    sick = replace(WHOLE[0], health=Health(HealthState.UNHEALTHY, "Xid 79"))
    found = ledger(devices={sick.id: sick}, slice_problem="broken")
    assert found.conflict(hold_of(assignment(1, sick, limits=limits(cpus="900")))) is None

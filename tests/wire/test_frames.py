"""Frames between nodes and placers: what is written reads the same, what is hostile is refused."""

import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.model.assignment import DesiredState
from bcd.model.errors import InvalidInput
from bcd.model.host import Inventory
from bcd.model.report import Report
from bcd.wire import bounds
from bcd.wire.desired import decode_desired, desired_hash, encode_desired
from bcd.wire.inventory import content_hash, decode_inventory, encode_inventory
from bcd.wire.node.v1 import desired_pb2, inventory_pb2, report_pb2
from bcd.wire.report import decode_report, encode_report, report_number
from tests.wire.values import DESIRED_STATES, INVENTORIES, REPORTS

UNKNOWN = bytes([0xF8, 0x3E, 0x01])  # field 1007, from a newer version
ALLOCATION = "alloc_01h2xcejqtf2nbrexx3vqjhp41"


@given(INVENTORIES)
def test_an_inventory_reads_as_it_was_written(inventory: Inventory) -> None:
    frame = encode_inventory(inventory)
    assert decode_inventory(frame) == (inventory, ())
    again = inventory_pb2.Inventory.FromString(frame.SerializeToString())
    assert decode_inventory(again) == (inventory, ())
    assert content_hash(again) == frame.hash == encode_inventory(inventory).hash


@given(INVENTORIES, INVENTORIES)
def test_inventories_share_a_hash_only_when_they_are_equal(
    one: Inventory, other: Inventory
) -> None:
    same = encode_inventory(one).hash == encode_inventory(other).hash
    assert same is (one == other)


@given(DESIRED_STATES)
def test_a_desired_state_reads_as_it_was_written(state: DesiredState) -> None:
    payload = encode_desired(state)
    assert decode_desired(payload) == state
    assert decode_desired(payload + UNKNOWN) == state
    assert encode_desired(state) == payload
    assert desired_hash(payload) != desired_hash(payload + UNKNOWN)


@given(REPORTS)
def test_a_report_reads_as_it_was_written(report: Report) -> None:
    payload = encode_report(report)
    assert decode_report(payload) == report
    assert decode_report(payload + UNKNOWN) == report
    assert report_number(payload) == report.number


Decoder = Callable[[bytes], object]


@pytest.mark.parametrize("decode", [decode_desired, decode_report])
@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(decode: Decoder, content: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        decode(content)


@given(st.binary(max_size=300))
def test_any_bytes_have_a_number_or_none(content: bytes) -> None:
    assert report_number(content) >= 0


def refused(work: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        work()
    assert caught.value.field == field


def device(**changes: object) -> inventory_pb2.Device:
    fields: dict[str, object] = {"id": "GPU-0", "gpu": "GPU-0", "device_class": "gpu"}
    return inventory_pb2.Device(**fields | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hostile", "field"),
    [
        (device(id=""), "devices[0].id"),
        (device(gpu=""), "devices[0].id"),
        (device(id="x" * 257), "devices[0].id"),
        (device(id="GPU-0\n"), "devices[0].id"),
        (device(id="GPU\0"), "devices[0].id"),
        (device(gpu="\x1b[31m"), "devices[0].gpu"),
        (device(device_class=""), "devices[0].deviceClass"),
        (device(device_class="GPU"), "devices[0].deviceClass"),
        (device(model="x" * 1025), "devices[0].model"),
        (device(model="a\tb"), "devices[0].model"),
        (device(nvlink_peers=["x"] * 1025), "devices[0].nvlinkPeers"),
        (device(nvlink_peers=["x" * 257]), "devices[0].nvlinkPeers"),
        (device(nvlink_domain="x" * 257), "devices[0].nvlinkDomain"),
        (
            device(health=inventory_pb2.Health(reason="\r\nforged log line")),
            "devices[0].health.reason",
        ),
    ],
)
def test_a_hostile_device_is_refused_by_name(hostile: inventory_pb2.Device, field: str) -> None:
    refused(lambda: decode_inventory(inventory_pb2.Inventory(devices=[hostile])), field)


def test_an_inventory_of_absurd_size_is_refused() -> None:
    many = inventory_pb2.Inventory()
    for number in range(bounds.MAX_DEVICES + 1):
        many.devices.add().CopyFrom(device(id=str(number)))
    refused(lambda: decode_inventory(many), "devices")
    wide = inventory_pb2.Inventory()
    for _ in range(bounds.MAX_NUMA_NODES + 1):
        wide.host.numa_nodes.add()
    refused(lambda: decode_inventory(wide), "host.numaNodes")


def test_one_device_twice_is_refused() -> None:
    refused(
        lambda: decode_inventory(inventory_pb2.Inventory(devices=[device(), device()])), "devices"
    )


def test_a_health_that_is_not_known_reads_as_unknown() -> None:
    frame = inventory_pb2.Inventory(devices=[device(health=inventory_pb2.Health())])
    frame.devices[0].health.state = 99  # type: ignore[assignment]
    inventory, _ = decode_inventory(frame)
    assert inventory.devices[0].health.state == "unknown"


def test_cpulists_out_of_bounds_read_as_empty_and_are_named() -> None:
    host = inventory_pb2.Host(online_cpus="0-99999", isolated_cpus="x")
    host.numa_nodes.add(id=3, cpus="9-1")
    inventory, problems = decode_inventory(inventory_pb2.Inventory(host=host, devices=[device()]))
    assert inventory.host.online_cpus == inventory.host.isolated_cpus == frozenset()
    assert [problem.split(" read as empty")[0] for problem in problems] == [
        "online CPUs",
        "isolated CPUs",
        "CPUs of NUMA node 3",
    ]
    assert len(inventory.devices) == 1


def test_numa_nodes_share_the_cpus_of_one_host() -> None:
    """A frame of 13 KB must not become a gigabyte."""
    frame = inventory_pb2.Inventory()
    for number in range(bounds.MAX_NUMA_NODES):
        frame.host.numa_nodes.add(id=number, cpus="0-8191")
    start = time.process_time()
    inventory, problems = decode_inventory(frame)
    assert time.process_time() - start < 0.2
    assert [len(node.cpus) for node in inventory.host.numa_nodes] == [8192] + [0] * 1023
    assert len(problems) == 1023
    assert problems[0].startswith("CPUs of NUMA node 1 read as empty: more than 0 ids")


def test_a_host_of_the_largest_size_is_read_whole() -> None:
    """Every NUMA node has as many CPUs as there can be, in lists without a single range."""
    frame = inventory_pb2.Inventory()
    for number in range(8):
        cpus = ",".join(str(cpu) for cpu in range(number, 8192, 8))
        frame.host.numa_nodes.add(id=number, cpus=cpus)
    inventory, problems = decode_inventory(frame)
    assert [len(node.cpus) for node in inventory.host.numa_nodes] == [1024] * 8
    assert problems == ()


def test_cpulists_that_are_long_together_are_refused() -> None:
    frame = inventory_pb2.Inventory()
    for number in range(31):
        frame.host.numa_nodes.add(id=number, cpus=",".join(["0-8191:1/2"] * 2900))
    refused(lambda: decode_inventory(frame), "host.numaNodes")


def assignment(**changes: object) -> desired_pb2.Assignment:
    fields: dict[str, object] = {
        "allocation_id": ALLOCATION,
        "devices": [desired_pb2.AssignedDevice(id="GPU-0", device_class="gpu")],
        "binding": desired_pb2.BINDING_HOLD,
    }
    return desired_pb2.Assignment(**fields | changes)  # type: ignore[arg-type]


def shared(mode: int, replicas: int) -> desired_pb2.Sharing:
    return desired_pb2.Sharing(mode=mode, replicas=replicas)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hostile", "field"),
    [
        (assignment(allocation_id=""), "assignments[0].allocationId"),
        (assignment(allocation_id="../../etc/passwd"), "assignments[0].allocationId"),
        (assignment(allocation_id=ALLOCATION + "\n"), "assignments[0].allocationId"),
        (assignment(allocation_id=ALLOCATION[:-1] + "\0"), "assignments[0].allocationId"),
        (assignment(devices=[]), "assignments[0].devices"),
        (
            assignment(devices=[desired_pb2.AssignedDevice(id="G", device_class="gpu")] * 2),
            "assignments[0].devices",
        ),
        (
            assignment(devices=[desired_pb2.AssignedDevice(id="G\n", device_class="gpu")]),
            "assignments[0].devices.id",
        ),
        (
            assignment(devices=[desired_pb2.AssignedDevice(id="G", device_class="fpga")]),
            "assignments[0].devices.deviceClass",
        ),
        (assignment(binding=desired_pb2.BINDING_UNSPECIFIED), "assignments[0].binding"),
        (assignment(sharing=shared(0, 4)), "assignments[0].sharing.mode"),
        (assignment(sharing=shared(2, 0)), "assignments[0].sharing.replicas"),
        (assignment(sharing=shared(2, 65)), "assignments[0].sharing.replicas"),
    ],
)
def test_a_state_with_one_hostile_entry_is_refused_whole(
    hostile: desired_pb2.Assignment, field: str
) -> None:
    state = desired_pb2.DesiredState(assignments=[hostile])
    refused(lambda: decode_desired(state.SerializeToString()), field)


def test_a_state_that_names_an_allocation_twice_or_too_many_is_refused() -> None:
    twice = desired_pb2.DesiredState(assignments=[assignment(), assignment()])
    refused(lambda: decode_desired(twice.SerializeToString()), "assignments")
    many = desired_pb2.DesiredState(assignments=[assignment()] * (bounds.MAX_ASSIGNMENTS + 1))
    refused(lambda: decode_desired(many.SerializeToString()), "assignments")


def report(**changes: object) -> report_pb2.AttestedReport:
    fields: dict[str, object] = {"allocation_id": ALLOCATION, "released": report_pb2.Released()}
    if "bound" in changes or "failed" in changes:
        del fields["released"]
    return report_pb2.AttestedReport(**fields | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hostile", "field"),
    [
        (report(allocation_id="alloc_x"), "allocationId"),
        (report(allocation_id=ALLOCATION.upper()), "allocationId"),
        (report(number=1 << 63), "number"),
        (report(node_id="n" * 257), "nodeId"),
        (report(node_id="n\0"), "nodeId"),
        (report(boot_id="b\n"), "bootId"),
        (report(bound=report_pb2.Bound(cdi_devices=["x"] * 1025)), "bound.cdiDevices"),
        (report(bound=report_pb2.Bound(cdi_devices=["x" * 257])), "bound.cdiDevices"),
        (report(bound=report_pb2.Bound(env_file="/" + "x" * 1025)), "bound.envFile"),
        (report(bound=report_pb2.Bound(cgroup_parent="a\nb")), "bound.cgroupParent"),
        (report(failed=report_pb2.Failed(reason="x" * 257)), "failed.reason"),
        (report_pb2.AttestedReport(allocation_id=ALLOCATION), "outcome"),
    ],
)
def test_a_hostile_report_is_refused_by_name(
    hostile: report_pb2.AttestedReport, field: str
) -> None:
    refused(lambda: decode_report(hostile.SerializeToString()), field)


def test_a_long_failure_message_is_cut() -> None:
    long = report(failed=report_pb2.Failed(reason="r", message="x" * 100_000))
    outcome = decode_report(long.SerializeToString()).outcome
    assert len(outcome.message) == bounds.MAX_TEXT_BYTES  # type: ignore[union-attr]

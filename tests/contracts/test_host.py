"""What every ``Host`` gives: this machine, captured ones, simulated ones, and the one in memory."""

from pathlib import Path

import pytest

from bcd.model.host import Inventory
from bcd.node.host.facts import ProcSysHost
from bcd.node.ports import Host
from bcd.sim.machine import build_machine
from bcd.sim.profile import profile_names
from bcd.wire.inventory import decode_inventory, encode_inventory
from tests.captured import unpack
from tests.node.memory import HOST, MemoryHost

CAPTURES = ("sysfs-offlines.txt", "sysfs-nvidia-gpu-numa-nodes.txt")


@pytest.fixture(params=["this", "memory", *CAPTURES, *profile_names()])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    match request.param:
        case "this":
            return ProcSysHost(Path("/"))
        case "memory":
            return MemoryHost(HOST)
        case name if name in CAPTURES:
            return ProcSysHost(unpack(name, tmp_path))
        case profile:
            build_machine(tmp_path, profile, seed="node1", hostname="host")
            return ProcSysHost(tmp_path)


def test_a_nodes_cpus_are_online_and_belong_to_it_alone(host: Host) -> None:
    facts = host.facts()
    listed = [cpu for node in facts.numa_nodes for cpu in node.cpus]
    assert len(listed) == len(set(listed))
    assert set(listed) <= facts.online_cpus


def test_numa_nodes_ascend(host: Host) -> None:
    ids = [node.id for node in host.facts().numa_nodes]
    assert ids == sorted(set(ids))


def test_facts_of_a_quiet_host_are_the_same_twice(host: Host) -> None:
    assert host.facts() == host.facts()
    assert host.machines().memory_bytes >= 0
    assert host.machines().hugepages_1gi >= 0


def test_facts_cross_the_wire_unchanged(host: Host) -> None:
    facts = host.facts()
    received, problems = decode_inventory(encode_inventory(Inventory(facts, ())))
    assert (received.host, problems) == (facts, ())

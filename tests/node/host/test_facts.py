"""The host's facts: captured machines, strange ones, and the one that runs the tests."""

import re
from pathlib import Path

import pytest

from bcd.model.assignment import HostReserve
from bcd.model.host import HostFacts, HugePagePool, Inventory
from bcd.node.fit import Capacity, Ledger
from bcd.node.hold import hold_of
from bcd.node.host.facts import ProcSysHost
from bcd.node.host.pci import numa_with_cpus
from bcd.node.ports import MachinesUse
from bcd.wire.inventory import decode_inventory, encode_inventory
from tests.captured import DATA, unpack
from tests.node.memory import WHOLE
from tests.node.world import assignment, limits

KIB = 1024


def write(root: Path, files: dict[str, str]) -> Path:
    for path, content in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return root


def test_memory_of_coherent_gpus_is_not_the_hosts(tmp_path: Path) -> None:
    facts = ProcSysHost(unpack("sysfs-nvidia-gpu-numa-nodes.txt", tmp_path)).facts()
    assert [node.id for node in facts.numa_nodes] == [0, 8]
    assert [node.memory_bytes for node in facts.numa_nodes] == [
        129_839_104 * KIB,
        133_952_000 * KIB,
    ]
    assert facts.memory_bytes == (129_839_104 + 133_952_000) * KIB


def test_a_nodes_list_of_absent_cpus_counts_only_those_online(tmp_path: Path) -> None:
    facts = ProcSysHost(unpack("sysfs-nvidia-gpu-numa-nodes.txt", tmp_path)).facts()
    assert facts.online_cpus == frozenset([*range(16), *range(88, 104)])
    assert facts.numa_nodes[0].cpus == frozenset(range(16))
    assert facts.numa_nodes[1].cpus == frozenset(range(88, 104))


def test_offline_cpus_of_an_old_kernel_are_told_by_their_topology(tmp_path: Path) -> None:
    facts = ProcSysHost(unpack("sysfs-offlines.txt", tmp_path)).facts()
    online = frozenset(range(16)) - {2, 5, 13, 14}
    assert facts.online_cpus == online
    assert [(node.id, node.cpus) for node in facts.numa_nodes] == [(0, online)]
    assert facts.numa_nodes[0].memory_bytes == 16_772_456 * KIB


def test_the_two_part_cpulists_of_a_dgx_are_read(tmp_path: Path) -> None:
    rows = [
        re.split(r"\t", line)
        for line in (DATA / "topo-m-dgx-a100.txt").read_text().splitlines()
        if line.startswith("GPU")
    ]
    by_node = {row[-1]: row[-2] for row in rows}
    files = {f"sys/devices/system/node/node{n}/cpulist": c for n, c in by_node.items()}
    files["sys/devices/system/cpu/online"] = "0-255\n"
    facts = ProcSysHost(write(tmp_path, files)).facts()
    assert [node.id for node in facts.numa_nodes] == [1, 3, 5, 7]
    assert facts.numa_nodes[0].cpus == frozenset([*range(16, 32), *range(144, 160)])


def test_sparse_memory_only_and_cpuless_nodes_are_kept(tmp_path: Path) -> None:
    node = "sys/devices/system/node"
    files = {
        "sys/devices/system/cpu/online": "0-3\n",
        f"{node}/online": "0,2,4\n",
        f"{node}/node0/cpulist": "0-3\n",
        f"{node}/node0/meminfo": "Node 0 MemTotal:       1024 kB\n",
        f"{node}/node1/cpulist": "\n",
        f"{node}/node2/cpulist": "\n",
        f"{node}/node2/meminfo": "Node 2 MemTotal:       2048 kB\n",
        f"{node}/node4/cpulist": "\n",
    }
    facts = ProcSysHost(write(tmp_path, files)).facts()
    assert [(n.id, n.cpus, n.memory_bytes) for n in facts.numa_nodes] == [
        (0, frozenset(range(4)), 1024 * KIB),
        (2, frozenset(), 2048 * KIB),
        (4, frozenset(), 0),
    ]


def test_what_could_be_there_and_is_not_online_is_not_counted(tmp_path: Path) -> None:
    """As an emulated host with three of four CPUs online of eight possible says it."""
    cpu, node = "sys/devices/system/cpu", "sys/devices/system/node"
    files = {
        f"{cpu}/possible": "0-7\n",
        f"{cpu}/present": "0-3\n",
        f"{cpu}/online": "0-2\n",
        f"{cpu}/offline": "3-7\n",
        f"{cpu}/kernel_max": "8191\n",
        f"{cpu}/isolated": "\n",
        f"{cpu}/nohz_full": " (null)\n",
        f"{node}/possible": "0-63\n",
        f"{node}/online": "0-1\n",
        f"{node}/node0/cpulist": "0-1\n",
        f"{node}/node1/cpulist": "2\n",
    }
    facts = ProcSysHost(write(tmp_path, files)).facts()
    assert facts.online_cpus == frozenset({0, 1, 2})
    assert [(n.id, n.cpus) for n in facts.numa_nodes] == [
        (0, frozenset({0, 1})),
        (1, frozenset({2})),
    ]


def thirty_four_nodes(root: Path) -> HostFacts:
    """A coherent host of four GPUs: eight memory-only nodes for each beside two with CPUs."""
    cpu, node = "sys/devices/system/cpu", "sys/devices/system/node"
    files = {f"{cpu}/online": "0-143\n", f"{node}/online": "0-33\n"}
    for id_ in range(34):
        gib = 480 if id_ < 2 else 0
        files[f"{node}/node{id_}/cpulist"] = ("0-71\n", "72-143\n", "\n")[min(id_, 2)]
        files[f"{node}/node{id_}/meminfo"] = f"Node {id_} MemTotal: {gib << 20} kB\n"
    far = ["80"] * 34
    far[0], far[1], far[33] = "120", "40", "10"
    files[f"{node}/node33/distance"] = " ".join(far)
    files["proc/meminfo"] = f"MemTotal: {960 << 20} kB\n"
    return ProcSysHost(write(root, files)).facts()


def test_of_thirty_four_nodes_the_two_with_cpus_are_found_and_bound_to(tmp_path: Path) -> None:
    facts = thirty_four_nodes(tmp_path)
    assert [node.id for node in facts.numa_nodes] == list(range(34))
    assert [node.id for node in facts.numa_nodes if node.cpus] == [0, 1]
    assert [numa_with_cpus(tmp_path, node) for node in (1, 33)] == [1, 1]
    found, problems = decode_inventory(encode_inventory(Inventory(facts, ())))
    assert (found.host, problems) == (facts, ())
    ledger = Ledger(
        Capacity(
            devices={WHOLE[0].id: WHOLE[0]},
            host=facts,
            reserve=HostReserve(0, 0),
            machines=MachinesUse(),
            slice_problem="",
        )
    )
    for mems, gib, fits in (("0", 480, True), ("1", 481, False), ("0-33", 960, True)):
        wanted = limits(cpus="0-71", mems=mems, memory_gib=gib)
        failed = ledger.admit(hold_of(assignment(1, WHOLE[0], limits=wanted)))
        assert (failed is None) is fits, failed


def test_isolated_cpus_are_those_of_boot_and_of_partitions(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/cpu/isolated": "2,3\n",
        "sys/fs/cgroup/cpuset.cpus.isolated": "6-7\n",
    }
    assert ProcSysHost(write(tmp_path, files)).facts().isolated_cpus == frozenset({2, 3, 6, 7})


@pytest.mark.parametrize("text", [" (null)\n", "\n", "9-1\n", "0-99999\n", "\0\0", "x" * 100_000])
def test_a_list_that_is_none_reads_as_empty(tmp_path: Path, text: str) -> None:
    files = {
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/cpu/isolated": text,
    }
    facts = ProcSysHost(write(tmp_path, files)).facts()
    assert (facts.online_cpus, facts.isolated_cpus) == (frozenset(range(8)), frozenset())


def test_huge_pages_are_counted_by_node_and_size(tmp_path: Path) -> None:
    pages = "sys/devices/system/node/node0/hugepages"
    files = {
        "sys/devices/system/node/node0/cpulist": "0\n",
        f"{pages}/hugepages-2048kB/nr_hugepages": "64\n",
        f"{pages}/hugepages-1048576kB/nr_hugepages": "2\n",
        f"{pages}/hugepages-16384kB/nr_hugepages": "many\n",
        f"{pages}/garbage/nr_hugepages": "9\n",
    }
    [node] = ProcSysHost(write(tmp_path, files)).facts().numa_nodes
    assert node.huge_pages == (HugePagePool(2 << 20, 64), HugePagePool(1 << 30, 2))


def test_memory_of_virtual_machines_is_that_of_their_slice(tmp_path: Path) -> None:
    host = ProcSysHost(tmp_path)
    assert host.machines() == MachinesUse(0, 0)
    folder = "sys/fs/cgroup/machine.slice"
    charged = {
        "memory.current": 123_456,
        "hugetlb.1GB.current": 1 << 30,
        "hugetlb.1GB.rsvd.current": 3 << 30,
    }
    write(tmp_path, {f"{folder}/{name}": f"{amount}\n" for name, amount in charged.items()})
    assert host.machines() == MachinesUse(123_456, 3)


STAT = {
    "anon": 60_000,
    "file": 39_000,
    "shmem": 4_000,
    "file_mapped": 5_000,
    "file_dirty": 2_000,
    "file_writeback": 1_000,
    "inactive_anon": 64_000,
    "inactive_file": 20_000,
    "active_file": 14_000,
    "unevictable": 1_000,
}


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({}, 100_000 - 30_000),  # of 34 000 on the lists, 1 000 are mapped and 3 000 to be written
        ({"shmem": 0}, 100_000 - 26_000),
        ({"file_dirty": 50_000}, 100_000),
        ({"file_mapped": 50_000}, 100_000),
        ({"inactive_file": 10**18}, 0),
        ({"inactive_file": 10**40}, 100_000 - 10_000),
    ],
)
def test_what_the_kernel_can_take_back_is_not_used_by_virtual_machines(
    tmp_path: Path, changes: dict[str, int], counted: int
) -> None:
    folder = "sys/fs/cgroup/machine.slice"
    stat = "".join(f"{name} {amount}\n" for name, amount in (STAT | changes).items())
    write(tmp_path, {f"{folder}/memory.current": "100000\n", f"{folder}/memory.stat": stat})
    assert ProcSysHost(tmp_path).machines().memory_bytes == counted


@pytest.mark.parametrize("stat", ["", "rubbish", "inactive_file 50000\n", "active_file x\n"])
def test_without_a_whole_account_all_memory_counts(tmp_path: Path, stat: str) -> None:
    folder = "sys/fs/cgroup/machine.slice"
    write(tmp_path, {f"{folder}/memory.current": "100000\n", f"{folder}/memory.stat": stat})
    assert ProcSysHost(tmp_path).machines().memory_bytes == 100_000


def test_a_root_without_anything_gives_empty_facts(tmp_path: Path) -> None:
    facts = ProcSysHost(tmp_path).facts()
    assert (facts.hostname, facts.boot_id, facts.memory_bytes) == ("", "", 0)
    assert (facts.online_cpus, facts.numa_nodes) == (frozenset(), ())


def test_this_very_machine_has_cpus_and_memory() -> None:
    facts = ProcSysHost(Path("/")).facts()
    assert facts.online_cpus
    assert facts.memory_bytes > 0
    assert re.match(r"[0-9a-f-]{36}\Z", facts.boot_id)
    assert facts.kernel

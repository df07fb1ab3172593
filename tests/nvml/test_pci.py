"""GPUs on the PCI bus, and the host NUMA node that is theirs."""

from pathlib import Path

from bcd.node.host.pci import PciGpu, numa_with_cpus, pci_gpus
from tests.captured import unpack


def function(root: Path, address: str, vendor: str, class_: str, numa: str = "0") -> Path:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{class_}\n")
    (folder / "numa_node").write_text(f"{numa}\n")
    return folder


def test_only_gpus_of_nvidia_are_found(tmp_path: Path) -> None:
    function(tmp_path, "0000:3b:00.0", "0x10de", "0x030200", "1")
    function(tmp_path, "0000:01:00.0", "0x10de", "0x030000", "-1")
    function(tmp_path, "0000:01:00.1", "0x10de", "0x040300")  # its sound
    function(tmp_path, "0000:c0:00.0", "0x10de", "0x068000")  # an NVSwitch
    function(tmp_path, "0000:02:00.0", "0x1002", "0x030000")
    virtual = function(tmp_path, "0000:3b:00.4", "0x10de", "0x030200")
    (virtual / "physfn").symlink_to("../0000:3b:00.0")
    bound = function(tmp_path, "0000:5e:00.0", "0x10de", "0x030200", "x")
    (bound / "driver").symlink_to("../../drivers/vfio-pci")
    assert pci_gpus(tmp_path) == (
        PciGpu("0000:01:00.0", None),
        PciGpu("0000:3b:00.0", 1),
        PciGpu("0000:5e:00.0", None, "vfio-pci"),
    )


def test_a_host_without_a_bus_has_no_gpus(tmp_path: Path) -> None:
    assert pci_gpus(tmp_path) == ()


def test_a_node_of_memory_only_gives_way_to_the_nearest_with_cpus(tmp_path: Path) -> None:
    root = tmp_path
    for node, cpus, distance in (
        (0, "0-3", "10 20 15"),
        (1, "4-7", "20 10 30"),
        (4, "", "15 30 10"),
    ):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "distance").write_text(f"{distance}\n")
    (root / "sys/devices/system/node/online").write_text("0-1,4\n")
    assert [numa_with_cpus(root, node) for node in (0, 1, 4, None)] == [0, 1, 0, None]


def test_nodes_with_cpus_of_a_captured_coherent_host_stay_as_they_are(tmp_path: Path) -> None:
    root = unpack("sysfs-nvidia-gpu-numa-nodes.txt", tmp_path)
    assert numa_with_cpus(root, 0) == 0

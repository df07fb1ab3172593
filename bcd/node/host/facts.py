"""The host's CPUs, NUMA nodes, memory and huge pages, from /proc and /sys below a root.

Documentation/ABI/testing/sysfs-devices-system-cpu and Documentation/admin-guide/mm/ of the
Linux kernel. Every file may be missing: old kernels lack some, and a lost fact must not cost
the rest. Nodes that a GPU brings (coherent platforms) are its memory, not the host's.
"""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from bcd.model.cpuset import MalformedCpuList, parse_cpulist
from bcd.model.host import HostFacts, HugePagePool, NumaNode
from bcd.node.ports import MachinesUse

_MAX_BYTES = 64 * 1024
_NODE = re.compile(r"node([0-9]{1,5})\Z")
_CPU = re.compile(r"cpu([0-9]{1,5})\Z")
_PAGES = re.compile(r"hugepages-([0-9]{1,9})kB\Z")
_TOTAL = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB")
_GPU = re.compile(r"[0-9a-fA-F:.]{7,16}\Z")
_GPU_NODE = re.compile(r"^Node:\s+([0-9]{1,5})\s*$", re.MULTILINE)
_STAT = re.compile(r"^([a-z_]{1,64}) ([0-9]{1,19})$", re.MULTILINE)
# The kernel's lists are the same in pass after pass.
_known_cpulist = functools.lru_cache(maxsize=256)(parse_cpulist)


class ProcSysHost:
    """Implements the ``Host`` port."""

    def __init__(self, root: Path) -> None:
        # Texts, not Paths: a pass reads some twenty files, and joining Paths costs more than that.
        self._root = str(root).rstrip("/")
        self._cpu = f"{self._root}/sys/devices/system/cpu"
        self._node = f"{self._root}/sys/devices/system/node"
        self._kernel = f"{self._root}/proc/sys/kernel"

    def facts(self) -> HostFacts:
        """Everything, read now; what cannot be read is empty."""
        online = self._online()
        owned = frozenset(self._gpu_nodes())
        nodes = [self._numa_node(id_, online) for id_ in sorted(self._node_ids())]
        of_gpus = sum(node.memory_bytes for node in nodes if node.id in owned)
        return HostFacts(
            hostname=self._text(f"{self._kernel}/hostname").strip(),
            boot_id=self._text(f"{self._kernel}/random/boot_id").strip(),
            kernel=self._text(f"{self._kernel}/osrelease").strip(),
            driver_version="",
            cuda_version="",
            online_cpus=online,
            isolated_cpus=self._isolated(),
            memory_bytes=max(0, self._memory(f"{self._root}/proc/meminfo") - of_gpus),
            numa_nodes=tuple(node for node in nodes if node.id not in owned),
        )

    def machines(self) -> MachinesUse:
        """What is charged to ``machine.slice``, where libvirt and systemd keep virtual machines.

        A huge page counts from its reservation on, which may be long before it is used. Pages of
        files that are clean and mapped by nobody do not count: an installation fills them with the
        images that it reads, and the kernel takes them back for whoever needs memory.
        """
        pages = max(self._charged("hugetlb.1GB.current"), self._charged("hugetlb.1GB.rsvd.current"))
        return MachinesUse(max(0, self._charged("memory.current") - self._cached()), pages >> 30)

    def _cached(self) -> int:
        """Bytes that the kernel can take back without writing; 0 where it does not say.

        memory.stat of Documentation/admin-guide/cgroup-v2.rst, which sums up the groups below.
        What is locked is on neither list of files, and tmpfs is on those of anonymous memory;
        file_mapped counts tmpfs too, so its part of that is taken off again.
        """
        text = self._text(f"{self._root}/sys/fs/cgroup/machine.slice/memory.stat")
        found = {name: int(amount) for name, amount in _STAT.findall(text)}
        files = found.get("active_file", 0) + found.get("inactive_file", 0)
        mapped = max(0, found.get("file_mapped", files) - found.get("shmem", 0))
        dirty = found.get("file_dirty", files) + found.get("file_writeback", 0)
        return max(0, files - mapped - dirty)

    def _charged(self, name: str) -> int:
        text = self._text(f"{self._root}/sys/fs/cgroup/machine.slice/{name}").strip()
        return int(text) if text.isdecimal() else 0

    def _online(self) -> frozenset[int]:
        online = self._cpulist(f"{self._cpu}/online")
        # Kernels before 2.6.26 have no list; an offline CPU has no topology there.
        return online or frozenset(
            id_ for id_, path in _numbered(self._cpu, _CPU) if os.path.isdir(f"{path}/topology")
        )

    def _isolated(self) -> frozenset[int]:
        at_boot = self._cpulist(f"{self._cpu}/isolated")
        partitions = self._cpulist(f"{self._root}/sys/fs/cgroup/cpuset.cpus.isolated")
        return at_boot | partitions

    def _node_ids(self) -> frozenset[int]:
        online = self._cpulist(f"{self._node}/online")
        return online or frozenset(id_ for id_, _ in _numbered(self._node, _NODE))

    def _gpu_nodes(self) -> Iterator[int]:
        for _, path in _matching(f"{self._root}/proc/driver/nvidia/gpus", _GPU):
            for match in _GPU_NODE.finditer(self._text(f"{path}/numa_status")):
                yield int(match[1])

    def _numa_node(self, id_: int, online: frozenset[int]) -> NumaNode:
        folder = f"{self._node}/node{id_}"
        # Some kernels list absent CPUs too; a mask is all that the oldest have.
        cpus = self._cpulist(f"{folder}/cpulist") or _mask(self._text(f"{folder}/cpumap"))
        pools = (
            HugePagePool(size * 1024, int(total))
            for size, path in _numbered(f"{folder}/hugepages", _PAGES)
            if (total := self._text(f"{path}/nr_hugepages").strip()).isdecimal()
        )
        return NumaNode(
            id_,
            cpus & online,
            self._memory(f"{folder}/meminfo"),
            tuple(sorted(pools, key=lambda pool: pool.page_bytes)),
        )

    def _memory(self, path: str) -> int:
        match = _TOTAL.search(self._text(path))
        return int(match[1]) * 1024 if match else 0

    def _cpulist(self, path: str) -> frozenset[int]:
        try:
            return _known_cpulist(self._text(path))
        except MalformedCpuList:
            return frozenset()  # "(null)" when a boot option is unset

    def _text(self, path: str) -> str:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(descriptor, _MAX_BYTES).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(descriptor)


def _numbered(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for match, path in _matching(folder, pattern):
        yield int(match[1]), path


def _matching(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        match = pattern.match(name)
        if match:
            yield match, f"{folder}/{name}"


def _mask(text: str) -> frozenset[int]:
    digits = text.strip().replace(",", "")
    if not digits or len(digits) > 2048 or not all(c in "0123456789abcdefABCDEF" for c in digits):
        return frozenset()
    value = int(digits, 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)

"""Device nodes of the driver: which a device needs, and which numbers the kernel gave them.

Majors are the kernel's to choose and change with every load of a module, so edits carry none: the
runtime then looks at the live node, and a missing one is loud. MIG's capabilities are the
exception, since their nodes may be made only when somebody asks for them:
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (device nodes and capabilities).
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping

from bcd.node.edits import DeviceNode
from bcd.node.host.driver.tree import Tree

NumberOf = Callable[[str], tuple[int, int] | None]

CONTROL = "/dev/nvidiactl"  # every process on a GPU opens it
_REQUIRED = (CONTROL, "/dev/nvidia-uvm")
_OPTIONAL = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_CONTROL_MINORS = {"nvidiactl": 255, "nvidia-modeset": 254}
_MEMORY_MINORS = {"nvidia-uvm": 0, "nvidia-uvm-tools": 1}
_GPU = re.compile(r"nvidia([0-9]{1,4})\Z")
_CAP = re.compile(r"nvidia-cap([0-9]{1,6})\Z")
_DRM = re.compile(r"(?:card|renderD)[0-9]{1,4}\Z")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_MAJOR = re.compile(r"^\s*([0-9]{1,5}) (nvidia[a-z-]*)$", re.MULTILINE)
_PAIR = re.compile(r"([0-9]{1,5}):([0-9]{1,7})\Z")
_MINOR_FILE = re.compile(r"^DeviceFileMinor:\s*([0-9]{1,6})\s*$", re.MULTILINE)
_MAX_CAPABILITIES_BYTES = 1 << 20
# Capabilities 1 and 2 change and watch the MIG layout of the whole host: never a tenant's.
_MONITOR = 2


def device_number(path: str) -> tuple[int, int] | None:
    """(major, minor) of the character device at a path of the host; None for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev)


class DriverNodes:
    """The nodes below ``/dev`` of the driver's root, or of the host's where that has none."""

    def __init__(self, host: Tree, driver: Tree, number_of: NumberOf) -> None:
        self._host = host
        self._driver = driver
        self.number_of = number_of

    def _tree(self) -> Tree:
        there = os.path.lexists(self._driver.host(CONTROL))
        return self._driver if there else self._host

    def _node(self, path: str, number: tuple[int, int] | None = None) -> DeviceNode:
        return DeviceNode(path, self._tree().host(path), number)

    def control(self) -> Iterator[DeviceNode]:
        """The nodes that every process on a GPU opens; two only where they are there."""
        for path in _REQUIRED:
            yield self._node(path)
        for path in _OPTIONAL:
            if os.path.lexists(self._tree().host(path)):
                yield self._node(path)

    def gpu(self, minor: int) -> DeviceNode:
        """A GPU's node; ``minor`` is NVML's minor number, which is not its index."""
        return self._node(f"/dev/nvidia{minor}")

    def display(self, pci_address: str) -> tuple[list[DeviceNode], list[tuple[str, str]]]:
        """A GPU's DRM nodes where there are any, and (path, target) of the host's links to them."""
        address = pci_address.lower()
        if len(address.partition(":")[0]) == 8:
            address = address.removeprefix("0000")  # NVML writes the domain with eight digits
        if not _PCI.match(address):
            return [], []
        names, _ = self._host.names(f"/sys/bus/pci/devices/{address}/drm")
        there = [name for name in names if _DRM.match(name)]
        nodes = [self._node(f"/dev/dri/{name}") for name in there]
        nodes = [node for node in nodes if os.path.lexists(node.host_path)]
        links = []
        for node in nodes:
            kind = "render" if "renderD" in node.path else "card"
            path = f"/dev/dri/by-path/pci-{address}-{kind}"
            if os.path.lexists(self._tree().host(path)):
                links.append((path, f"../{os.path.basename(node.path)}"))
        return nodes, links

    def capabilities(self, minor: int, gi: int, ci: int) -> Iterator[DeviceNode]:
        """The two capability nodes of a MIG instance.

        One whose number nobody knows stands under a name that no host has, so that neither
        ``verify`` nor a runtime takes the instance for complete.
        """
        listed = self._listed()
        for part in (f"gi{gi}", f"gi{gi}/ci{ci}"):
            live = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/{part}/access"
            match = _MINOR_FILE.search(self._host.text(live))
            cap = int(match[1]) if match else listed.get(f"gpu{minor}/{part}/access")
            if cap is None or cap <= _MONITOR:
                yield self._node(f"/dev/nvidia-caps/gpu{minor}-{part.replace('/', '-')}")
                continue
            path = f"/dev/nvidia-caps/nvidia-cap{cap}"
            major = self.majors().get("nvidia-caps")
            # The number is of this boot, as every major is: each look at the driver's files makes
            # the edits anew, and the specs follow. What is left are containers that somebody starts
            # after a reboot before the first look, from specs in a folder that outlives it.
            known = major is not None and self.number_of(self._tree().host(path)) is None
            yield self._node(path, (major, cap) if known and major is not None else None)

    def _listed(self) -> dict[str, int]:
        found = {}
        for line in self.capability_list().decode(errors="replace").splitlines():
            name, _, number = line.rpartition(" ")
            if number.isdecimal() and len(number) <= 6:
                found[name] = int(number)
        return found

    def capability_list(self) -> bytes:
        """The list of all capabilities and their minors, as the driver writes it."""
        return self._host.content("/proc/driver/nvidia-caps/mig-minors", _MAX_CAPABILITIES_BYTES)

    def majors(self) -> dict[str, int]:
        """Majors of the driver's modules by name; older ones call the first another name."""
        text = self._host.text("/proc/devices").partition("Block devices:")[0]
        found = {match[2]: int(match[1]) for match in _MAJOR.finditer(text)}
        if "nvidia-frontend" in found:
            found.setdefault("nvidia", found["nvidia-frontend"])
        return found

    def expected(self, path: str, majors: Mapping[str, int]) -> tuple[int, int] | None:
        """The number that the kernel gives a node; None when no driver has it.

        ``majors`` are those of now, read once for all nodes of a device.
        """
        name = os.path.basename(path)
        if path.startswith("/dev/dri/"):
            match = _PAIR.match(self._host.text(f"/sys/class/drm/{name}/dev"))
            return (int(match[1]), int(match[2])) if match else None
        gpu, cap = _GPU.match(name), _CAP.match(name)
        if cap is not None:
            return _pair(majors.get("nvidia-caps"), int(cap[1]))
        if name in _MEMORY_MINORS:
            return _pair(majors.get("nvidia-uvm"), _MEMORY_MINORS[name])
        minor = int(gpu[1]) if gpu is not None else _CONTROL_MINORS.get(name)
        return None if minor is None else _pair(majors.get("nvidia"), minor)

    def stamp(self) -> object:
        """Differs when a node came, went or got another number, or a capability did."""
        tree = self._tree()
        names, _ = tree.names("/dev")
        numbers = [(n, self.number_of(tree.host(f"/dev/{n}"))) for n in names if "nvidia" in n]
        caps, _ = tree.names("/dev/nvidia-caps")
        return (
            tuple(numbers),
            tuple((n, self.number_of(tree.host(f"/dev/nvidia-caps/{n}"))) for n in caps),
            tuple(sorted(self.majors().items())),
            self.capability_list(),
        )


def _pair(major: int | None, minor: int) -> tuple[int, int] | None:
    return None if major is None else (major, minor)

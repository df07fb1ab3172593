"""A folder that looks like a host with NVIDIA's driver: files of the right names, nothing else.

Device nodes are real ones where this process may make them, with majors of the range for local
use (devices.txt of the Linux kernel); elsewhere plain files that say their number, read by
``number_of``. Sockets lie at paths that may be long, hence they are bound from their own folder.
"""

import os
import re
import socket
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

from bcd.node.host.driver import DriverRoot
from bcd.node.host.driver.nodes import device_number

VERSION = "550.163.01"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
GPU_MAJOR, CAPS_MAJOR, MEMORY_MAJOR, DRM_MAJOR = 60, 61, 62, 63
HOOK = "/usr/bin/nvidia-cdi-hook"
# Stem and the SONAME's version; empty where the driver's own has none.
STEMS = {
    "libcuda": "1",
    "libnvidia-ml": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libnvidia-opencl": "1",
    "libnvidia-allocator": "1",
    "libnvidia-opticalflow": "1",
    "libnvidia-encode": "1",
    "libGLX_nvidia": "0",
    "libEGL_nvidia": "0",
    "libnvidia-glcore": "",
    "libnvidia-rtcore": "",
}


def elf(soname: str, machine: int = 62) -> bytes:
    """The smallest 64-bit shared library with a SONAME, of x86-64 or another machine."""
    strings = b"\0" + soname.encode() + b"\0"
    at = 64 + 2 * 56
    dynamic = struct.pack("<qQqQqQ", 5, at + 48, 14, 1, 0, 0)
    size = at + len(dynamic) + len(strings)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    dyn = struct.pack("<IIQQQQQQ", 2, 4, at, at, at, len(dynamic), len(dynamic), 8)
    return header + load + dyn + dynamic + strings


def number_of(path: str) -> tuple[int, int] | None:
    """A device node's number, or that of the file that stands for one here."""
    real = device_number(path)
    try:
        text = "" if real is not None else Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None
    match = re.fullmatch(r"c ([0-9]+):([0-9]+)", text)
    return (int(match[1]), int(match[2])) if match else real


@dataclass
class FakeDriver:
    """A host in ``root`` whose driver lies below ``driver_root``."""

    root: Path
    version: str = VERSION
    driver_root: str = "/"
    majors: dict[str, int] = field(
        default_factory=lambda: {
            "nvidia": GPU_MAJOR,
            "nvidia-uvm": MEMORY_MAJOR,
            "nvidia-caps": CAPS_MAJOR,
        }
    )

    def __post_init__(self) -> None:
        self.kernel()
        self.write("/proc/sys/kernel/osrelease", "6.1.0-test\n")
        self.write("/proc/sys/kernel/random/boot_id", "boot-1\n")

    @property
    def driver(self) -> Path:
        """The driver's root as a folder."""
        return self.root / self.driver_root.lstrip("/")

    def open(self, hook: str = "auto") -> DriverRoot:
        """What the tests are about."""
        return DriverRoot(self.root, self.driver_root, hook, number_of=number_of)

    def write(self, path: str, content: str | bytes = b"", below: Path | None = None) -> Path:
        """Make a file of the host."""
        place = (below or self.root) / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def put(self, path: str, content: str | bytes = b"") -> Path:
        """Make a file of the driver."""
        return self.write(path, content, self.driver)

    def link(self, path: str, target: str) -> None:
        """Make a link of the driver."""
        place = self.driver / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def kernel(self) -> None:
        """What the loaded module says of itself."""
        self.write(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.version}  Tue Apr  8 2025\n"
            "GCC version:  gcc version 12.2.0\n",
        )
        lines = "".join(f"{major:3} {name}\n" for name, major in self.majors.items())
        self.write(
            "/proc/devices", f"Character devices:\n  1 mem\n{lines}\nBlock devices:\n 62 nvidia\n"
        )

    def kernel_gone(self) -> None:
        """What is left when the modules are unloaded."""
        self.majors.clear()
        self.kernel()
        (self.root / "proc/driver/nvidia/version").unlink()

    def node(self, path: str, major: int, minor: int, below: Path | None = None) -> None:
        """Make, or replace, a device node."""
        place = (below or self.root) / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            place.write_text(f"c {major}:{minor}")

    def control(self, below: Path | None = None) -> None:
        """The nodes that nvidia-modprobe makes."""
        self.node("/dev/nvidiactl", self.majors["nvidia"], 255, below)
        self.node("/dev/nvidia-uvm", self.majors["nvidia-uvm"], 0, below)
        self.node("/dev/nvidia-uvm-tools", self.majors["nvidia-uvm"], 1, below)

    def gpu(self, minor: int, pci: str = "", below: Path | None = None) -> None:
        """A GPU's node, and with ``pci`` its DRM nodes ``card<minor>`` and ``renderD…``."""
        self.node(f"/dev/nvidia{minor}", self.majors["nvidia"], minor, below)
        for name, number in (("card", minor), ("renderD", 128 + minor)) if pci else ():
            self.node(f"/dev/dri/{name}{number}", DRM_MAJOR, number, below)
            text = f"{DRM_MAJOR}:{number}\n"
            self.write(f"/sys/bus/pci/devices/{pci}/drm/{name}{number}/dev", text)
            self.write(f"/sys/class/drm/{name}{number}/dev", text)
            kind = "render" if name == "renderD" else name
            link = self.root / f"dev/dri/by-path/pci-{pci}-{kind}"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(f"../{name}{number}")

    def mig(self, minor: int, gi: int, ci: int, cap: int, *, nodes: bool = True) -> None:
        """A MIG instance with the capabilities ``cap`` and ``cap + 1``."""
        for part, number in ((f"gi{gi}", cap), (f"gi{gi}/ci{ci}", cap + 1)):
            self.write(
                f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/{part}/access",
                f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            )
            if nodes:
                self.node(
                    f"/dev/nvidia-caps/nvidia-cap{number}", self.majors["nvidia-caps"], number
                )

    def library(self, stem: str, folder: str = LIBRARIES, version: str = "") -> None:
        """A library with the links that its package makes."""
        name = f"{stem}.so.{version or self.version}"
        major = STEMS.get(stem, "")
        soname = f"{stem}.so.{major}" if major else name
        self.put(f"{folder}/{name}", elf(soname))
        if major:
            self.link(f"{folder}/{soname}", name)

    def install(self, folder: str = LIBRARIES) -> None:
        """Every part of a driver of this version."""
        for stem in STEMS:
            self.library(stem, folder)
        self.put(f"{folder}/libnvidia-egl-gbm.so.1.1.2", elf("libnvidia-egl-gbm.so.1"))
        self.link(f"{folder}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
        self.put(f"{folder}/libnvidia-nvvm70.so.4", elf("libnvidia-nvvm70.so.4"))
        self.put(f"{folder}/vdpau/libvdpau_nvidia.so.{self.version}", elf("libvdpau_nvidia.so.1"))
        self.put("/usr/bin/nvidia-smi", "#!/bin/sh\n")
        self.put(f"/lib/firmware/nvidia/{self.version}/gsp_ga10x.bin")
        self.put(f"/lib/firmware/nvidia/{self.version}/gsp_tu10x.bin")
        self.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{}")
        self.put("/usr/share/vulkan/icd.d/nvidia_icd.json", "{}")
        self.put("/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
        self.listen("/run/nvidia-persistenced/socket")

    def remove_libraries(self, folder: str = LIBRARIES) -> None:
        """Uninstall what carries this version."""
        for path in (self.driver / folder.lstrip("/")).rglob(f"*.so.{self.version}"):
            path.unlink()

    def listen(self, path: str) -> None:
        """A socket of the driver."""
        place = self.driver / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{folder}/{place.name}")
        finally:
            os.close(folder)

    def settle(self) -> None:
        """Let every folder have been as it is for a while."""
        for folder in [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]:
            os.utime(folder, ns=(10**18, 10**18))

    def hook(self, *commands: str, path: str = HOOK) -> None:
        """A hook program that knows some of the newer commands."""
        self.write(path, "#!/bin/sh\n# " + " ".join(commands) + "\n").chmod(0o755)

    def upgrade(self, version: str) -> None:
        """Unload the driver, install another version and load it."""
        self.remove_libraries()
        self.version = version
        self.install()
        self.kernel()


def standing(root: Path, *, gpus: int = 2, driver_root: str = "/") -> FakeDriver:
    """A host with a whole driver and GPUs with the minors 0, 1, …."""
    made = FakeDriver(root, driver_root=driver_root)
    made.install()
    below = made.driver if driver_root != "/" else None
    made.control(below)
    for minor in range(gpus):
        made.gpu(minor, below=below)
    return made

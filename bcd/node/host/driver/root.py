"""The driver of this host as device edits: scanned once, and again when something moved."""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bcd.model.report import Failed
from bcd.node.edits import NO_EDITS, DeviceEdits, Mount
from bcd.node.host.driver.hooks import HookProgram, stand_ins
from bcd.node.host.driver.libraries import Library, find_libraries, is_version, needed
from bcd.node.host.driver.nodes import CONTROL, DriverNodes, NumberOf, device_number
from bcd.node.host.driver.software import FILE_OPTIONS, find_software
from bcd.node.host.driver.tree import Tree, stamp
from bcd.node.host.driver.verify import (
    NO_VERSION,
    file_problem,
    missing_char_links,
    node_problem,
)
from bcd.node.host.kernel_module import kernel_version

_MAX_MINOR = 1024
# File systems keep the time of a change no finer than the kernel's tick, at most 10 ms: two
# changes of one folder within a tick look like one.
_TICK_NS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """What was found, the tree that knows where it looked, and the hook program of then.

    ``began_ns`` is the steady time of the first look that found these stamps; ``settled`` when a
    change from now on shows in them.
    """

    version: str
    tree: Tree
    program: object
    began_ns: int
    settled: bool
    edits: DeviceEdits

    def stamps(self) -> object:
        return self.tree.stamps(), self.program


class DriverRoot:
    """Device edits of the driver below ``driver_root``, on the host below ``root``.

    ``hook`` is ``auto``, ``never`` or the path of the vendor's hook program. Methods may be called
    from any thread. ``number_of`` tells a device node's number; only tests need another one.
    """

    def __init__(
        self,
        root: Path,
        driver_root: Path | str = "/",
        hook: str = "auto",
        *,
        number_of: NumberOf = device_number,
    ) -> None:
        self._root = root
        self._host = Tree(root)
        self._folder = Path(f"{self._host.host('')}/{str(driver_root).lstrip('/')}")
        self._hooks = HookProgram(self._host, hook)
        self._nodes = DriverNodes(self._host, Tree(self._folder), number_of)
        self._lock = threading.Lock()
        self._scan: _Scan | None = None

    def common(self, driver_version: str = "") -> DeviceEdits:
        """What any device of the host needs, but ``NVIDIA_VISIBLE_DEVICES``, which ``cdi`` writes.

        Libraries are those of ``driver_version``, or of the loaded kernel module where that is no
        version. A node or library that every program needs is named even when it is missing: a
        container that starts without it would be worse than one that does not start. Without any
        version there are no files at all, which ``problem`` says.
        """
        version = self._version(driver_version)
        found = self._current(version).edits if version else NO_EDITS
        return replace(found, nodes=tuple(self._nodes.control()))

    def _version(self, asked: str = "") -> str:
        """The version whose files count: as asked for, else the kernel module's; empty for none.

        Some builds of the driver call themselves what no file name ends with, as 550.54.15-dev.
        """
        module = kernel_version(self._root)
        return next((version for version in (asked, module) if is_version(version)), "")

    def _current(self, version: str) -> _Scan:
        with self._lock:
            scan = self._scan
            if scan is None or scan.version != version or not self._holds(scan):
                scan = self._scan = self._scanned(version, scan)
            return scan

    def _scanned(self, version: str, before: _Scan | None) -> _Scan:
        wall, steady = time.time_ns(), time.monotonic_ns()
        tree, program = Tree(self._folder, watch=True), self._program()
        edits = self._look(tree, version)
        # A folder may bear a time to come, from a clock that was wrong: then it has settled when
        # a later look finds it the same.
        same = before is not None and before.tree.stamps() == tree.stamps()
        since = before.began_ns if before is not None and same else steady
        return _Scan(
            version=version,
            tree=tree,
            program=program,
            began_ns=since,
            settled=since < steady - _TICK_NS or tree.newest_ns() < wall - _TICK_NS,
            edits=edits,
        )

    def _holds(self, scan: _Scan) -> bool:
        return scan.settled and scan.program == self._program() and scan.tree.is_as_it_was()

    def _program(self) -> object:
        path = self._hooks.path()
        return path, stamp(path), stamp(f"{path}.real")

    def _look(self, tree: Tree, version: str) -> DeviceEdits:
        libraries = find_libraries(tree, version)
        release = self._host.text("/proc/sys/kernel/osrelease")
        firmware = self._host.text("/sys/module/firmware_class/parameters/path")
        cuda = libraries.named(f"libcuda.so.{version}")
        missing = [name for name in needed(version) if libraries.named(name) is None]
        hooked = bool(self._hooks.path())
        return DeviceEdits(
            env=(f"NVIDIA_CTK_LIBCUDA_DIR={cuda.folder}",) if cuda is not None else (),
            mounts=(
                *(_mount(tree, library) for library in libraries.found),
                *(_mount(tree, libraries.absent(name)) for name in missing),
                *(() if hooked else stand_ins(tree, libraries)),
                *find_software(tree, version, release, firmware),
            ),
            hooks=tuple(self._hooks.all(libraries, version)) if hooked else (),
        )

    def gpu(self, minor: int, pci_address: str) -> DeviceEdits:
        """A whole GPU: its node, by NVML's minor number, and its DRM nodes with their links."""
        if not 0 <= minor < _MAX_MINOR:
            return NO_EDITS
        display, links = self._nodes.display(pci_address)
        nodes = (self._nodes.gpu(minor), *display)
        return DeviceEdits(nodes=nodes, hooks=self._hooks.links(links))

    def mig(
        self, minor: int, pci_address: str, gi: int, ci: int, *, graphics: bool = False
    ) -> DeviceEdits:
        """A MIG instance: its GPU's node and two capabilities; DRM nodes only with ``graphics``."""
        whole = self.gpu(minor, pci_address)
        if whole == NO_EDITS or min(gi, ci) < 0:
            return NO_EDITS
        caps = tuple(self._nodes.capabilities(minor, gi, ci))
        if not graphics:
            return DeviceEdits(nodes=(whole.nodes[0], *caps))
        nodes = (whole.nodes[0], *caps, *whole.nodes[1:])
        return DeviceEdits(nodes=nodes, hooks=whole.hooks)

    def problem(self, edits: DeviceEdits) -> Failed | None:
        """Why a container with these edits would not work now; the message has the remedy."""
        version, majors = kernel_version(self._root), self._nodes.majors()
        for node in edits.nodes:
            failed = node_problem(self._nodes, node, majors)
            if failed is not None:
                return failed
        if not edits.mounts and any(node.path == CONTROL for node in edits.nodes):
            return NO_VERSION
        return file_problem(edits, version)

    def missing_char_links(self, edits: DeviceEdits) -> tuple[str, ...]:
        """``/dev/char`` links that are missing or lead elsewhere; see ``CHAR_LINKS_REMEDY``."""
        folder = self._host.host("/dev/char")
        return tuple(link for link, _ in missing_char_links(self._nodes, edits, folder))

    def fingerprint(self) -> object:
        """Differs when the driver, the boot, a node's number or a folder of the driver changed."""
        version = kernel_version(self._root)
        known = self._scan  # of the version that was asked for last, where there was one
        looked = known.version if known is not None else self._version()
        scan = self._current(looked) if looked else None
        boot = self._host.text("/proc/sys/kernel/random/boot_id")
        found = scan.stamps() if scan is not None else None
        return version, boot, self._nodes.stamp(), found


def _mount(tree: Tree, library: Library) -> Mount:
    return Mount(tree.host(library.file), library.path, FILE_OPTIONS)

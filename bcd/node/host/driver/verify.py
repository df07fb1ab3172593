"""Whether edits are true of the host now: every node, file and hook, before a hold is bound."""

import os
import re
from collections.abc import Iterator, Mapping

from bcd.model.report import Failed, FailureReason
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.host.driver.libraries import foreign_version
from bcd.node.host.driver.nodes import DriverNodes

CHAR_LINKS_REMEDY = (
    "without these links every `systemctl daemon-reload` takes the GPUs away from running"
    " containers; run: nvidia-ctk system create-dev-char-symlinks --create-all, and have udev run"
    " it at boot"
)
_INSTALL = (
    "is not there; install the user-space part of the loaded driver, of the same version, or set"
    " cdi.driver_root"
)
NO_VERSION = Failed(
    FailureReason.DRIVER_FILE_MISSING,
    "neither NVML nor /proc/driver/nvidia/version says a version that driver files could have, as"
    " 550.54.15, so that no library can be told to be the driver's; install a released driver",
)
_GONE = "is not there any more; the next look at the driver's files goes without it"
_GPU = re.compile(r"/dev/nvidia([0-9]{1,4})\Z")
_REMEDIES = (
    ("/dev/nvidia-uvm", "run: nvidia-modprobe -u -c 0"),
    ("/dev/nvidia-modeset", "run: nvidia-modprobe -m"),
    ("/dev/nvidia-caps/", "run nvidia-smi, which makes the nodes of MIG's capabilities"),
    ("/dev/dri/", "run: modprobe nvidia-drm"),
    ("/dev/nvidiactl", "run: nvidia-modprobe -c 0"),
)


def node_problem(nodes: DriverNodes, node: DeviceNode, majors: Mapping[str, int]) -> Failed | None:
    """Why a container would not get a device node, or get a dead one."""
    expected, found = nodes.expected(node.path, majors), nodes.number_of(node.host_path)
    if node.number is not None and node.number == expected:
        return None
    if node.number is not None:
        return _node(node, f"had the number {_text(node.number)} and has {_text(expected)} now")
    if found is None:
        return _node(node, "is no character device")
    if expected is None:
        return _node(node, "is there, but no loaded module serves it (/proc/devices)")
    if found != expected:
        problem = f"is {_text(found)} and the kernel says {_text(expected)}; remove it, then"
        return _node(node, problem)
    return None


def file_problem(edits: DeviceEdits, version: str) -> Failed | None:
    """Which file or hook of the edits is not there, or is of another driver version."""
    for mount in edits.mounts:
        if not os.path.exists(mount.host_path):
            library = ".so." in os.path.basename(mount.host_path)
            return _file(mount.host_path, _INSTALL if library else _GONE)
        if foreign_version(mount.host_path, version):
            text = f"is not of the loaded driver, {version or 'none'}; reload it, or reboot"
            return _file(mount.host_path, text)
    for hook in edits.hooks:
        if not (os.path.isfile(hook.path) and os.access(hook.path, os.X_OK)):
            text = "is no program; install nvidia-container-toolkit-base, or set cdi.hook"
            return _file(hook.path, text)
    return None


def missing_char_links(
    nodes: DriverNodes, edits: DeviceEdits, folder: str
) -> Iterator[tuple[str, str]]:
    """(link, node) of nodes without a ``/dev/char/<major>:<minor>`` that leads to them."""
    for node in edits.nodes:
        number = nodes.number_of(node.host_path)
        if number is not None:
            link = f"{folder}/{_text(number)}"
            if nodes.number_of(link) != number:
                yield link, node.host_path


def _text(number: tuple[int, int] | None) -> str:
    return "none" if number is None else f"{number[0]}:{number[1]}"


def _node(node: DeviceNode, problem: str) -> Failed:
    gpu = _GPU.match(node.path)
    remedy = f"run: nvidia-modprobe -c {gpu[1]}" if gpu else ""
    remedy = remedy or next((text for start, text in _REMEDIES if node.path.startswith(start)), "")
    return Failed(FailureReason.DEVICE_NODE_MISSING, f"{node.host_path} {problem}; {remedy}")


def _file(path: str, problem: str) -> Failed:
    return Failed(FailureReason.DRIVER_FILE_MISSING, f"{path} {problem}")

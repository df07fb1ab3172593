"""A scratch root that looks like a profile's machine: /proc, /sys and device nodes.

Made once and filled up on every start. As root the device nodes are character devices, so that
a container runtime can hand them to a container; other users get plain files, and the machine
says so. Their majors are of the range for local and experimental use (devices.txt of the Linux
kernel): no driver answers, above all not a real GPU's.
"""

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bcd.durable import read_plain, replace_file
from bcd.model.cpuset import format_cpulist, parse_cpulist
from bcd.model.errors import BadConfiguration, Unavailable
from bcd.node.edits import DeviceNode
from bcd.sim.profile import GpuProfile, NumaProfile, Profile, load_profile

_MARK = "sim.json"
_MAX_MARK_BYTES = 64 * 1024
_GPU_MAJOR = 60
_CAPS_MAJOR = 61
# The minors that NVIDIA's driver gives; the universal memory nodes have a major of their own there.
_CONTROL = {"nvidiactl": 255, "nvidia-modeset": 254, "nvidia-uvm": 252, "nvidia-uvm-tools": 253}
_KIB_PER_GIB = 1 << 20
# What a machine's root consists of; beside it a person may keep settings and logs.
_FOLDERS = ("dev", "etc", "proc", "run", "sys", "var")
_BESIDE = (".toml", ".log")


class _Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profile: str
    seed: str
    hostname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A scratch root that stands. ``real_nodes``: its device nodes are character devices."""

    root: Path
    seed: str
    profile: Profile
    real_nodes: bool

    def node(self, name: str) -> DeviceNode:
        """The node ``/dev/<name>`` of this machine."""
        return DeviceNode(f"/dev/{name}", str(self.root / "dev" / name))

    def is_node(self, path: str) -> bool:
        """Whether a device node is there, of the kind that this machine could make."""
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return False
        return stat.S_ISCHR(mode) if self.real_nodes else stat.S_ISREG(mode)


def profile_of(root: Path) -> str | None:
    """The profile that a scratch root was made for, None where there is none.

    The machine that we run on is real, whatever lies in its root. Raises Unavailable for a mark
    that cannot be read, BadConfiguration for one that is broken.
    """
    try:
        if _real_folder(root):
            return None
        content = read_plain(root / _MARK, _MAX_MARK_BYTES)
        return msgspec.json.decode(content, type=_Mark).profile
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Unavailable(
            f"{error.filename}: closed to this user, so whether this host is simulated cannot be"
            " said; run it as root"
        ) from error
    except (OSError, msgspec.DecodeError) as error:
        raise _broken(root / _MARK) from error


def build_machine(root: Path, profile_name: str, *, seed: str, hostname: str) -> Machine:
    """Make, or complete, the scratch root of a simulated machine.

    UUIDs follow from ``seed``; the one of the first time stays. Raises BadConfiguration for a
    root that is the real one, is somebody else's folder, or was made for another profile.
    """
    profile = load_profile(profile_name)
    try:
        _check_root(root)
        mark = _mark(root, _Mark(profile=profile_name, seed=seed, hostname=hostname))
        if mark.profile != profile_name:
            raise BadConfiguration(
                f"paths.root: {root} was made for {mark.profile}; set another folder"
            )
        for path, text in _files(profile, mark.hostname):
            _write(root / path, text)
        _write_once(root / "proc/sys/kernel/random/boot_id", f"{uuid.uuid4()}\n")
        real = _make_nodes(root / "dev", profile)
    except OSError as error:
        raise BadConfiguration(
            f"paths.root: {error.filename or root} cannot be made or read ({error.strerror});"
            " mend that, or set another folder"
        ) from error
    return Machine(root=root, seed=mark.seed, profile=profile, real_nodes=real)


def _check_root(root: Path) -> None:
    """Refuse the machine that we run on, under whatever name, and folders that no machine made."""
    real = _real_folder(root)
    if real:
        raise BadConfiguration(
            f"paths.root: {root / real.strip('/')} is the real {real}; a simulated machine needs a"
            " folder of its own, not /; set paths.root"
        )
    if not root.exists() or (root / _MARK).exists():
        return
    strange = [name for name in sorted(os.listdir(root)) if not _may_be_ours(name)]
    if strange:
        raise BadConfiguration(
            f"paths.root: {root} has {strange[0]} in it, which no simulated machine made; set an"
            " empty folder"
        )


def _real_folder(root: Path) -> str:
    """The first folder below ``root``, or itself, that is this machine's own; empty when none."""
    for name in ("", *_FOLDERS):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(root / name), os.stat(Path("/") / name)):
                return f"/{name}"
    return ""


def _may_be_ours(name: str) -> bool:
    """Also without a mark: enrolment comes first, and a broken mark may have been moved away."""
    return name in _FOLDERS or name.startswith((_MARK, f".{_MARK}")) or name.endswith(_BESIDE)


def _mark(root: Path, fresh: _Mark) -> _Mark:
    path = root / _MARK
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Mark)
    except FileNotFoundError:
        root.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(fresh) + b"\n", mode=0o644)
        return fresh
    except msgspec.DecodeError as error:
        raise _broken(path) from error


def _broken(path: Path) -> BadConfiguration:
    return BadConfiguration(
        f"paths.root: {path} is broken; restore it, or move it away and it is made anew for"
        " this node and profile; holds are untouched"
    )


def _files(profile: Profile, hostname: str) -> Iterator[tuple[str, str]]:
    host = profile.host
    nodes = [(id_, parse_cpulist(node.cpus), node) for id_, node in enumerate(host.numa)]
    cpus = format_cpulist(cpu for _, ids, _ in nodes for cpu in ids)
    yield "proc/sys/kernel/hostname", f"{hostname}\n"
    yield "proc/sys/kernel/osrelease", f"{host.kernel}\n"
    total = sum(node.memory_gib for node in host.numa) * _KIB_PER_GIB
    yield "proc/meminfo", f"MemTotal:       {total} kB\n"
    for name in ("online", "possible", "present"):
        yield f"sys/devices/system/cpu/{name}", f"{cpus}\n"
    yield "sys/devices/system/cpu/isolated", f"{host.isolated_cpus}\n"
    yield "sys/devices/system/node/online", f"{format_cpulist(id_ for id_, _, _ in nodes)}\n"
    for id_, ids, node in nodes:
        yield from _numa_files(f"sys/devices/system/node/node{id_}", id_, ids, node)
    for gpu in profile.gpus:
        yield f"sys/bus/pci/devices/{gpu.pci}/numa_node", f"{gpu.numa}\n"


def _numa_files(
    folder: str, id_: int, cpus: frozenset[int], node: NumaProfile
) -> Iterator[tuple[str, str]]:
    yield f"{folder}/cpulist", f"{format_cpulist(cpus)}\n"
    yield f"{folder}/meminfo", f"Node {id_} MemTotal: {node.memory_gib * _KIB_PER_GIB} kB\n"
    pages = f"{folder}/hugepages"
    yield f"{pages}/hugepages-2048kB/nr_hugepages", f"{node.hugepages_2mi}\n"
    yield f"{pages}/hugepages-1048576kB/nr_hugepages", f"{node.hugepages_1gi}\n"


def _write(path: Path, text: str) -> None:
    try:
        if path.read_bytes() == text.encode():
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_once(path: Path, text: str) -> None:
    if not path.exists():
        _write(path, text)


def _make_nodes(folder: Path, profile: Profile) -> bool:
    """Make every device node; False when this process may make plain files only."""
    wanted = dict(_wanted_nodes(profile))
    try:
        for name, device in wanted.items():
            _make_node(folder / name, device)
    except PermissionError:
        for name in wanted:
            _write_once(folder / name, "")
        return False
    return True


def _make_node(path: Path, device: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = os.lstat(path)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == device:
            return
    except FileNotFoundError:
        pass
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    os.mknod(fresh, stat.S_IFCHR | 0o666, device)
    os.chmod(fresh, 0o666)  # noqa: S103 - as the driver makes them
    os.replace(fresh, path)


def _wanted_nodes(profile: Profile) -> Iterator[tuple[str, int]]:
    for name, minor in _CONTROL.items():
        yield name, os.makedev(_GPU_MAJOR, minor)
    for index, gpu in enumerate(profile.gpus):
        yield f"nvidia{index}", os.makedev(_GPU_MAJOR, index)
        for minor in cap_minors(index, gpu):
            yield f"nvidia-caps/nvidia-cap{minor}", os.makedev(_CAPS_MAJOR, minor)


def cap_minors(index: int, gpu: GpuProfile) -> Iterator[int]:
    """Capability minors of a GPU's MIG instances: GPU instance, compute instance, and so on.

    The numbers are those of NVIDIA's driver: 3 + 135 per GPU + 9 per GPU instance.
    """
    for instance in gpu.mig:
        first = 3 + 135 * index + 9 * instance.gi
        yield first
        yield first + 1


CONTROL_NODES = tuple(_CONTROL)

"""A hold: an allocation's devices and limits, and the variables that carry it on disk.

The same variables stand in the CDI spec (from which everything is rebuilt after a reboot) and
in the env file (which workload managers without CDI read). Pure; ``cdi`` and ``converge`` call it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bcd.model.assignment import (
    AssignedDevice,
    Assignment,
    Limits,
    Sharing,
    SharingMode,
    slice_name,
)
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.node.limits import canonical

# Bash, systemd's EnvironmentFile and line readers agree on these without quoting.
_VALUE = re.compile(r"[A-Za-z0-9_./:,=@%+-]*\Z")
_NUMBER = re.compile(r"[0-9]{1,20}\Z")
_CPULIST = re.compile(r"[0-9,-]{0,32768}\Z")
# Sought in the bytes, so that a damaged file still says whose it is.
_MAKER = re.compile(rb"BCD_NODE_ID=(node_[0-9a-z]{26})(?![0-9a-z])")
_REPLICAS = re.compile(r"[1-9][0-9]{0,3}\Z")
_MODES = frozenset(str(known) for known in SharingMode)
_CLASSES = frozenset(str(known) for known in DeviceClass)


class MalformedHold(ValueError):
    """Variables that do not describe a hold; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What an allocation has on this host, devices in booked order."""

    allocation_id: AllocationId
    devices: tuple[AssignedDevice, ...]
    limits: Limits | None = None
    sharing: Sharing | None = None

    @property
    def cgroup_parent(self) -> str:
        """The slice of a hold with limits, empty for one without."""
        return slice_name(self.allocation_id) if self.limits is not None else ""


def hold_of(assignment: Assignment) -> Hold:
    """The hold that an assignment asks for, cpulists in canonical form where they parse.

    The assignment's end is no part of it: an extension changes nothing on disk.
    """
    limits = assignment.limits
    if limits is not None:
        # A list that does not parse stays: admission refuses it by name.
        limits = replace(limits, cpus=canonical(limits.cpus), mems=canonical(limits.mems))
    slots = any(device.device_class is DeviceClass.SLOT for device in assignment.devices)
    return Hold(
        assignment.allocation_id, assignment.devices, limits, assignment.sharing if slots else None
    )


def physical_id(device: AssignedDevice) -> str:
    """The UUID that CUDA knows: a slot's is its GPU's."""
    return device.id.split("::")[0] if device.device_class is DeviceClass.SLOT else device.id


def variables(hold: Hold, node_id: str) -> dict[str, str]:
    """The ``BCD_*`` variables of a hold, in file order; ``read_hold`` turns them back."""
    found = {
        "BCD_ALLOCATION_ID": str(hold.allocation_id),
        "BCD_NODE_ID": node_id,
        "BCD_DEVICES": ",".join(device.cdi_name for device in hold.devices),
    }
    if hold.limits is not None:
        found |= {
            "BCD_CGROUP_PARENT": hold.cgroup_parent,
            "BCD_CPU_MILLIS": str(hold.limits.cpu_millis),
            "BCD_MEMORY_BYTES": str(hold.limits.memory_bytes),
            "BCD_HUGEPAGES_1GI": str(hold.limits.hugepages_1gi),
            "BCD_CPUS": hold.limits.cpus,
            "BCD_MEMS": hold.limits.mems,
        }
    if hold.sharing is not None:
        found |= {
            "BCD_SHARING": str(hold.sharing.mode),
            "BCD_REPLICAS": str(hold.sharing.replicas),
        }
    return found


def env_file(hold: Hold, node_id: str) -> bytes:
    """The env file: strict ``KEY=VALUE`` lines, with the UUIDs in the order CUDA shall number them.

    Raises MalformedHold for a value that would need quoting.
    """
    uuids = dict.fromkeys(physical_id(device) for device in hold.devices)
    lines = variables(hold, node_id) | {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    for key, value in lines.items():
        if not _VALUE.match(value):
            raise MalformedHold(f"{key} has a character that an env file cannot carry")
    return "".join(f"{key}={value}\n" for key, value in lines.items()).encode()


def maker(content: bytes | None) -> str:
    """The id of the node that wrote a spec or env file, empty where the file does not say."""
    match = _MAKER.search(content or b"")
    return match[1].decode() if match else ""


def read_hold(entries: Iterable[str]) -> Hold:
    """The hold that ``KEY=VALUE`` entries describe; raises MalformedHold."""
    found: dict[str, str] = dict(entry.partition("=")[::2] for entry in entries)
    allocation_id = found.get("BCD_ALLOCATION_ID", "")
    if not is_allocation_id(allocation_id):
        raise MalformedHold("BCD_ALLOCATION_ID is no allocation id")
    names = found.get("BCD_DEVICES", "").split(",")
    devices = tuple(_device(name) for name in names)
    if len(set(devices)) != len(devices):
        raise MalformedHold("BCD_DEVICES names a device twice")
    limits = _limits(found) if "BCD_CGROUP_PARENT" in found else None
    sharing = _sharing(found) if "BCD_SHARING" in found else None
    return Hold(AllocationId(allocation_id), devices, limits, sharing)


def _sharing(found: Mapping[str, str]) -> Sharing:
    mode, replicas = found["BCD_SHARING"], found.get("BCD_REPLICAS", "")
    if mode not in _MODES or not _REPLICAS.match(replicas):
        raise MalformedHold("BCD_SHARING or BCD_REPLICAS is no way to share a GPU")
    return Sharing(SharingMode(mode), int(replicas))


def _device(name: str) -> AssignedDevice:
    kind, _, device_id = name.partition("=")
    vendor, _, device_class = kind.partition("/")
    if vendor != "bcd.dev" or device_class not in _CLASSES or not device_id:
        raise MalformedHold("BCD_DEVICES has an entry that is no bcd.dev device")
    return AssignedDevice(device_id, DeviceClass(device_class))


def _limits(found: Mapping[str, str]) -> Limits:
    numbers = [
        found.get(key, "") for key in ("BCD_CPU_MILLIS", "BCD_MEMORY_BYTES", "BCD_HUGEPAGES_1GI")
    ]
    lists = [found.get(key, "") for key in ("BCD_CPUS", "BCD_MEMS")]
    if not all(_NUMBER.match(number) for number in numbers):
        raise MalformedHold("a limit is no number")
    if not all(_CPULIST.match(text) for text in lists):
        raise MalformedHold("BCD_CPUS or BCD_MEMS is no cpulist")
    return Limits(
        cpu_millis=int(numbers[0]),
        memory_bytes=int(numbers[1]),
        hugepages_1gi=int(numbers[2]),
        cpus=lists[0],
        mems=lists[1],
    )

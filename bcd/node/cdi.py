"""A hold's CDI specs: rendered from the hold and the GPUs, and read back.

A file holds one kind, so a hold over several classes has several files; a device name may stand
in one file only, or no reader resolves it. Pure; ``converge`` calls it.

What a device needs comes with the GPUs' snapshot. A MIG instance's parts, its GPU's node and two
capability nodes, are found by ``host.driver`` (``root.mig``, ``nodes.capabilities``) for the
instances that ``host.nvml`` lists, and checked by ``host.driver.verify`` before a bind.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.node.cdi_format import minimum_version, problem_of
from bcd.node.edits import NO_EDITS, DeviceEdits, DeviceNode, Hook, Mount
from bcd.node.hold import Hold, MalformedHold, physical_id, read_hold, variables
from bcd.node.ports import ForeignSpec, GpuSnapshot

VENDOR = "bcd.dev"
_LOST = DeviceEdits(nodes=(DeviceNode("/dev/nvidia-lost", "/dev/nvidia-lost"),))
# Files are the same in pass after pass, and checking one takes longer than all else about it: those
# of so many holds are remembered. A hold beyond costs each pass a millisecond.
_KEPT = 128
_OWN = re.compile(r"bcd-(alloc_[0-9a-z]{26})(?:\.(gpu|gpu\.mig|gpu\.slot))?\.json\Z")


class MalformedSpec(ValueError):
    """An own spec file that cannot be read back; the text says why."""


def file_name(allocation_id: AllocationId, device_class: DeviceClass | None = None) -> str:
    """``bcd-<alloc>.json`` for the hold's first class, ``bcd-<alloc>.<class>.json`` for others."""
    return (
        f"bcd-{allocation_id}.json"
        if device_class is None
        else (f"bcd-{allocation_id}.{device_class}.json")
    )


def parse_file_name(name: str) -> tuple[AllocationId, str] | None:
    """(allocation, class or empty) of an own spec file's name; None for every other name."""
    match = _OWN.match(name)
    if match is None or not is_allocation_id(match[1]):
        return None
    return AllocationId(match[1]), match[2] or ""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A file to be, validated."""

    name: str
    content: bytes


def render(
    hold: Hold, gpus: GpuSnapshot, node_id: str, *, annotate: bool, mps: DeviceEdits = NO_EDITS
) -> tuple[SpecFile, ...] | None:
    """The hold's files in writing order, the first class's last; None when a device is not there.

    ``annotate`` puts ``bcd.dev/cgroup-parent`` beside the variable of a hold with limits, at the
    price of CDI 0.6.0. ``mps`` is what its slots need beside their GPU. Raises MalformedSpec when
    the result would break a rule of the format.
    """
    edits = [_edits_of(device, gpus) for device in hold.devices]
    there = tuple(found for found in edits if found is not None)
    if len(there) < len(edits):
        return None
    classes = list(dict.fromkeys(device.device_class for device in hold.devices))
    files = []
    for device_class in (*classes[1:], classes[0]):
        common = gpus.common
        if device_class is DeviceClass.SLOT:
            common = replace(
                common, env=(*common.env, *mps.env), mounts=(*common.mounts, *mps.mounts)
            )
        name = file_name(hold.allocation_id, None if device_class is classes[0] else device_class)
        content = _content(hold, there, common, node_id, device_class, annotate)
        files.append(SpecFile(name, content))
    return tuple(files)


@functools.lru_cache(maxsize=_KEPT)
def _content(
    hold: Hold,
    edits: tuple[DeviceEdits, ...],
    common: DeviceEdits,
    node_id: str,
    device_class: DeviceClass,
    annotate: bool,
) -> bytes:
    """A file of the hold, checked; ``edits`` are those of its devices, in their order."""
    document = _document(hold, edits, common, node_id, device_class, annotate)
    problem = problem_of(document)
    if problem is not None:
        raise MalformedSpec(problem)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def lost_devices(hold: Hold, gpus: GpuSnapshot) -> tuple[AssignedDevice, ...]:
    """The hold's devices that are not there."""
    return tuple(device for device in hold.devices if _edits_of(device, gpus) is None)


def without_lost(hold: Hold, gpus: GpuSnapshot) -> GpuSnapshot:
    """The same GPUs, with a node that nobody has in place of each lost device of the hold.

    What a lost device had are names that the driver gives to others: the next GPU, or instance,
    may get the same node. So its entry stays in the spec, and a container that asks for it fails.
    """
    lost = {device.id: _LOST for device in lost_devices(hold, gpus)}
    return replace(gpus, edits={**gpus.edits, **lost}) if lost else gpus


def _edits_of(device: AssignedDevice, gpus: GpuSnapshot) -> DeviceEdits | None:
    """A slot of a GPU needs what the GPU needs; the driver knows the GPU only."""
    return gpus.edits.get(device.id) or gpus.edits.get(physical_id(device))


def _document(
    hold: Hold,
    edits: tuple[DeviceEdits, ...],
    common: DeviceEdits,
    node_id: str,
    device_class: DeviceClass,
    annotate: bool,
) -> dict[str, Any]:
    # An image's NVIDIA_VISIBLE_DEVICES=all must not make a legacy hook add every GPU.
    env = ["NVIDIA_VISIBLE_DEVICES=void"]
    env += (f"{key}={value}" for key, value in variables(hold, node_id).items())
    document: dict[str, Any] = {"cdiVersion": "", "kind": f"{VENDOR}/{device_class}"}
    if annotate and hold.cgroup_parent:
        document["annotations"] = {f"{VENDOR}/cgroup-parent": hold.cgroup_parent}
    document["devices"] = [
        {"name": device.id, "containerEdits": _edits(own)}
        for device, own in zip(hold.devices, edits, strict=True)
        if device.device_class is device_class
    ]
    document["containerEdits"] = _edits(common, env)
    document["cdiVersion"] = minimum_version(document)
    return document


def _edits(edits: DeviceEdits, env: Iterable[str] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    variables_ = [*env, *edits.env]
    if variables_:
        found["env"] = variables_
    if edits.nodes:
        found["deviceNodes"] = [_node(node) for node in edits.nodes]
    if edits.mounts:
        found["mounts"] = [_mount(mount) for mount in edits.mounts]
    if edits.hooks:
        found["hooks"] = [_hook(hook) for hook in edits.hooks]
    return found


def _node(node: DeviceNode) -> dict[str, Any]:
    # No type, major or minor: the runtime then looks at the live node, and a missing one is loud.
    entry: dict[str, Any] = {"path": node.path}
    if node.number is not None:
        # There is no node to look at, so that its place on the host says nothing either.
        entry |= {"type": "c", "major": node.number[0], "minor": node.number[1]}
    elif node.host_path != node.path:
        entry["hostPath"] = node.host_path
    entry["permissions"] = "rw"
    return entry


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": list(mount.options),
    }


def _hook(hook: Hook) -> dict[str, Any]:
    return {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}


def read_spec(content: bytes | None, allocation_id: AllocationId) -> Hold:
    """The hold that an own spec file stands for.

    Raises MalformedSpec when the file breaks a rule, or when its devices or its name do not
    agree with the variables in it.
    """
    if content is None:
        raise MalformedSpec("is no plain file of sane size")
    return _hold_in(content, allocation_id)


@functools.lru_cache(maxsize=_KEPT)
def _hold_in(content: bytes, allocation_id: AllocationId) -> Hold:
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedSpec(f"is not JSON: {error}") from error
    problem = problem_of(document)
    if problem is not None:
        raise MalformedSpec(problem)
    try:
        hold = read_hold(document.get("containerEdits", {}).get("env", ()))
    except MalformedHold as error:
        raise MalformedSpec(str(error)) from error
    if hold.allocation_id != allocation_id:
        raise MalformedSpec("is named for another allocation than it carries")
    named = [entry["name"] for entry in document["devices"]]
    kind = document["kind"].removeprefix(f"{VENDOR}/")
    if named != [device.id for device in hold.devices if device.device_class == kind]:
        raise MalformedSpec("names other devices than BCD_DEVICES")
    return hold


def names_device(spec: ForeignSpec, device: AssignedDevice) -> bool:
    """Whether a foreign file claims a device name of ours; YAML is searched, not parsed."""
    try:
        document = msgspec.json.decode(spec.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kind = re.compile(rf"bcd\.dev/{re.escape(device.device_class)}(?![A-Za-z0-9_.-])")
        name = re.compile(rf"(?<![A-Za-z0-9_.:-]){re.escape(device.id)}(?![A-Za-z0-9_.:-])")
        return bool(kind.search(spec.text) and name.search(spec.text))
    if not isinstance(document, dict) or document.get("kind") != f"{VENDOR}/{device.device_class}":
        return False
    entries = document.get("devices")
    return isinstance(entries, list) and any(
        isinstance(entry, dict) and entry.get("name") == device.id for entry in entries
    )

"""What of a reading the inventory can carry: one odd device must not cost the others. Pure.

Ids become names in CDI specs and in what the node sends; the receiver refuses an inventory that has
one id twice, a text that cannot be printed, or a figure beyond its bounds (``wire.inventory``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from bcd.node.cdi_format import is_device_name
from bcd.node.condition import NodeCondition
from bcd.node.host.nvml.messages import GpuReading, MigReading

# No more devices than ``wire.bounds`` allows, and no GPU with more memory than it could have.
MAX_DEVICES = 1024
_MAX_MEMORY_BYTES = 1 << 50
_MAX_TEXT = 200
# Before R470, NVML named an instance by its GPU and two numbers.
_OLD_MIG = re.compile(r"MIG-GPU-.*/[0-9]+/[0-9]+\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Plausible:
    """The GPUs that can be carried, and what is said of those that cannot.

    ``addresses`` are those of GPUs that are left out: NVML names them, so they are not missing.
    """

    gpus: tuple[GpuReading, ...]
    conditions: tuple[NodeCondition, ...] = ()
    addresses: frozenset[str] = frozenset()


def plausible(gpus: Sequence[GpuReading]) -> Plausible:
    """Leave out devices by id, and put texts and figures within bounds."""
    taken: set[str] = set()
    kept: list[GpuReading] = []
    conditions: list[NodeCondition] = []
    addresses: set[str] = set()
    for gpu in gpus:
        problem = _problem(gpu.uuid, taken) if gpu.uuid else ""
        if problem:
            subject = gpu.address or f"GPU {gpu.index}"
            conditions.append(NodeCondition("DeviceLeftOut", subject, problem))
            addresses.add(gpu.address)
            continue
        if gpu.uuid:
            taken.add(gpu.uuid)
        migs = []
        for mig in gpu.migs:
            problem = _problem(mig.uuid, taken)
            if problem:
                subject = f"instance {mig.gi}/{mig.ci} of {gpu.uuid or gpu.index}"
                conditions.append(NodeCondition("DeviceLeftOut", subject, problem))
                continue
            taken.add(mig.uuid)
            migs.append(_mig(mig))
        kept.append(_gpu(gpu, tuple(migs)))
    return Plausible(tuple(kept), tuple(conditions), frozenset(addresses))


def printable(text: str, limit: int = _MAX_TEXT) -> str:
    """A text for people as a line of bounded length."""
    return "".join(char if char.isprintable() else "?" for char in text[:limit])


def _problem(id_: str, taken: set[str]) -> str:
    """Why a device cannot be carried, empty when it can."""
    if _OLD_MIG.match(id_):
        return (
            f"NVML calls it {printable(id_)}, as drivers before 470 did, which no container runtime"
            " takes as a name; install driver 470 or newer"
        )
    if not is_device_name(id_) or "::" in id_:  # what stands behind :: is the number of a slot
        return f"NVML calls it {printable(id_)!r}, which is no name of a CDI device; see nvidia-smi"
    if id_ in taken:
        return f"NVML names {id_} twice, so that nobody can tell them apart; see nvidia-smi -L"
    if len(taken) >= MAX_DEVICES:
        return f"it is one of more than {MAX_DEVICES} devices"
    return ""


def _gpu(gpu: GpuReading, migs: tuple[MigReading, ...]) -> GpuReading:
    return replace(
        gpu,
        error=printable(gpu.error),
        name=printable(gpu.name),
        memory_bytes=_memory(gpu.memory_bytes),
        migs=migs,
    )


def _mig(mig: MigReading) -> MigReading:
    return replace(mig, profile=printable(mig.profile), memory_bytes=_memory(mig.memory_bytes))


def _memory(size: int) -> int:
    return min(max(size, 0), _MAX_MEMORY_BYTES)

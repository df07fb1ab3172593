"""What a person should look at, and what keeps new holds from being made. Pure.

The texts say what to do; subjects are GPUs by UUID, or by PCI address while no UUID is known.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from bcd.model.report import Failed, FailureReason
from bcd.node.condition import NodeCondition
from bcd.node.host.nvml import messages
from bcd.node.host.nvml.messages import Failure, GpuReading
from bcd.node.host.nvml.topology import fabric_problem
from bcd.node.host.pci import PciGpu

# nvml.h
_NO_PERMISSION, _NOT_LOADED, _NO_LIBRARY, _MISMATCH = 4, 9, 12, 18
_KINDS = {
    messages.HANGS: "NVMLUnresponsive",
    _NOT_LOADED: "DriverNotLoaded",
    _NO_LIBRARY: "DriverLibraryMissing",
    _MISMATCH: "DriverLibraryMismatch",
}
# Drivers that a GPU is given to on purpose, so that NVML does not see it.
_ELSEWHERE = frozenset({"vfio-pci"})


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why NVML cannot be used: for people who look at the host, and for new holds."""

    condition: NodeCondition
    failed: Failed


def unavailable(failure: Failure, kernel_version: str) -> Unavailable:
    """What a failure means; ``kernel_version`` is the loaded module's, empty when none is."""
    text = _explain(failure, kernel_version)
    kind = _KINDS.get(failure.code, "NVMLFailed")
    return Unavailable(
        NodeCondition(kind, "", f"{text}; holds stay, new ones fail"),
        Failed(FailureReason.DRIVER_UNAVAILABLE, text),
    )


def files_hang(seconds: float) -> Unavailable:
    """The driver's files have been looked at for so long without an end."""
    text = (
        f"looking at the driver's files has not ended for {seconds:g} s; see whether a mount below"
        " cdi.driver_root hangs (findmnt, and the kernel's log)"
    )
    return Unavailable(
        NodeCondition("DriverFilesUnresponsive", "", f"{text}; holds stay, new ones fail"),
        Failed(FailureReason.DRIVER_UNAVAILABLE, text),
    )


def _explain(failure: Failure, kernel_version: str) -> str:
    match failure.code:
        case messages.HANGS:
            return f"NVIDIA's driver hangs: {failure.text}; see the kernel's log, then reboot"
        case 9:
            return "NVIDIA's kernel module is not loaded; run: modprobe nvidia"
        case 12:
            if failure.text:
                return f"NVML cannot be loaded: {failure.text}; install NVIDIA's driver again"
            return "libnvidia-ml.so.1 is not installed; install NVIDIA's driver"
        case 18:
            return (
                f"the kernel module is {kernel_version or 'of another version'}, the library"
                f" {_library_version(failure) or 'is not'}; reboot, or reload the module"
            )
        case 4:
            return "bcd may not open the GPUs' device nodes; run it as root"
        case _:
            return f"NVML cannot be used: {failure.text}; see nvidia-smi and the kernel's log"


def _library_version(failure: Failure) -> str:
    """NVML's version is the driver's behind a number of its own, as in 12.550.54.15."""
    _, _, suffix = failure.library.rpartition("libnvidia-ml.so.")
    if "." in suffix:
        return suffix
    return failure.nvml.partition(".")[2]


def driver_conditions(failed: Failed | None) -> Iterator[NodeCondition]:
    """What every hold on this host lacks now, though GPUs are there; None when nothing."""
    if failed is not None:
        yield NodeCondition("DriverNotReady", "", f"{failed.message}; holds stay, new ones fail")


def gpu_conditions(
    gpus: Sequence[GpuReading],
    pci: Iterable[PciGpu],
    seen: Mapping[str, str],
    left_out: Set[str] = frozenset(),
) -> Iterator[NodeCondition]:
    """What is wrong on the host while NVML answers.

    ``seen`` are the UUIDs by PCI address of all GPUs that NVML has ever named to this daemon, each
    where it was last; ``left_out`` are addresses of which something else is said.
    """
    yield from _missing(gpus, {gpu.address: gpu for gpu in pci}, seen, left_out)
    for gpu in gpus:
        problem = fabric_problem(gpu)
        if gpu.uuid and problem:
            message = f"{problem}, so that it has no NVLink; see: systemctl status"
            yield NodeCondition("NvlinkFabricDown", gpu.uuid, f"{message} nvidia-fabricmanager")
    off = [str(gpu.index) for gpu in gpus if gpu.persistence is False]
    if off:
        yield NodeCondition(
            "PersistenceModeOff",
            f"GPU {', '.join(off)}",
            "every first use initialises the GPU anew, which takes seconds; run: systemctl enable"
            " --now nvidia-persistenced",
        )


def _missing(
    gpus: Sequence[GpuReading],
    pci: Mapping[str, PciGpu],
    seen: Mapping[str, str],
    left_out: Set[str],
) -> Iterator[NodeCondition]:
    """GPUs that the bus has or NVML once had, and that NVML does not name now."""
    uuids = {gpu.uuid for gpu in gpus if gpu.uuid}
    named = {a for a in seen if seen[a] in uuids} | left_out
    named |= {gpu.address for gpu in gpus if gpu.uuid}
    errors = {gpu.address: gpu.error for gpu in gpus if not gpu.uuid and gpu.address}
    lost = [
        address
        for address in sorted((pci.keys() | seen.keys() | errors.keys()) - named)
        if address not in pci or pci[address].driver not in _ELSEWHERE
    ]
    # A GPU that NVML names without saying where may be any of those that are not accounted for.
    nowhere = sum(not gpu.address for gpu in gpus if gpu.uuid)
    if len([address for address in lost if address not in errors]) <= nowhere:
        lost = [address for address in lost if address in errors]
    for address in lost:
        why = errors.get(address) or _absence(pci.get(address))
        message = f"the GPU at {address} cannot be used ({why}); see the kernel's log for Xid 79"
        yield NodeCondition("GpuMissing", seen.get(address, address), message)
    nameless = [gpu for gpu in gpus if not gpu.uuid and not gpu.address]
    for gpu in nameless[len(set(lost) - errors.keys()) :]:  # the others were named above
        message = f"GPU {gpu.index} does not answer ({gpu.error}); see the kernel's log"
        yield NodeCondition("GpuMissing", f"GPU {gpu.index}", message)


def _absence(gpu: PciGpu | None) -> str:
    if gpu is None:
        return "it is gone from the PCI bus"
    if gpu.driver not in ("", "nvidia"):
        return f"its kernel driver is {gpu.driver}"
    return "NVML does not name it"

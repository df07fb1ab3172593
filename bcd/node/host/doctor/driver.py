"""Checks of NVIDIA's driver, its library, NVML, the GPUs and their nodes."""

import os
import re
import stat
from collections.abc import Iterator

from bcd.model.report import Failed
from bcd.node.host.doctor.finding import Answer, failed, ok, skipped, warning
from bcd.node.host.doctor.patient import NvmlAnswer, Patient, Told
from bcd.node.host.kernel_module import kernel_version
from bcd.node.host.nvml.library import FOLDERS

_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.([0-9]+(?:\.[0-9]+)+)\Z")
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_NODE = re.compile(r"nvidia(?:[0-9]+|ctl|-uvm|-uvm-tools|-modeset)\Z")
_PCI = "sys/bus/pci/devices"
_NO_DRIVER = "the driver is not loaded"
# Conditions of a daemon whose NVML does not answer.
_SILENT = (
    "NVMLUnresponsive",
    "NVMLFailed",
    "DriverNotLoaded",
    "DriverLibraryMissing",
    "DriverLibraryMismatch",
)


def driver(patient: Patient) -> Answer:
    """No module, no GPUs."""
    version = kernel_version(patient.paths.root)
    if version:
        return ok(version)
    return failed(_NO_DRIVER, "modprobe nvidia; dmesg | grep -i nvrm says why not")


def library(patient: Patient) -> Answer:
    """NVML and CUDA refuse a kernel module of another version."""
    version = kernel_version(patient.paths.root)
    if not version:
        return skipped(_NO_DRIVER)
    found = sorted(set(_library_versions(patient)))
    if version in found:
        return ok(f"{version}, as the kernel module")
    if not found:
        return failed(
            "no libcuda.so and libnvidia-ml.so of the driver",
            f"install the driver's libraries of version {version}",
        )
    return failed(
        f"library {', '.join(found)}, kernel module {version}",
        "after an upgrade load the new module: end all GPU work, rmmod nvidia_uvm nvidia_drm"
        " nvidia_modeset nvidia; modprobe nvidia; or reboot",
    )


def _library_versions(patient: Patient) -> Iterator[str]:
    root = patient.settings.cdi.driver_root.strip("/")
    for folder in FOLDERS:
        try:
            names = os.listdir(patient.at(f"{root}/{folder}" if root else folder))
        except PermissionError:
            raise
        except OSError:
            continue
        yield from (match[1] for name in names if (match := _LIBRARY.match(name)))


def _asked(patient: Patient) -> NvmlAnswer | Failed | None:
    """NVML's word, from the daemon where one runs; None where nobody can ask."""
    daemon = patient.daemon
    if isinstance(daemon, Told):
        for name in _SILENT:
            if name in daemon.conditions:
                return Failed(name, daemon.conditions[name])
        return NvmlAnswer(daemon.driver_version, daemon.gpus)
    return patient.nvml() if patient.nvml is not None else None


def nvml(patient: Patient) -> Answer:
    """Inventory and health come from NVML."""
    if library(patient).level != "ok":
        return skipped("driver and library come first")
    answer = _asked(patient)
    if answer is None:
        return skipped("no daemon answers")
    if isinstance(answer, Failed):
        return failed(
            f"{answer.reason}: {answer.message}", "nvidia-smi; dmesg | grep -i -e nvrm -e xid"
        )
    return ok(f"{answer.gpus} GPUs")


def gpus(patient: Patient) -> Answer:
    """A GPU that fell off the bus, or that the driver did not take, is in sysfs only."""
    if nvml(patient).level != "ok":
        return skipped("NVML does not answer")
    answer = _asked(patient)
    assert isinstance(answer, NvmlAnswer)
    on_bus = sum(1 for _ in _pci(patient))
    if on_bus <= answer.gpus:
        return ok(f"{on_bus} on the PCI bus, {answer.gpus} usable")
    return failed(
        f"{on_bus} on the PCI bus, {answer.gpus} usable",
        "nvidia-smi -L; lspci -d 10de: ; dmesg | grep -i -e nvrm -e xid",
    )


def _pci(patient: Patient) -> Iterator[str]:
    """NVIDIA's 3D and VGA controllers, by PCI address."""
    try:
        addresses = os.listdir(patient.at(_PCI))
    except OSError:
        return
    for address in addresses:
        vendor = patient.text(f"{_PCI}/{address}/vendor").strip()
        kind = patient.text(f"{_PCI}/{address}/class").strip()
        if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):
            yield address


def persistence(patient: Patient) -> Answer:
    """Without it the driver unloads a GPU that nobody uses, and loading takes seconds."""
    if not kernel_version(patient.paths.root):
        return skipped(_NO_DRIVER)
    told = patient.daemon
    on = patient.at("run/nvidia-persistenced/socket").exists()
    if isinstance(told, Told) and told.driver_version:
        on = on or "PersistenceModeOff" not in told.conditions
    fix = "systemctl enable --now nvidia-persistenced, or: nvidia-smi -pm 1"
    return ok("on") if on else warning("off", fix)


def nodes(patient: Patient) -> Answer:
    """A container gets these nodes; nobody makes them but the driver's own tool."""
    if not kernel_version(patient.paths.root):
        return skipped(_NO_DRIVER)
    missing = [name for name in _CONTROL if _number(patient, name) is None]
    if missing:
        return failed(
            f"missing: {' '.join(f'/dev/{name}' for name in missing)}",
            "nvidia-modprobe -c 0 -u; at every boot: systemctl enable nvidia-persistenced",
        )
    daemon = patient.daemon
    for name in ("DriverNotReady", "DeviceNotReady"):
        if isinstance(daemon, Told) and name in daemon.conditions:
            return failed(daemon.conditions[name], "bcd status tells of every such device")
    return ok(" ".join(f"/dev/{name}" for name in _CONTROL))


def _number(patient: Patient, name: str) -> str | None:
    """``major:minor`` of a character device below ``/dev``; None where there is none."""
    try:
        found = os.stat(patient.at(f"dev/{name}"))
    except PermissionError:
        raise
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def char_links(patient: Patient) -> Answer:
    """A container keeps its GPUs over a daemon-reload only when systemd can name the nodes."""
    if nodes(patient).level != "ok":
        return skipped("the nodes come first")
    numbers = {
        name: number
        for name in sorted(os.listdir(patient.at("dev")))
        if _NODE.match(name) and (number := _number(patient, name)) is not None
    }
    missing = [
        (name, number)
        for name, number in numbers.items()
        if not patient.at(f"dev/char/{number}").exists()
    ]
    if not missing:
        return ok(f"links of {len(numbers)} nodes in /dev/char")
    commands = "; ".join(f"ln -s ../{name} /dev/char/{number}" for name, number in missing)
    return warning(
        f"no link in /dev/char to {', '.join(name for name, _ in missing)}:"
        " with runc a daemon-reload takes the GPUs from containers",
        f"nvidia-ctk system create-dev-char-symlinks --create-all, or: {commands}",
    )


def cdi_hook(patient: Patient) -> Answer:
    """Either way is right; it decides how a container's libraries get their links."""
    setting = patient.settings.cdi.hook
    if setting == "never":
        return ok("not used, as the settings say")
    if setting != "auto":
        found = os.access(patient.at(setting.lstrip("/")), os.X_OK)
        fix = 'mend hook in [cdi] of the settings, such as: hook = "auto"'
        return ok(setting) if found else failed(f"{setting}: is no program", fix)
    path = patient.program("nvidia-cdi-hook")
    return ok("not installed, specs do without" if path is None else "installed, specs use it")

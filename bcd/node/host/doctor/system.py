"""Checks of systemd, control groups and the daemon's unit."""

import re

from bcd.model.report import Failed
from bcd.node.host.doctor.finding import Answer, failed, for_root, ok, skipped, warning
from bcd.node.host.doctor.patient import Patient
from bcd.node.host.doctor.programs import HANGS

_UNITS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_CONTROLLERS = ("cpu", "cpuset", "memory", "hugetlb")
_DROPIN = "bcd-alloc-.slice.d"
_UNIT = "bcd.service"
# A slice that no allocation has; asking for it loads its drop-ins and starts nothing.
_PROBE = "bcd-alloc-doctor.slice"
# What starts workloads; the daemon must be ready before. All that the unit has in Before=, and no
# sockets: see ``order``.
MANAGERS = (
    "containerd.service",
    "docker.service",
    "crio.service",
    "kubelet.service",
    "slurmd.service",
    "podman.service",
    "podman-restart.service",
    "podman-auto-update.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-agent.service",
    "nomad.service",
)
_NO_DROPIN = "a slice would run unlimited until the daemon gives it its limits"


def init(patient: Patient) -> Answer:
    """Slices are systemd's."""
    name = patient.text("proc/1/comm").strip()
    if name == "systemd":
        return ok("systemd")
    return failed(
        f"process 1 is {name or 'unknown'}",
        "boot the host with systemd, or book without host resources there",
    )


def cgroup(patient: Patient) -> Answer:
    """Only the unified hierarchy has limits that hold."""
    if patient.text("sys/fs/cgroup/cgroup.controllers"):
        return ok("unified")
    return failed(
        "not unified (version 1 or hybrid)",
        "add systemd.unified_cgroup_hierarchy=1 to the kernel's command line, and reboot",
    )


def controllers(patient: Patient) -> Answer:
    """Each limit needs its controller."""
    found = patient.text("sys/fs/cgroup/cgroup.controllers").split()
    if not found:
        return skipped("control groups are not unified")
    missing = [name for name in _CONTROLLERS if name not in found]
    if not missing:
        return ok(" ".join(_CONTROLLERS))
    enable = f"cgroup_enable={','.join(missing)}"
    return failed(
        f"missing: {' '.join(missing)}",
        f"add {enable} to the kernel's command line or take cgroup_disable away, and reboot",
    )


def fail_closed(patient: Patient) -> Answer:
    """The drop-in that gives a slice tiny limits before it gets its real ones."""
    for folder in _UNITS:
        try:
            files = sorted(patient.at(f"{folder}/{_DROPIN}").glob("*.conf"))
        except OSError:
            continue
        for path in files:
            name = f"{folder}/{_DROPIN}/{path.name}"
            if re.search(r"^MemoryMax=[0-9]", patient.text(name), re.MULTILINE):
                return ok(f"/{name}")
    return failed(
        f"no drop-in {_DROPIN}; {_NO_DROPIN}",
        "install the package again, which brings it: apt-get install --reinstall bcd",
    )


def fail_closed_loaded(patient: Patient) -> Answer:
    """A file that systemd has not read, or that another one overrides, does nothing."""
    if fail_closed(patient).fix:
        return skipped("the drop-in is not installed")
    found = _asked(patient, _PROBE, "DropInPaths", "MemoryMax")
    if isinstance(found, Answer):
        return found
    if _DROPIN not in found.get("DropInPaths", ""):
        return failed(f"systemd has not read {_DROPIN}; {_NO_DROPIN}", "systemctl daemon-reload")
    memory = found.get("MemoryMax", "")
    if not memory.isdecimal():
        return failed(
            f"another drop-in or unit sets MemoryMax={memory}; {_NO_DROPIN}",
            f"systemctl cat {_PROBE} names it; take it away, then: systemctl daemon-reload",
        )
    return ok(f"{_PROBE} would get {memory} bytes")


def pystemd(patient: Patient) -> Answer:
    """The way to systemd's bus."""
    if patient.has_module("pystemd"):
        return ok("can be imported")
    return failed(
        "pystemd is not installed",
        "pip install '/path/to/better-compute[systemd]', or install the package",
    )


def daemon(patient: Patient) -> Answer:
    """Nothing binds or releases without it; what is held stays."""
    if patient.closed:
        return for_root(patient.paths.socket)
    if isinstance(patient.daemon, str):
        fix = f"systemctl start {_UNIT}; journalctl -u {_UNIT} -n 50"
        if patient.profile is not None:
            fix = f"bcd run --sim {patient.profile}, with these settings"
        return failed(patient.daemon, fix)
    problem = patient.daemon.conditions.get("PassFailed")
    return ok("answers") if problem is None else failed(f"its passes fail: {problem}", "bcd status")


def _asked(patient: Patient, unit: str, *properties: str) -> dict[str, str] | Answer:
    found = patient.unit(unit, *properties)
    if isinstance(found, Failed) and found.reason == HANGS:
        return failed(
            f"systemctl show {found.message}: systemd or its bus hangs",
            "journalctl -b _PID=1 -n 50; systemctl daemon-reexec, or reboot",
        )
    if isinstance(found, Failed) or not found:
        return skipped("systemd does not answer; run it as root on the host itself")
    return dict(found)


def _unit(patient: Patient, *properties: str) -> dict[str, str] | Answer:
    found = _asked(patient, _UNIT, "LoadState", *properties)
    if isinstance(found, Answer):
        return found
    if found.get("LoadState") != "loaded":
        return skipped(f"{_UNIT} is not installed; the daemon is run by hand")
    return found


def ready(patient: Patient) -> Answer:
    """systemd hears READY when every hold stands."""
    found = _unit(patient, "ActiveState", "SubState")
    if isinstance(found, Answer):
        return found
    if isinstance(patient.daemon, str) and not patient.closed:
        return skipped("no daemon answers")
    state = f"{found.get('ActiveState')} ({found.get('SubState')})"
    if found.get("ActiveState") == "active":
        return ok(state)
    return failed(state, f"journalctl -u {_UNIT} -n 50")


def enabled(patient: Patient) -> Answer:
    """After a reboot nothing but the unit makes holds stand again."""
    found = _unit(patient, "UnitFileState")
    if isinstance(found, Answer):
        return found
    state = found.get("UnitFileState", "")
    if state in ("enabled", "enabled-runtime", "static"):
        return ok(state)
    return failed(
        f"{_UNIT} is {state}, so no daemon runs after a reboot", f"systemctl enable {_UNIT}"
    )


def watchdog(patient: Patient) -> Answer:
    """A daemon that hangs is started again."""
    found = _unit(patient, "WatchdogUSec")
    if isinstance(found, Answer):
        return found
    period = found.get("WatchdogUSec", "")
    if period in ("", "0", "infinity"):
        return warning(
            "systemd does not watch the daemon",
            f"take your WatchdogSec out of: systemctl edit {_UNIT}",
        )
    return ok(f"every {period}")


def order(patient: Patient) -> Answer:
    """A workload manager that starts first finds no holds after a reboot.

    Sockets start before ``basic.target``, the daemon after it: before a socket, it would wait for
    itself, and at boot systemd leaves one of those that wait out, by chance.
    """
    found = _unit(patient, "Before")
    if isinstance(found, Answer):
        return found
    before = found.get("Before", "").split()
    sockets = [name for name in before if name.endswith(".socket")]
    if sockets:
        return failed(
            f"{_UNIT} waits for itself by way of {' '.join(sockets)}; one may be left out at boot",
            f"take {' '.join(sockets)} out of Before= in: systemctl edit {_UNIT}",
        )
    there = [
        name
        for name in MANAGERS
        if any(patient.at(f"{folder}/{name}").exists() for folder in _UNITS)
    ]
    late = [name for name in there if name not in before]
    if late:
        return failed(
            f"{' '.join(late)} may start before {_UNIT}",
            f"systemctl edit {_UNIT}, with: [Unit] Before={' '.join(late)}",
        )
    return ok(f"before {' '.join(there)}" if there else "no workload manager is installed")

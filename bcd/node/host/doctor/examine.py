"""All checks, in the order in which they are shown, and the examination of a host."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bcd.node.host.doctor import driver, link, own, places, runtimes, system
from bcd.node.host.doctor.finding import Answer, Finding, Level, for_root
from bcd.node.host.doctor.patient import Patient


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question; ``real`` ones mean nothing on simulated hardware and are not asked there."""

    name: str
    look: Callable[[Patient], Answer]
    why: str
    real: bool = False


def _real(name: str, look: Callable[[Patient], Answer], why: str) -> Check:
    return Check(name=name, look=look, why=why, real=True)


def _any(name: str, look: Callable[[Patient], Answer], why: str) -> Check:
    return Check(name=name, look=look, why=why)


_UNLIMITED = "else holds with CPUs or memory cannot be made, and AllocationFailed says so"
CHECKS = (
    _any("state-folder", own.state_folder, "it has the key, and what others wrote there counts"),
    _any("state-room", own.room, "reports and states are written before they are sent"),
    _any("key", own.key, "whoever reads it can sign reports as this host"),
    _any("enrolled", own.enrolled, "the control plane knows a host by its certificate only"),
    _any("certificate", own.certificate, "without one no session; what is held stays"),
    _any("clock", own.clock, "certificates are checked against it"),
    _any("cdi-folder", places.cdi_folder, "what is in it is what is held"),
    _any("foreign-specs", places.foreign, "a device name in two files resolves for nobody"),
    _any("env-folder", places.env_folder, "Slurm and others without CDI read it"),
    _any("holds", places.holds, "each hold is a spec, an env file and, with limits, a slice"),
    _real("init", system.init, _UNLIMITED),
    _real("cgroup", system.cgroup, _UNLIMITED),
    _real("controllers", system.controllers, _UNLIMITED),
    _real("pystemd", system.pystemd, _UNLIMITED),
    _real("fail-closed", system.fail_closed, "nothing may run unlimited after a reboot"),
    _real("fail-closed-loaded", system.fail_closed_loaded, "nothing may run unlimited"),
    _any("daemon", system.daemon, "it binds and releases; what is held stays without it"),
    _real("ready", system.ready, "workload managers wait for it"),
    _real("enabled", system.enabled, "after a reboot it makes every hold stand again"),
    _real("watchdog", system.watchdog, "a daemon that hangs is started again"),
    _real("order", system.order, "a workload must not start before its hold stands again"),
    _any("gateway", link.gateway, "desired states and reports go through it"),
    _any("session", link.session, "desired states and reports go through it"),
    _real("driver", driver.driver, "there are no GPUs without it"),
    _real("library", driver.library, "NVML and CUDA refuse another version"),
    _real("nvml", driver.nvml, "inventory and health come from it"),
    _real("gpus", driver.gpus, "a GPU that is lost cannot be booked"),
    _real("persistence", driver.persistence, "else a GPU in nobody's use takes seconds to start"),
    _real("device-nodes", driver.nodes, "containers get them; a missing one fails the bind"),
    _real("char-links", driver.char_links, "a daemon-reload must not take GPUs from containers"),
    _real("cdi-hook", driver.cdi_hook, "decides how a container's libraries are linked"),
    _any("podman", runtimes.podman, "it must read the specs of holds"),
    _any("containerd", runtimes.containerd, "it must read the specs of holds"),
    _any("docker", runtimes.docker, "it must read the specs of holds"),
)


def _looked(check: Check, patient: Patient) -> Answer:
    try:
        return check.look(patient)
    except PermissionError as error:
        return for_root(error.filename or "what it looks at")


def examine(patient: Patient) -> Iterator[Finding]:
    """What every check finds, as each is done."""
    for check in CHECKS:
        if check.real and patient.profile is not None:
            answer = Answer(Level.SIMULATED, f"the hardware is {patient.profile}, simulated")
        else:
            answer = _looked(check, patient)
        yield Finding(
            name=check.name,
            level=answer.level,
            found=answer.found,
            why=check.why,
            fix=answer.fix,
        )

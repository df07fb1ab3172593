"""Checks of the way to the gateway."""

from bcd.node.host.doctor.finding import Answer, failed, for_root, ok, skipped
from bcd.node.host.doctor.patient import Patient


def gateway(patient: Patient) -> Answer:
    """Both ports of the gateway answer."""
    settings = patient.settings.gateway
    for address in dict.fromkeys((settings.address, settings.enroll_address)):
        problem = patient.dial(address)
        if problem:
            return failed(
                f"{address}: {problem}",
                "open the way there in the firewall, or mend [gateway] in the settings",
            )
    return ok(f"{settings.address} and {settings.enroll_address} answer")


def session(patient: Patient) -> Answer:
    """Desired states come, and reports go, by a session only."""
    if patient.closed:
        return for_root(patient.paths.socket)
    if isinstance(patient.daemon, str):
        return skipped("no daemon answers")
    if patient.daemon.connected:
        return ok("stands")
    if gateway(patient).fix:
        return skipped("the gateway cannot be reached")
    return failed(f"none: {patient.daemon.problem}", "bcd status; journalctl -u bcd -n 50")

"""Checks of the daemon's own things: state folder, key, certificate, clock, room."""

from bcd.model.errors import BrokenFile, Unavailable
from bcd.model.units import HOUR_MS, MINUTE_MS
from bcd.node.host.doctor.finding import Answer, Level, failed, for_root, ok, skipped, warning
from bcd.node.host.doctor.folders import folder_of_mode
from bcd.node.host.doctor.patient import Patient, Told
from bcd.signing.certificates import OFFLINE_GRACE_MS, WORKLOAD_ROLES, spiffe_id, validity_ms
from bcd.signing.keyfile import CREDENTIALS, Credentials, load_credentials

_JOIN = "bcd enroll --token-file FILE, with a token of: better-compute token join"
_NOT_ENROLLED = "the host is not enrolled, or its key cannot be used"
_LITTLE_ROOM, _NO_ROOM = 1 << 30, 64 << 20
_SKEW_MS = 5 * MINUTE_MS


def state_folder(patient: Patient) -> Answer:
    """Nobody else may read or change what is in it."""
    return folder_of_mode(patient.paths.state, 0o700)


def key(patient: Patient) -> Answer:
    """The private key is its owner's alone."""
    path = patient.paths.state / CREDENTIALS
    try:
        mode = path.stat().st_mode & 0o777
    except PermissionError:
        return for_root(path)
    except OSError:
        return skipped(_NOT_ENROLLED)
    return failed(f"{path}: mode {mode:o}", f"chmod 600 {path}") if mode & 0o077 else ok(str(path))


def enrolled(patient: Patient) -> Answer:
    """The host has an identity."""
    found = _credentials(patient)
    if isinstance(found, Answer):
        return found
    subject = spiffe_id(found.leaf)
    if subject is None or subject.role not in WORKLOAD_ROLES:
        path = patient.paths.state / CREDENTIALS
        return failed(f"{path}: not the certificate of a node", f"mv {path} {path}.old; {_JOIN}")
    return ok(f"as {subject.id}")


def _credentials(patient: Patient) -> Credentials | Answer:
    """The credentials, or why there are none; looks only, which loading an identity does not."""
    path = patient.paths.state / CREDENTIALS
    if key(patient).level is Level.FAILED:
        return skipped("the mode of the key comes first")
    try:
        return load_credentials(patient.paths.state, _JOIN)
    except FileNotFoundError:
        return failed(f"{path}: this host is not enrolled", _JOIN)
    except Unavailable as error:
        return failed(str(error), "dmesg and df tell why")
    except (BrokenFile, OSError) as error:
        if isinstance(error.__cause__ or error, PermissionError):
            return for_root(path)
        return failed(str(error), f"mv {path} {path}.old; {_JOIN}")


def certificate(patient: Patient) -> Answer:
    """It is renewed at half its life; a quarter of its life later something is wrong."""
    found = _credentials(patient)
    if isinstance(found, Answer):
        return found if found.level is Level.SKIPPED else skipped(_NOT_ENROLLED)
    since_ms, until_ms = validity_ms(found.leaf)
    left_ms = until_ms - patient.now_ms
    if left_ms <= -OFFLINE_GRACE_MS:
        return failed("expired for longer than it may still be renewed", _JOIN)
    if left_ms <= 0:
        return failed(
            f"expired {-left_ms // HOUR_MS} h ago, and may still be renewed",
            "start the daemon with the gateway in reach, it renews: systemctl restart bcd",
        )
    if left_ms < (until_ms - since_ms) // 4:
        return warning(
            f"{left_ms // HOUR_MS} h left, and its renewal is overdue",
            "mend the way to the gateway's enrolment port: bcd status names the problem",
        )
    return ok(f"{left_ms // HOUR_MS} h left")


def clock(patient: Patient) -> Answer:
    """Against the certificate, and against the daemon's own files: no clock runs backwards."""
    found = _credentials(patient)
    if isinstance(found, Answer):
        return found if found.level is Level.SKIPPED else skipped(_NOT_ENROLLED)
    fix = "timedatectl set-ntp true; timedatectl status"
    if patient.now_ms < validity_ms(found.leaf)[0]:
        return failed("before the certificate was issued", fix)
    written_ms = int((patient.paths.state / CREDENTIALS).stat().st_mtime * 1000)
    if patient.now_ms < written_ms - _SKEW_MS:
        return failed(f"{(written_ms - patient.now_ms) // MINUTE_MS} min behind its own files", fix)
    if isinstance(patient.daemon, Told) and patient.daemon.connected:
        return ok("agrees with the certificate, and with the gateway's, whose session stands")
    return ok("agrees with the certificate")


def room(patient: Patient) -> Answer:
    """The outbox and the state must be writable."""
    path = patient.paths.state
    try:
        free = patient.free_bytes(path)
    except PermissionError:
        return for_root(path)
    except OSError:
        return skipped(f"{path} cannot be looked at")
    found, fix = f"{free >> 20} MiB left at {path}", f"make room there: df -hi {path}"
    if free < _NO_ROOM:
        return failed(found, fix)
    return warning(found, fix) if free < _LITTLE_ROOM else ok(found)

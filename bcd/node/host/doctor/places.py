"""Checks of the folders that holds lie in, and of the holds in them."""

import os
from collections.abc import Iterator
from pathlib import Path

from bcd.durable import read_plain, why
from bcd.node.cdi import VENDOR, parse_file_name
from bcd.node.host.doctor.finding import Answer, Level, failed, for_root, ok, skipped
from bcd.node.host.doctor.folders import folder_of_mode
from bcd.node.host.doctor.patient import Patient
from bcd.node.host.standing import Standing, standing_holds

_SUFFIXES = (".json", ".yaml")  # what readers of CDI load
_MAX_FOREIGN_BYTES = 4 << 20


def cdi_folder(patient: Patient) -> Answer:
    """Runtimes of every user read it, and the daemon writes it."""
    return _open_folder(patient.paths.cdi)


def env_folder(patient: Patient) -> Answer:
    """Workload managers read it, and the daemon writes it."""
    return _open_folder(patient.paths.env)


def _open_folder(path: Path) -> Answer:
    answer = folder_of_mode(path, 0o755, at_least=0o755)
    if answer.level is Level.OK and os.geteuid() == 0 and not os.access(path, os.W_OK):
        return failed(f"{path}: cannot be written", f"mount -o remount,rw {path}")
    return answer


def foreign(patient: Patient) -> Answer:
    """A name that stands in two files resolves for nobody, or to the wrong one."""
    closed: list[Path] = []
    try:
        paths = list(_foreign(patient, closed))
    except PermissionError as error:
        return for_root(error.filename)
    except OSError as error:
        return skipped(f"{error.filename} cannot be read ({why(error)})")
    if paths:
        return failed(f"{paths[0]} names {VENDOR} devices", f"mv {paths[0]} {paths[0]}.off")
    return for_root(closed[0]) if closed else ok(f"no other file names {VENDOR} devices")


def _foreign(patient: Patient, closed: list[Path]) -> Iterator[Path]:
    """Files of others with our names in them; raises OSError for a folder that is there.

    ``closed`` gets those that this user may not read.
    """
    for folder in (patient.paths.cdi, patient.paths.cdi_dynamic):
        own = folder == patient.paths.cdi
        for path in _files(folder):
            if path.suffix not in _SUFFIXES or (own and parse_file_name(path.name)):
                continue
            try:
                content = read_plain(path, _MAX_FOREIGN_BYTES)  # readers of CDI follow links, too
            except PermissionError:
                closed.append(path)
                continue
            except OSError:
                continue  # gone, or nothing that a reader of CDI takes
            if f"{VENDOR}/".encode() in content:
                yield path


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def holds(patient: Patient) -> Answer:
    """Every spec can be read and has its env file and its slice."""
    try:
        found = standing_holds(patient.paths, patient.slices)
    except PermissionError as error:
        return for_root(error.filename)
    except OSError as error:
        return skipped(f"{error.filename} cannot be read ({why(error)})")
    # An empty slice that is left is stopped with the daemon's next pass.
    broken = [hold for hold in found if hold.problems]
    if not broken:
        return ok(f"{len(found)} on disk, each with its parts")
    first = broken[0]
    more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    fix = "systemctl restart bcd; then: bcd holds"
    if first.state is Standing.LINGERS and first.slice:
        fix = f"end what bcd holds shows in {first.slice}"
    return failed(f"{first.allocation_id}: {first.problems[0]}{more}", fix)

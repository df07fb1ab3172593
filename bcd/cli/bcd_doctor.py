"""``bcd doctor``: what is missing on this host, why it matters, and what mends it."""

import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bcd.cli.bcd_holds import found_slices
from bcd.cli.program import load_settings
from bcd.cli.say import say
from bcd.model.errors import BcdError
from bcd.model.printable import counted, printable
from bcd.node.host.doctor.examine import examine
from bcd.node.host.doctor.finding import Finding, Level
from bcd.node.host.doctor.patient import Patient, Told, told
from bcd.node.host.real import look_once
from bcd.node.settings import Paths, Settings, paths_of
from bcd.node.status import ask
from bcd.sim.machine import profile_of

_MAX_LINE = 4096


def run(config: Path, *, as_json: bool) -> int:
    """Print what every check found; 1 when one failed."""
    findings = list(_findings(config))
    bad = [finding for finding in findings if finding.level is Level.FAILED]
    if as_json:
        document = {"ok": not bad, "findings": msgspec.to_builtins(findings)}
        say([json.dumps(document, indent=2)])
    else:
        say(printable(line, _MAX_LINE) for finding in findings for line in _lines(finding))
        print(f"bcd: {_summary(findings)}", file=sys.stderr)
    return 1 if bad else 0


def _summary(findings: Sequence[Finding]) -> str:
    count = Counter(finding.level for finding in findings)
    text = f"{counted(len(findings), 'check')}, {count[Level.FAILED]} failed"
    text += f", {counted(count[Level.WARNING], 'warning')}"
    return text + (f", {count[Level.SKIPPED]} skipped" if count[Level.SKIPPED] else "")


def _findings(config: Path) -> Iterator[Finding]:
    why = "every other check looks where the settings say"
    try:
        settings = load_settings(config, Settings)
        paths = paths_of(settings.paths)
        profile = profile_of(paths.root)
        slices = found_slices(paths.root)
    except (BcdError, OSError) as error:
        closed = isinstance(error.__cause__ or error, PermissionError)
        yield Finding(
            name="settings",
            level=Level.SKIPPED if closed else Level.FAILED,
            found=str(error),
            why=why,
            fix="" if closed else "mend that file, or name another one with --config",
        )
        return
    yield Finding(name="settings", level=Level.OK, found=str(config), why=why, fix="")
    daemon, socket_closed = _daemon(paths)
    yield from examine(
        Patient(
            settings=settings,
            paths=paths,
            profile=profile,
            slices=slices,
            daemon=daemon,
            closed=socket_closed,
            nvml=functools.cache(functools.partial(look_once, paths.root, settings)),
        )
    )


def _daemon(paths: Paths) -> tuple[Told | str, bool]:
    """What the daemon says, or why nothing; and whether its socket is closed to this user."""
    try:
        status: Any = ask(paths.socket, "status")
        return told(status, ask(paths.socket, "inventory")), False
    except BcdError as error:
        return error.message, isinstance(error.__cause__, PermissionError)


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.level:<10}{finding.name:<20}{finding.found}"
    if finding.level in (Level.FAILED, Level.WARNING):
        yield f"{'':<10}why: {finding.why}"
        yield f"{'':<10}fix: {finding.fix}"

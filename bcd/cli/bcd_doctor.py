"""``bcd doctor``: what is missing on this host, why it matters, and what mends it."""

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bcd.cli.bcd_holds import found_slices
from bcd.cli.program import load_settings
from bcd.cli.say import say
from bcd.model.errors import BadConfiguration, BcdError
from bcd.model.printable import printable
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
        warnings = sum(finding.level is Level.WARNING for finding in findings)
        print(
            f"bcd: {len(findings)} checks, {len(bad)} failed, {warnings} warnings", file=sys.stderr
        )
    return 1 if bad else 0


def _findings(config: Path) -> Iterator[Finding]:
    why = "every other check looks where the settings say"
    try:
        settings = load_settings(config, Settings)
        paths = paths_of(settings.paths)
    except BadConfiguration as error:
        yield Finding(
            name="settings",
            level=Level.FAILED,
            found=error.message,
            why=why,
            fix="mend that file, or name another one with --config",
        )
        return
    yield Finding(name="settings", level=Level.OK, found=str(config), why=why, fix="")
    yield from examine(
        Patient(
            settings=settings,
            paths=paths,
            profile=profile_of(paths.root),
            slices=found_slices(paths.root),
            daemon=_daemon(paths),
            nvml=functools.cache(functools.partial(look_once, paths.root, settings)),
        )
    )


def _daemon(paths: Paths) -> Told | str:
    try:
        status: Any = ask(paths.socket, "status")
        return told(status, ask(paths.socket, "inventory"))
    except BcdError as error:
        return error.message


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.level:<10}{finding.name:<20}{finding.found}"
    if finding.level in (Level.FAILED, Level.WARNING):
        yield f"{'':<10}why: {finding.why}"
        yield f"{'':<10}fix: {finding.fix}"

"""``bcd exec``: runs a command in a hold, by becoming it: in the hold's slice, with its variables.

A hold with limits is used inside its slice or not at all: what would run unlimited is refused.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bcd.cli.bcd_holds import found_holds
from bcd.cli.program import load_settings
from bcd.model.errors import InvalidState, NotFound, Unavailable
from bcd.model.printable import printable
from bcd.node.hold import Hold, env_file
from bcd.node.host.standing import Standing, StandingHold, unlimited
from bcd.node.settings import Paths, Settings, paths_of
from bcd.sim.machine import profile_of

_NOT_FOUND, _NOT_RUNNABLE = 127, 126  # as a shell says it


def run(config: Path, allocation: str, command: Sequence[str]) -> int:
    """Become the command; returns only when that cannot be done, raises BcdError to refuse it."""
    paths = paths_of(load_settings(config, Settings).paths)
    standing = _standing(found_holds(paths), allocation)
    hold = standing.hold
    assert hold is not None
    # What an outer hold says of itself is not true of this one, not even what this one leaves out.
    ours = {name: text for name, text in os.environ.items() if not name.startswith("BCD_")}
    environment = ours | _variables(hold, standing.node_id)
    words = [*_into_slice(paths, standing, hold), *command]
    program = _found(command[0], environment)
    if program is None:
        return _refused(command[0], "is not found", _NOT_FOUND)
    if not os.access(program, os.X_OK) or os.path.isdir(program):
        return _refused(command[0], "is no program that this user may run", _NOT_RUNNABLE)
    if sys.stdout is not None:
        sys.stdout.flush()
    # Python ignores them, and what is ignored stays so: a pipe's reader that left ended nothing.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0] if len(words) > len(command) else program, words, environment)  # noqa: S606
    except OSError as error:
        return _refused(words[0], f"cannot be run ({error.strerror})", _NOT_RUNNABLE)


def _found(name: str, environment: Mapping[str, str]) -> str | None:
    """Where a command lies, looked for as a shell does; a path may be of what cannot be run."""
    if "/" in name:
        return name if os.path.lexists(name) else None
    return shutil.which(name, path=environment.get("PATH", os.defpath))


def _refused(program: str, problem: str, code: int) -> int:
    print(f"bcd: {printable(program)}: {problem}", file=sys.stderr)
    return code


def _standing(holds: Sequence[StandingHold], allocation: str) -> StandingHold:
    found = {str(hold.allocation_id): hold for hold in holds}.get(allocation)
    if found is None:
        raise NotFound(f"{printable(allocation, 64)}: no hold of this host; see: bcd holds")
    if found.state is Standing.BOUND:
        return found
    problem = found.problems[0] if found.problems else "it is released"
    raise InvalidState(f"{allocation}: does not stand whole: {problem}; see: bcd holds, bcd doctor")


def _variables(hold: Hold, node_id: str) -> dict[str, str]:
    """Those of the env file, which was compared with the hold."""
    lines = env_file(hold, node_id).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def _into_slice(paths: Paths, standing: StandingHold, hold: Hold) -> list[str]:
    """The words before the command; none for a hold without limits, which has no slice."""
    if not hold.cgroup_parent:
        return []
    name = standing.allocation_id
    if profile_of(paths.root) is not None:
        raise InvalidState(
            f"{name}: a simulated host has no slices to run in; its limits would not hold"
        )
    file = unlimited(paths.root, hold)
    if file:
        raise InvalidState(
            f"{name}: {file} does not have the booked limit, so the command would run unlimited;"
            " start the daemon, which mends it: systemctl restart bcd"
        )
    program = shutil.which("systemd-run")
    if program is None:
        raise Unavailable(
            "systemd-run is not installed, so nothing can be started in a slice;"
            " install systemd, such as with: apt-get install systemd"
        )
    return [program, "--scope", "--quiet", "--collect", f"--slice={hold.cgroup_parent}", "--"]

"""The holds as they lie on disk, read without a daemon: what is on disk is the hold (spec 16.1).

For the operator's commands, beside a running daemon or instead of one. Reads only, within bounds;
makes no folder and removes nothing, as the daemon's own ports would.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bcd import durable
from bcd.model.assignment import allocation_of_slice, slice_name
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.node.cdi import MalformedSpec, parse_file_name, read_spec
from bcd.node.hold import Hold, MalformedHold, env_file, maker, read_hold
from bcd.node.host.systemd.cgroup import Cgroups
from bcd.node.host.systemd.tree import walk
from bcd.node.limits import enforced
from bcd.node.settings import Paths

SLICES = "sys/fs/cgroup/bcd.slice/bcd-alloc.slice"  # where systemd puts bcd-alloc-*.slice
_MAX_SPEC_BYTES = 1 << 20
_MAX_ENV_BYTES = 64 * 1024
_MAX_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Runner:
    """A process in a slice; ``command`` is the kernel's short name of it."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class SliceFound:
    """A slice that exists. ``runners`` are the first few; ``empty`` when nothing runs in it."""

    empty: bool
    runners: tuple[Runner, ...] = ()


class Standing(StrEnum):
    """How a hold stands: whole, with a part missing, unreadable, or released and not left.

    A whole one is ``bound``, as the daemon's answers and metrics call it.
    """

    BOUND = "bound"
    INCOMPLETE = "incomplete"
    UNREADABLE = "unreadable"
    LINGERS = "lingers"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingHold:
    """An allocation of which there is anything on this host; ``problems`` say what is not right."""

    allocation_id: AllocationId
    node_id: str
    state: Standing
    hold: Hold | None
    specs: tuple[str, ...]
    env_file: str
    slice: str
    found: SliceFound | None
    problems: tuple[str, ...]


def standing_holds(
    paths: Paths, slices: Mapping[AllocationId, SliceFound]
) -> tuple[StandingHold, ...]:
    """Every allocation with a spec, an env file or a slice, by id.

    Raises OSError for a folder, and PermissionError for a file that is closed to this user.
    ``slices`` are those that exist, as ``cgroup_slices`` finds them.
    """
    specs: dict[AllocationId, list[tuple[str, bytes | None]]] = {}
    for name in sorted(_names(paths.cdi)):
        parsed = parse_file_name(name)
        if parsed is not None:
            specs.setdefault(parsed[0], []).append(
                (name, _content(paths.cdi / name, _MAX_SPEC_BYTES))
            )
    envs = {
        AllocationId(id_): _content(paths.env / name, _MAX_ENV_BYTES)
        for name in _names(paths.env)
        if name.endswith(".env") and is_allocation_id(id_ := name.removesuffix(".env"))
    }
    return tuple(
        _standing(id_, paths, specs.get(id_, []), envs, slices.get(id_))
        for id_ in sorted({*specs, *envs, *slices})
    )


def _standing(
    id_: AllocationId,
    paths: Paths,
    specs: list[tuple[str, bytes | None]],
    envs: Mapping[AllocationId, bytes | None],
    found: SliceFound | None,
) -> StandingHold:
    problems: list[str] = []
    hold = _read(id_, paths, specs, problems)
    broken = bool(problems)
    env = envs.get(id_)
    made_by = next(filter(None, map(maker, [*(content for _, content in specs), env])), "")
    if not specs:
        state = Standing.LINGERS
        if id_ in envs:
            problems.append(f"its env file is left without a spec in {paths.cdi}")
        if found is not None and not found.empty:
            problems.append("processes are left in its slice; end them")
    elif hold is None:
        state = Standing.UNREADABLE
    else:
        problems += _missing(hold, made_by, id_ in envs, env, found)
        state = Standing.INCOMPLETE if problems else Standing.BOUND
    if broken and hold is not None:
        state = Standing.INCOMPLETE
    return StandingHold(
        allocation_id=id_,
        node_id=made_by,
        state=state,
        hold=hold or _from_env(env),
        specs=tuple(name for name, _ in specs),
        env_file=str(paths.env / f"{id_}.env"),
        slice=slice_name(id_) if found is not None else hold.cgroup_parent if hold else "",
        found=found,
        problems=tuple(problems),
    )


def _read(
    id_: AllocationId,
    paths: Paths,
    specs: Iterable[tuple[str, bytes | None]],
    problems: list[str],
) -> Hold | None:
    """The hold of the first spec that can be read; each that cannot is a problem."""
    found = None
    for name, content in specs:
        try:
            found = found or read_spec(content, id_)
            read_spec(content, id_)
        except MalformedSpec as error:
            problems.append(f"{paths.cdi / name} {error}")
    return found


def _missing(
    hold: Hold, made_by: str, has_env: bool, env: bytes | None, found: SliceFound | None
) -> Iterator[str]:
    if not has_env:
        yield "its env file is missing"
    elif env != env_file(hold, made_by):
        yield "its env file says something else than its spec"
    if hold.cgroup_parent and found is None:
        yield f"its slice {hold.cgroup_parent} is not active"


def _from_env(env: bytes | None) -> Hold | None:
    try:
        return read_hold((env or b"").decode(errors="replace").splitlines())
    except MalformedHold:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _content(path: Path, limit: int) -> bytes | None:
    try:
        return durable.read_plain(path, limit, follow=False)
    except PermissionError:
        raise  # closed to this user, not broken
    except OSError:
        return None


def cgroup_slices(root: Path) -> Mapping[AllocationId, SliceFound]:
    """The slices of allocations in the cgroup file system below ``root``, with what runs in them.

    A slice without ``cgroup.events`` went away meanwhile.
    """
    found: dict[AllocationId, SliceFound] = {}
    for name in _names_or_none(root / SLICES):
        id_ = allocation_of_slice(name)
        if id_ is None:
            continue
        folder = root / SLICES / name
        events = _text(folder / "cgroup.events")
        if events:
            empty = "populated 1" not in events.splitlines()
            runners = () if empty else tuple(_runners(root, folder))
            found[id_] = SliceFound(empty, runners)
    return found


def unlimited(root: Path, hold: Hold) -> str:
    """Which limit of the hold its slice does not have now, as its file; empty when none.

    A slice that a workload brought into being by itself has none of those that were booked.
    """
    if hold.limits is None:
        return ""
    wrong = Cgroups(root).differing(hold.allocation_id, enforced(hold.limits))
    return str(wrong[0]) if wrong else ""


def _runners(root: Path, folder: Path) -> Iterator[Runner]:
    """The first few processes at and below a cgroup."""
    left = _MAX_PROCESSES
    with contextlib.closing(walk(folder)) as cgroups:
        for cgroup in cgroups:
            for line in _text("cgroup.procs", cgroup).split():
                if not line.isdecimal():
                    continue
                if left == 0:
                    return
                left -= 1
                yield Runner(int(line), _text(root / "proc" / line / "comm").strip())


def _names_or_none(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: Path | str, folder: int | None = None) -> str:
    """The beginning of a file, whose path may be relative to a folder's descriptor."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)

"""CPU and memory-node lists in the kernel's cpulist format, read within bounds.

Source of the format: Documentation/admin-guide/cputopology.rst and bitmap parsing in lib/bitmap.c
of the Linux kernel; the kernel itself prints plain ids and ascending ranges.
"""

import re
from collections.abc import Iterable

MAX_ID = 8191
MAX_BYTES = 32 * 1024
MAX_PARTS = 4096

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9})/([0-9]{1,9}))?)?\Z", re.ASCII)


class MalformedCpuList(ValueError):
    """A cpulist that does not parse or is out of bounds; the text says which rule it breaks."""


def parse_cpulist(text: str, at_most: int = MAX_ID + 1) -> frozenset[int]:
    """Read ids from ``0-3,8`` and ``0-31:2/4``; blanks around parts are ignored, empty is empty.

    Raises MalformedCpuList for reversed ranges, ids over 8191, more than 4096 parts, more than
    32 KiB or more than ``at_most`` ids, before anything is expanded.
    """
    if len(text) > MAX_BYTES:
        raise MalformedCpuList(f"longer than {MAX_BYTES} bytes")
    stripped = text.strip()
    if not stripped:
        return frozenset()
    parts = stripped.split(",")
    if len(parts) > MAX_PARTS:
        raise MalformedCpuList(f"more than {MAX_PARTS} parts")
    mask = 0  # ranges that cover each other thousands of times cost a word operation each
    for part in parts:
        mask |= _mask(part.strip())
    if mask.bit_count() > at_most:
        raise MalformedCpuList(f"more than {at_most} ids")
    return frozenset(cpu for cpu, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")


def _mask(part: str) -> int:
    match = _PART.match(part)
    if match is None:
        raise MalformedCpuList(f"{part[:40]!r} is no id and no range")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if last < first:
        raise MalformedCpuList(f"range {part} is reversed")
    if last > MAX_ID:
        raise MalformedCpuList(f"id {last} is over {MAX_ID}")
    span = last - first + 1
    if match[3] is None:
        return _ones(span) << first
    used, group = int(match[3]), int(match[4])
    if not 0 < used <= group:
        raise MalformedCpuList(f"stride {part} uses {used} of {group}")
    pattern = _ones(used)
    while group < span:  # twice as many groups with every step
        pattern |= pattern << group
        group *= 2
    return (pattern & _ones(span)) << first


def _ones(count: int) -> int:
    return (1 << count) - 1


def format_cpulist(ids: Iterable[int]) -> str:
    """Write ids in canonical form: ascending, runs of two or more as ``a-b``."""
    parts: list[str] = []
    ordered = sorted(set(ids))
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        first, last = ordered[start], ordered[end]
        parts.append(str(first) if first == last else f"{first}-{last}")
        start = end + 1
    return ",".join(parts)

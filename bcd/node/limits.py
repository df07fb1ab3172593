"""Which limits a host can hold exactly: what a booking asks, rounded to what the kernel keeps.

``converge`` compares what stands with these, so that a limit which the kernel or systemd would
round is not seen as changed on every pass. Pure.
"""

from dataclasses import replace

from bcd.model.assignment import Limits
from bcd.model.cpuset import MalformedCpuList, format_cpulist, parse_cpulist

# systemd before 257 keeps a quota in whole per cents of a CPU: a finer one is cut off at the next
# daemon-reload, and one below a per cent then becomes no quota at all.
_QUOTA_MILLIS = 10
# memory.max is cut off to the kernel's page size, 64 KiB at most (arm64).
_PAGE_BYTES = 64 * 1024


def enforced(limits: Limits) -> Limits:
    """What a slice for these limits reads back as; idempotent.

    Rounds up, so that a hold never has less than was booked. Zero CPU milliseconds or zero bytes
    stand for no limit and stay zero. Cpulists come in canonical form where they parse.
    """
    return replace(
        limits,
        cpu_millis=_up(limits.cpu_millis, _QUOTA_MILLIS),
        memory_bytes=_up(limits.memory_bytes, _PAGE_BYTES),
        cpus=canonical(limits.cpus),
        mems=canonical(limits.mems),
    )


def canonical(cpulist: str) -> str:
    """A cpulist as the kernel would print it; one that does not parse stays as it is."""
    try:
        return format_cpulist(parse_cpulist(cpulist))
    except MalformedCpuList:
        return cpulist


def _up(amount: int, step: int) -> int:
    return -(-amount // step) * step

"""What a node is told to hold an allocation to, from what it booked and how the host lies. Pure.

The daemon admits a hold by the same sums, over the inventory that it sent (spec 6.5, 16.3a): what
is worked out here fits there, unless virtual machines, which only the daemon sees, are in the way.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bcd.model.assignment import HostReserve, Limits
from bcd.model.cpuset import MalformedCpuList, format_cpulist, parse_cpulist
from bcd.model.host import HostFacts
from bcd.model.numa import Nodes, Room
from bcd.model.reservation import Resources
from bcd.model.units import GIB

_MILLIS = 1000
_GIB_PAGE = 1 << 30
_ANY: Nodes = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host as its inventory says, what it keeps for itself, and what its other holds have."""

    facts: HostFacts
    reserve: HostReserve
    others: tuple[Limits, ...] = ()


def limits_of(booked: Resources, numa: Iterable[int | None], host: Host | None) -> Limits | None:
    """The limits of a hold with these host resources, None where it booked none.

    ``numa`` are the NUMA nodes of its devices, None for one whose firmware does not say. On those
    nodes lie its CPUs and its memory, each where there is enough of it beside the host's reserve,
    and of memory beside the other holds too; else that set stays open. It stays open as well
    without a ``host``: nobody knows, or nobody would enforce it.
    """
    if not booked:
        return None
    limits = Limits(
        cpu_millis=booked.vcpu * _MILLIS,
        memory_bytes=booked.memory_gib * GIB,
        hugepages_1gi=booked.hugepages_1gi,
    )
    lies = frozenset(numa)
    nodes = frozenset(node for node in lies if node is not None)
    if host is None or not nodes or nodes != lies:
        return limits
    if not nodes <= {node.id for node in host.facts.numa_nodes}:
        return limits
    return replace(
        limits,
        cpus=format_cpulist(_cpus(booked, nodes, host)),
        mems=format_cpulist(_mems(limits, nodes, host)),
    )


def _cpus(booked: Resources, nodes: Nodes, host: Host) -> frozenset[int]:
    """The nodes' CPUs that a hold may use, none where they are too few."""
    facts = host.facts
    usable = sorted(facts.online_cpus - facts.isolated_cpus)
    free = frozenset(usable[host.reserve.vcpu :])
    own = free & frozenset[int]().union(*(n.cpus for n in facts.numa_nodes if n.id in nodes))
    return own if len(own) >= booked.vcpu else frozenset()


def _mems(limits: Limits, nodes: Nodes, host: Host) -> Nodes:
    """Those of the nodes that have memory, none where the hold would not fit on them.

    A hold without a limit on its memory may need any amount of it.
    """
    facts = host.facts
    pools = {n.id: sum(p.page_bytes * p.total for p in n.huge_pages) for n in facts.numa_nodes}
    memory = Room({n.id: n.memory_bytes - pools[n.id] for n in facts.numa_nodes})
    pages = Room(
        {
            n.id: sum(p.total for p in n.huge_pages if p.page_bytes == _GIB_PAGE)
            for n in facts.numa_nodes
        }
    )
    memory.take(_ANY, host.reserve.memory_bytes)
    for other in host.others:
        memory.take(_ids(other.mems), other.memory_bytes)
        pages.take(_ids(other.mems), other.hugepages_1gi)
    mems = frozenset(n.id for n in facts.numa_nodes if n.id in nodes and n.memory_bytes)
    fits = (
        mems
        and limits.memory_bytes
        and memory.take(mems, limits.memory_bytes) == limits.memory_bytes
        and pages.take(mems, limits.hugepages_1gi) == limits.hugepages_1gi
    )
    return mems if fits else _ANY


def _ids(cpulist: str) -> Nodes:
    try:
        return parse_cpulist(cpulist)
    except MalformedCpuList:
        return _ANY

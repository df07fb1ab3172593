"""``bcd inventory`` for people: the host's lines, and a table of its devices."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_GIB = 1 << 30
_MAX_CELL = 40
_HEAD = ("CLASS", "ID", "NUMA", "MEMORY", "NVLINK", "USE", "MODEL", "PROFILE", "HEALTH")
# HealthState of the inventory's protocol; a state that this version does not know is unknown.
_HEALTH = {1: "healthy", 2: "degraded", 3: "unhealthy"}


def lines(document: Mapping[str, Any], held: Mapping[str, str]) -> Iterator[str]:
    """The inventory's document as lines; ``held`` are allocations by CDI device name."""
    host = document.get("host", {})
    yield f"host    {host.get('hostname', '')}, kernel {host.get('kernel', '')}"
    yield f"driver  {driver(host)}"
    yield f"cpus    {host.get('onlineCpus', '')}{_isolated(host)}"
    yield f"memory  {host.get('memoryBytes', 0) // _GIB} GiB"
    for node in host.get("numaNodes", []):
        memory = node.get("memoryBytes", 0) // _GIB
        pages = "".join(
            f", {pool['total']} pages of {_size(pool['pageBytes'])}"
            for pool in node.get("hugePages", [])
            if pool.get("total")
        )
        yield f"numa {node.get('id', 0):<3}{memory} GiB, cpus {node.get('cpus') or 'none'}{pages}"
    yield from table(_HEAD, [_row(device, held) for device in document.get("devices", [])])


def driver(host: Mapping[str, Any]) -> str:
    """Driver and CUDA version in one phrase."""
    version, cuda = host.get("driverVersion"), host.get("cudaVersion")
    return f"{version}, CUDA {cuda or 'unknown'}" if version else "none seen"


def _isolated(host: Mapping[str, Any]) -> str:
    return f", isolated {host['isolatedCpus']}" if host.get("isolatedCpus") else ""


def _size(page_bytes: int) -> str:
    return f"{page_bytes // _GIB} GiB" if page_bytes >= _GIB else f"{page_bytes >> 20} MiB"


def _row(device: Mapping[str, Any], held: Mapping[str, str]) -> tuple[str, ...]:
    name = f"bcd.dev/{device['deviceClass']}={device['id']}"
    use = held.get(name) or ("in use" if device.get("inUse") else "")
    health = device.get("health", {})
    state = _HEALTH.get(health.get("state"), "unknown")
    reason = health.get("reason")
    return (
        device["deviceClass"],
        device["id"],
        str(device.get("numaNode", "?")),
        f"{device.get('memoryBytes', 0) // _GIB} GiB",
        _nvlink(device),
        use,
        device.get("model", ""),
        "MIG mode" if device.get("migEnabled") else device.get("profile", ""),
        f"{state}: {reason}" if reason else state,
    )


def _nvlink(device: Mapping[str, Any]) -> str:
    peers = len(device.get("nvlinkPeers", ()))
    return device.get("nvlinkDomain", "")[:_MAX_CELL] or (f"{peers} peers" if peers else "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows under their heads, two blanks apart; a column with nothing in it is left out."""
    shown = [n for n in range(len(head)) if any(row[n] for row in rows)]
    widths = {n: max(len(row[n]) for row in (head, *rows)) for n in shown}
    for row in (head, *rows) if rows else ():
        yield "  ".join(f"{row[n]:<{widths[n]}}" for n in shown).rstrip()

"""Inventory frames: what a node sends of its hardware, read within bounds (spec 6.6, 11.4)."""

import hashlib
from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from bcd.model.cpuset import MAX_ID, MalformedCpuList, format_cpulist, parse_cpulist
from bcd.model.device import Device, DeviceClass, Health, HealthState
from bcd.model.errors import InvalidInput
from bcd.model.host import HostFacts, HugePagePool, Inventory, NumaNode
from bcd.wire import bounds
from bcd.wire.node.v1 import inventory_pb2 as pb

_HEALTH_OUT = {
    HealthState.HEALTHY: pb.HEALTH_STATE_HEALTHY,
    HealthState.DEGRADED: pb.HEALTH_STATE_DEGRADED,
    HealthState.UNHEALTHY: pb.HEALTH_STATE_UNHEALTHY,
    HealthState.UNKNOWN: pb.HEALTH_STATE_UNKNOWN,
}
_HEALTH_IN = {number: state for state, number in _HEALTH_OUT.items()}
# Beyond it a figure is no machine's, and sums of such figures leave 64 bits.
_MAX_MEMORY_BYTES = 1 << 60


def encode_inventory(inventory: Inventory) -> pb.Inventory:
    """The frame of an inventory, its content hash filled in."""
    message = pb.Inventory(
        host=_host_out(inventory.host),
        devices=[_device_out(device) for device in inventory.devices],
    )
    message.hash = content_hash(message)
    return message


def content_hash(message: pb.Inventory) -> str:
    """Lower-case hex SHA-256 of the frame's deterministic encoding without its hash."""
    bare = pb.Inventory()
    bare.CopyFrom(message)
    bare.hash = ""
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def device_states(message: pb.Inventory) -> Iterator[tuple[str, str]]:
    """(class, health) of each device of a frame."""
    for device in message.devices:
        yield device.device_class, str(_HEALTH_IN.get(device.health.state, HealthState.UNKNOWN))


def _host_out(host: HostFacts) -> pb.Host:
    return pb.Host(
        hostname=host.hostname,
        boot_id=host.boot_id,
        kernel=host.kernel,
        driver_version=host.driver_version,
        cuda_version=host.cuda_version,
        online_cpus=format_cpulist(host.online_cpus),
        isolated_cpus=format_cpulist(host.isolated_cpus),
        memory_bytes=host.memory_bytes,
        numa_nodes=[
            pb.NumaNode(
                id=node.id,
                cpus=format_cpulist(node.cpus),
                memory_bytes=node.memory_bytes,
                huge_pages=[
                    pb.HugePagePool(page_bytes=pool.page_bytes, total=pool.total)
                    for pool in node.huge_pages
                ],
            )
            for node in host.numa_nodes
        ],
    )


def _device_out(device: Device) -> pb.Device:
    return pb.Device(
        id=device.id,
        device_class=device.device_class,
        model=device.model,
        memory_bytes=device.memory_bytes,
        pci_address=device.pci_address,
        numa_node=device.numa_node,
        nvlink_peers=device.nvlink_peers,
        nvlink_domain=device.nvlink_domain,
        gpu=device.gpu,
        profile=device.profile,
        health=pb.Health(state=_HEALTH_OUT[device.health.state], reason=device.health.reason),
        mig_enabled=device.mig_enabled,
        in_use=device.in_use,
    )


def parse_inventory(body: bytes) -> tuple[Inventory, tuple[str, ...]]:
    """The inventory of a frame's bytes, for the control plane; see ``decode_inventory``.

    Raises InvalidInput also for bytes that are no frame, and for a device of absurd memory.
    """
    try:
        message = pb.Inventory.FromString(body)
    except DecodeError as error:
        raise InvalidInput("inventory", "does not parse") from error
    inventory, problems = decode_inventory(message)
    for position, device in enumerate(inventory.devices):
        if device.memory_bytes > _MAX_MEMORY_BYTES:
            raise InvalidInput(f"devices[{position}].memoryBytes", "is beyond all reason")
    return inventory, problems


def decode_inventory(message: pb.Inventory) -> tuple[Inventory, tuple[str, ...]]:
    """The inventory of a frame, and one sentence for each list that had to be read as empty.

    Raises InvalidInput naming the field for absurd sizes, duplicate or over-long ids and unknown
    device classes.
    """
    if len(message.devices) > bounds.MAX_DEVICES:
        raise InvalidInput("devices", f"has more than {bounds.MAX_DEVICES} entries")
    if len(message.host.numa_nodes) > bounds.MAX_NUMA_NODES:
        raise InvalidInput("host.numaNodes", f"has more than {bounds.MAX_NUMA_NODES} entries")
    if sum(len(node.cpus) for node in message.host.numa_nodes) > bounds.MAX_NUMA_CPULIST_BYTES:
        raise InvalidInput("host.numaNodes", "has longer CPU lists than any host")
    problems: list[str] = []
    host = _host_in(message.host, problems)
    devices = tuple(_device_in(device, i) for i, device in enumerate(message.devices))
    if len({device.id for device in devices}) != len(devices):
        raise InvalidInput("devices", "has one id twice")
    return Inventory(host, devices), tuple(problems)


def _host_in(host: pb.Host, problems: list[str]) -> HostFacts:
    ordered = sorted(host.numa_nodes, key=lambda node: node.id)
    return HostFacts(
        hostname=_text(host.hostname, "host.hostname"),
        boot_id=_text(host.boot_id, "host.bootId"),
        kernel=_text(host.kernel, "host.kernel"),
        driver_version=_text(host.driver_version, "host.driverVersion"),
        cuda_version=_text(host.cuda_version, "host.cudaVersion"),
        online_cpus=_cpus(host.online_cpus, "online CPUs", problems),
        isolated_cpus=_cpus(host.isolated_cpus, "isolated CPUs", problems),
        memory_bytes=host.memory_bytes,
        numa_nodes=tuple(
            NumaNode(
                node.id,
                cpus,
                node.memory_bytes,
                tuple(HugePagePool(p.page_bytes, p.total) for p in node.huge_pages[:16]),
            )
            for node, cpus in zip(ordered, _numa_cpus(ordered, problems), strict=True)
        ),
    )


def _numa_cpus(ordered: Sequence[pb.NumaNode], problems: list[str]) -> Iterator[frozenset[int]]:
    """The CPUs of each NUMA node; no CPU is of two, so all together get one list's bound.

    A kilobyte of lists could otherwise ask for every CPU a thousand times.
    """
    left = MAX_ID + 1
    for node in ordered:
        cpus = _cpus(node.cpus, f"CPUs of NUMA node {node.id}", problems, left)
        left -= len(cpus)
        yield cpus


def _device_in(device: pb.Device, position: int) -> Device:
    path = f"devices[{position}]"
    try:
        device_class = DeviceClass(device.device_class)
    except ValueError as error:
        raise InvalidInput(f"{path}.deviceClass", "is not a known class") from error
    if not device.id or not device.gpu:
        raise InvalidInput(f"{path}.id", "and gpu must not be empty")
    return Device(
        id=_id(device.id, f"{path}.id"),
        device_class=device_class,
        model=_text(device.model, f"{path}.model"),
        memory_bytes=device.memory_bytes,
        pci_address=_text(device.pci_address, f"{path}.pciAddress"),
        numa_node=device.numa_node if device.HasField("numa_node") else None,
        gpu=_id(device.gpu, f"{path}.gpu"),
        profile=_text(device.profile, f"{path}.profile"),
        nvlink_peers=_ids(device.nvlink_peers, f"{path}.nvlinkPeers"),
        nvlink_domain=_id(device.nvlink_domain, f"{path}.nvlinkDomain"),
        health=Health(
            _HEALTH_IN.get(device.health.state, HealthState.UNKNOWN),
            _text(device.health.reason, f"{path}.health.reason"),
        ),
        mig_enabled=device.mig_enabled,
        in_use=device.in_use,
    )


def _cpus(text: str, name: str, problems: list[str], at_most: int = MAX_ID + 1) -> frozenset[int]:
    try:
        return parse_cpulist(text, at_most)
    except MalformedCpuList as error:
        problems.append(f"{name} read as empty: {error}")
        return frozenset()


def _text(text: str, path: str, limit: int = bounds.MAX_TEXT_BYTES) -> str:
    if len(text) > limit:
        raise InvalidInput(path, f"is longer than {limit} characters")
    if not text.isprintable():
        raise InvalidInput(path, "has control characters")
    return text


def _id(text: str, path: str) -> str:
    return _text(text, path, bounds.MAX_ID_BYTES)


def _ids(texts: Sequence[str], path: str) -> tuple[str, ...]:
    if len(texts) > bounds.MAX_DEVICES:
        raise InvalidInput(path, f"has more than {bounds.MAX_DEVICES} entries")
    return tuple(_id(text, path) for text in texts)

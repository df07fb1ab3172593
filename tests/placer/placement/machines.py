"""Machines to place on: captured ones, made-up ones, and their shapes, worked out independently."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from bcd.model.device import Device, DeviceClass
from bcd.model.reservation import DeviceAsk, Resources, Topology
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.shape import Shape, Slot, shape_of
from tests.captured import DATA
from tests.placer.world import gpu, mig

V100_MESH = "topo-m-v100-hybrid-cube-mesh.txt"
DGX_A100 = "topo-m-dgx-a100.txt"

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def captured(name: str, host: str = "h") -> tuple[Device, ...]:
    """The GPUs of a captured ``nvidia-smi topo -m``: direct links as peers, NUMA nodes as shown."""
    lines = _ESCAPE.sub("", (DATA / name).read_text()).splitlines()
    heads = lines[0].split("\t")
    numa = heads.index("NUMA Affinity")
    found = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split("\t")]
        if not cells[0].startswith("GPU"):
            continue
        peers = [
            f"{host}-{head}"
            for head, cell in zip(heads, cells, strict=False)
            if head.startswith("GPU") and re.fullmatch(r"NV\d+", cell)
        ]
        found.append(gpu(f"{host}-{cells[0]}", int(cells[numa]), peers=peers))
    return tuple(found)


def mig_host(
    host: str, gpus: int = 2, instances: int = 7, profile: str = "1g.10gb"
) -> tuple[Device, ...]:
    """GPUs in MIG mode on one NUMA node, each cut into equal instances."""
    devices: list[Device] = []
    for number in range(gpus):
        parent = f"GPU-{host}-{number}"
        devices.append(replace(gpu(parent), mig_enabled=True))
        devices += [mig(f"MIG-{host}-{number}-{i}", parent, profile) for i in range(instances)]
    return tuple(devices)


def shared(host: str, gpus: int = 2, replicas: int = 4) -> tuple[Device, ...]:
    """GPUs of one switch that can be booked whole or by the slot, on one NUMA node."""
    devices: list[Device] = []
    for number in range(gpus):
        whole = gpu(f"GPU-{host}-{number}", domain=f"switch-{host}")
        devices.append(whole)
        devices += [
            replace(whole, id=f"{whole.id}::{n}", device_class=DeviceClass.SLOT)
            for n in range(replicas)
        ]
    return tuple(devices)


def shape(devices: Sequence[Device]) -> Shape:
    """The shape of these devices, in this order."""
    gpus = sorted({device.gpu for device in devices})
    return shape_of(
        tuple(
            Slot(
                device_class=device.device_class,
                model=device.model,
                profile=device.profile,
                numa=device.numa_node,
                gpu=gpus.index(device.gpu),
                links=mask(i for i, other in enumerate(devices) if linked(device, other)),
            )
            for device in devices
        )
    )


def linked(one: Device, other: Device) -> bool:
    """Whether NVLink joins two whole GPUs, or two slots lie on one GPU."""
    if {one.device_class, other.device_class} == {DeviceClass.SLOT}:
        return one.id != other.id and one.gpu == other.gpu
    if one.id == other.id or one.device_class != "gpu" or other.device_class != "gpu":
        return False
    both_ends = other.id in one.nvlink_peers and one.id in other.nvlink_peers
    return both_ends or bool(one.nvlink_domain and one.nvlink_domain == other.nvlink_domain)


def bookable(devices: Sequence[Device]) -> int:
    """The mask of those that can be booked at all."""
    return mask(i for i, device in enumerate(devices) if not device.mig_enabled)


def mask(positions: Iterable[int]) -> int:
    """The mask of these positions."""
    return sum(1 << position for position in positions)


def ask(
    count: int = 1,
    topology: Topology = Topology.ANY,
    device_class: DeviceClass = DeviceClass.GPU,
    model: str = "",
    profile: str = "",
) -> DeviceAsk:
    """One entry of a request."""
    return DeviceAsk(
        device_class=device_class, count=count, topology=topology, model=model, profile=profile
    )


def demand(
    *asks: DeviceAsk, gang: int = 1, resources: Resources | None = None, labels: str = ""
) -> Demand:
    """What a request with these entries asks of each of its nodes."""
    return Demand(
        devices=asks,
        gang_size=gang,
        resources=resources or Resources(),
        labels=frozenset(labels.split()),
    )


def satisfies(devices: Sequence[Device], wanted: DeviceAsk) -> bool:
    """Whether exactly these devices are what an entry asks for."""
    return (
        len(devices) == wanted.count
        and all(device.device_class == wanted.device_class for device in devices)
        and all(_words(wanted.model) <= _words(device.model) for device in devices)
        and all(wanted.profile in ("", device.profile) for device in devices)
        and (len(devices) == 1 or _lies_as(devices, wanted.topology))
    )


def _words(text: str) -> set[str]:
    return set(text.lower().split())


def _lies_as(devices: Sequence[Device], topology: Topology) -> bool:
    if topology is Topology.SAME_NUMA:
        (numa, *others) = {device.numa_node for device in devices}
        return not others and numa is not None
    if topology is Topology.NVLINK_ALL:
        return all(linked(a, b) for a in devices for b in devices if a.id != b.id)
    return True


@st.composite
def hosts(draw: st.DrawFn, most: int = 6) -> tuple[Device, ...]:
    """A host with a few GPUs, linked this way or that, some of them cut into instances."""
    count = draw(st.integers(1, most))
    numas = draw(st.lists(st.sampled_from([0, 0, 1, 2, None]), min_size=count, max_size=count))
    models = draw(st.lists(st.sampled_from(["H100 80GB", "H100 94GB", "A100 80GB"]), min_size=count,
                           max_size=count))  # fmt: skip
    pairs = [(a, b) for a in range(count) for b in range(a)]
    links = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    switch = draw(st.booleans())
    devices: list[Device] = []
    for i in range(count):
        peers = [f"G{b if a == i else a}" for a, b in links if i in (a, b)]
        whole = gpu(f"G{i}", numas[i], peers=peers, domain="s" * switch, model=models[i])
        cut = draw(st.integers(0, 2)) if draw(st.booleans()) else 0
        # A device that is whole and cut at once is nothing an honest host reports.
        devices.append(replace(whole, mig_enabled=bool(cut) and draw(st.booleans())))
        kind = draw(st.sampled_from([DeviceClass.MIG, DeviceClass.SLOT]))
        share = replace(mig("", f"G{i}", numa=numas[i]), model=models[i], device_class=kind)
        devices += [replace(share, id=f"G{i}::{n}") for n in range(cut)]
    return tuple(devices)


ASKS = st.lists(
    st.builds(
        ask,
        st.integers(1, 3),
        st.sampled_from(Topology),
        st.sampled_from([DeviceClass.GPU, DeviceClass.GPU, DeviceClass.MIG, DeviceClass.SLOT]),
        st.sampled_from(["", "", "h100", "80GB"]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)

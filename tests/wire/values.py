"""Model values for property tests: anything that a node or a placer may say."""

from hypothesis import strategies as st

from bcd.model.assignment import (
    AssignedDevice,
    Assignment,
    Binding,
    DesiredState,
    HostReserve,
    Limits,
    Sharing,
    SharingMode,
)
from bcd.model.device import Device, DeviceClass, Health, HealthState
from bcd.model.host import HostFacts, HugePagePool, Inventory, NumaNode
from bcd.model.ids import AllocationId, NodeId, type_id
from bcd.model.report import Bound, Failed, Released, Report
from bcd.wire import bounds

U32 = st.integers(min_value=0, max_value=(1 << 32) - 1)
U63 = st.integers(min_value=0, max_value=(1 << 63) - 1)
U64 = st.integers(min_value=0, max_value=(1 << 64) - 1)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20)
IDS = st.text(
    st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=40
)
CPUS = st.frozensets(st.integers(min_value=0, max_value=300), max_size=20)
CLASSES = st.sampled_from(DeviceClass)


def type_ids(prefix: str) -> st.SearchStrategy[str]:
    """TypeIDs of a prefix."""
    moments = st.integers(min_value=0, max_value=(1 << 48) - 1)
    return st.builds(
        lambda now, entropy: type_id(prefix, now, entropy), moments, st.binary(min_size=10)
    )


HEALTHS = st.builds(Health, st.sampled_from(HealthState), WORDS)
DEVICES = st.builds(
    Device,
    id=IDS,
    device_class=CLASSES,
    model=WORDS,
    memory_bytes=U64,
    pci_address=WORDS,
    numa_node=st.none() | U32,
    gpu=IDS,
    profile=WORDS,
    nvlink_peers=st.lists(IDS, max_size=4).map(tuple),
    nvlink_domain=WORDS,
    health=HEALTHS,
    mig_enabled=st.booleans(),
    in_use=st.booleans(),
)
POOLS = st.builds(HugePagePool, U64, U64)
NUMA_NODES = st.builds(NumaNode, U32, CPUS, U64, st.lists(POOLS, max_size=3).map(tuple))
HOSTS = st.builds(
    HostFacts,
    hostname=WORDS,
    boot_id=WORDS,
    kernel=WORDS,
    driver_version=WORDS,
    cuda_version=WORDS,
    online_cpus=CPUS,
    isolated_cpus=CPUS,
    memory_bytes=U64,
    numa_nodes=st.lists(NUMA_NODES, max_size=4, unique_by=lambda node: node.id).map(
        lambda nodes: tuple(sorted(nodes, key=lambda node: node.id))
    ),
)
INVENTORIES = st.builds(
    Inventory, HOSTS, st.lists(DEVICES, max_size=6, unique_by=lambda device: device.id).map(tuple)
)

ASSIGNMENTS = st.builds(
    Assignment,
    allocation_id=type_ids("alloc").map(AllocationId),
    devices=st.lists(
        st.builds(AssignedDevice, IDS, CLASSES), min_size=1, max_size=4, unique=True
    ).map(tuple),
    until_ms=U64,
    sharing=st.none()
    | st.builds(Sharing, st.sampled_from(SharingMode), st.integers(1, bounds.MAX_REPLICAS)),
    limits=st.none()
    | st.builds(
        Limits, cpu_millis=U64, memory_bytes=U64, hugepages_1gi=U32, cpus=WORDS, mems=WORDS
    ),
    binding=st.sampled_from([Binding.HOLD, Binding.KUBERNETES]),
)
DESIRED_STATES = st.builds(
    DesiredState,
    node_id=type_ids("node").map(NodeId),
    epoch=U64,
    generation=U64,
    host_reserve=st.builds(HostReserve, U32, U64),
    assignments=st.lists(ASSIGNMENTS, max_size=4, unique_by=lambda a: a.allocation_id).map(tuple),
)

OUTCOMES = st.one_of(
    st.builds(Bound, st.lists(IDS, max_size=4).map(tuple), WORDS, WORDS),
    st.builds(Failed, WORDS, st.text(st.characters(codec="utf-8"), max_size=50)),
    st.builds(Released, st.booleans()),
)
REPORTS = st.builds(
    Report,
    node_id=WORDS.map(NodeId),
    number=U63,
    boot_id=WORDS,
    allocation_id=type_ids("alloc").map(AllocationId),
    signed_at_ms=U64,
    outcome=OUTCOMES,
)

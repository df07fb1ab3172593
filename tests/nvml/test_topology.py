"""Which GPUs reach each other: by direct links, by switches that show themselves or do not."""

import pytest

from bcd.node.host.nvml.messages import Fabric, GpuReading, Link
from bcd.node.host.nvml.topology import fabric_problem, places

SWITCH = Link(2, "0000:c0:00.0")
HIDDEN = Link(0xFF, "ffffffff:ff:ff.0")
CLUSTER = "ab" * 16


def gpu(index: int, *links: Link, **how: object) -> GpuReading:
    return GpuReading(
        index=index,
        uuid=f"G{index}",
        address=f"0000:{index:02x}:00.0",
        links=links,
        **how,  # type: ignore[arg-type]
    )


def to(index: int) -> Link:
    return Link(0, f"0000:{index:02x}:00.0")


def fabric(state: int = 3, status: int = 0, clique: int = 1, mask: int = 0) -> Fabric:
    return Fabric(state, status, CLUSTER, clique, mask)


def domains(*gpus: GpuReading) -> list[str]:
    return [place.domain for place in places(gpus).values()]


def peers(*gpus: GpuReading) -> list[tuple[str, ...]]:
    return [place.peers for place in places(gpus).values()]


def test_a_direct_link_joins_two() -> None:
    found = peers(gpu(0, to(1)), gpu(1, to(0), to(2)), gpu(2, to(1)))
    assert found == [("G1",), ("G0", "G2"), ("G1",)]


def test_a_link_that_the_driver_denies_joins_nobody() -> None:
    assert peers(gpu(0, to(1), p2p=()), gpu(1, to(0), p2p=(0,))) == [(), ()]


def test_addresses_of_other_domains_are_not_mixed_up() -> None:
    here = GpuReading(index=0, uuid="A", address="0000:01:00.0", links=(Link(0, "1128:02:00.0"),))
    near = GpuReading(index=1, uuid="B", address="0000:02:00.0")
    far = GpuReading(index=2, uuid="C", address="1128:02:00.0")
    assert peers(here, near, far) == [("C",), (), ("A",)]


def test_a_switch_joins_all_that_are_on_it() -> None:
    assert domains(gpu(0, SWITCH), gpu(1, SWITCH), gpu(2)) == ["nvswitch", "nvswitch", ""]


def test_a_gpu_in_mig_mode_has_no_links() -> None:
    cut = gpu(1, to(0), SWITCH, mig_enabled=True, fabric=fabric())
    assert peers(gpu(0, to(1)), cut) == [(), ()]
    assert domains(gpu(0, SWITCH), cut) == ["nvswitch", ""]


def test_a_hidden_switch_counts_where_peer_to_peer_works() -> None:
    assert domains(gpu(0, HIDDEN, p2p=(1,)), gpu(1, HIDDEN, p2p=(0,))) == ["nvswitch"] * 2
    assert domains(gpu(0, HIDDEN, p2p=()), gpu(1, HIDDEN, p2p=())) == ["", ""]
    assert domains(gpu(0, HIDDEN), gpu(1, HIDDEN)) == ["", ""]


def test_a_partitioned_switch_is_two_domains() -> None:
    found = domains(
        gpu(0, SWITCH, p2p=(2,)), gpu(1, SWITCH, p2p=(3,)),
        gpu(2, SWITCH, p2p=(0,)), gpu(3, SWITCH, p2p=(1,)),
    )  # fmt: skip
    assert found[0] == found[2] != found[1] == found[3]
    assert all(found)


def test_a_switch_of_which_not_all_reach_all_is_pairs() -> None:
    gpus = (gpu(0, SWITCH, p2p=(1,)), gpu(1, SWITCH, p2p=(0, 2)), gpu(2, SWITCH, p2p=(1,)))
    assert domains(*gpus) == ["", "", ""]
    assert peers(*gpus) == [("G1",), ("G0", "G2"), ("G1",)]


def test_a_fabric_joins_by_cluster_and_clique() -> None:
    one, two = gpu(0, SWITCH, fabric=fabric()), gpu(1, SWITCH, fabric=fabric())
    other = gpu(2, SWITCH, fabric=fabric(clique=2))
    assert domains(one, two, other) == [f"{CLUSTER}.1", f"{CLUSTER}.1", f"{CLUSTER}.2"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (fabric(state=1), "is not up"),
        (fabric(state=2), "is not up"),
        (fabric(status=999), "NVML error 999"),
        (fabric(mask=1), "unhealthy (0x1)"),
        (fabric(mask=1 << 2), "unhealthy"),
        (fabric(mask=1 << 4), "unhealthy"),
        (fabric(mask=1 << 6), "unhealthy"),
        (fabric(mask=4 << 8), "unhealthy"),
    ],
)
def test_a_fabric_that_is_not_up_or_not_well_joins_nobody(broken: Fabric, words: str) -> None:
    ill = gpu(0, SWITCH, fabric=broken)
    assert domains(ill, gpu(1, SWITCH, fabric=fabric())) == ["", f"{CLUSTER}.1"]
    assert words in fabric_problem(ill)


@pytest.mark.parametrize("mask", [0, 0b10101010, 1 << 8, 0b10_0001_1010_1010])
def test_a_fabric_that_says_all_is_well_joins(mask: int) -> None:
    assert domains(gpu(0, SWITCH, fabric=fabric(mask=mask))) == [f"{CLUSTER}.1"]


def test_a_generation_without_fabric_goes_by_its_links() -> None:
    assert domains(gpu(0, SWITCH, fabric=fabric(state=0))) == ["nvswitch"]
    assert fabric_problem(gpu(0, fabric=fabric(state=0))) == ""


def test_a_lost_gpu_has_no_place() -> None:
    lost = GpuReading(index=0, error="GPU is lost")
    assert list(places((lost, gpu(1, to(0))))) == ["G1"]

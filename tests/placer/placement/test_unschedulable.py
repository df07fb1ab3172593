"""Why nothing fits, filter by filter, and from when on it would."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId
from bcd.model.reservation import DeviceAsk, Resources, Topology
from bcd.placer.placement.demand import CAN_HAND_TO_KUBELET, CAN_LIMIT, Demand
from bcd.placer.placement.search import Where, find
from bcd.placer.placement.unschedulable import Unschedulable, explain
from tests.placer.placement.machines import V100_MESH, ask, captured, demand, mig_host
from tests.placer.placement.pools import DEMANDS, WINDOWS, Booking, Host, busy, pool, pools
from tests.placer.world import dgx, gpu

HOUR = 1000


def why(hosts: Sequence[Host], *asks: DeviceAsk, now: int = 0) -> Unschedulable:
    return why_not(hosts, demand(*asks), now)


def why_not(hosts: Sequence[Host], wanted: Demand, now: int = 0) -> Unschedulable:
    view = pool(hosts)
    assert find(view, wanted, Where(start_ms=now, end_ms=now + HOUR)) is None
    return explain(view, wanted, now, HOUR)


def host(name: str = "n", bookings: tuple[Booking, ...] = (), **flags: bool) -> Host:
    return Host(name, dgx(name), bookings, flags=flags)


ALL_SICK = frozenset(range(8))

REJECTED = {
    "not ready": ("state", host(ready=False)),
    "unreachable": ("state", host(reachable=False)),
    "cordoned": ("state", host(cordoned=True)),
    "untrusted": ("trust", host(trusted=False)),
    "no device": ("model", Host("n", ())),
    "another model": ("model", Host("n", (gpu("a", model="A100"),))),
    "another class": ("model", Host("n", mig_host("a", 1)[1:])),
    "too few": ("devices", Host("n", dgx("n", 3))),
    "unhealthy": ("devices", Host("n", dgx("n"), sick=ALL_SICK)),
    "all booked": ("devices", host(bookings=busy(8, 0, 50))),
    "in MIG mode": ("devices", Host("n", tuple(replace(d, mig_enabled=True) for d in dgx("n")))),
    "no links": ("topology", Host("n", tuple(gpu(f"g{i}") for i in range(8)))),
    "the rest not linked": ("topology", Host("n", captured(V100_MESH), ((0, 0, 9), (4, 0, 9)))),
}


@pytest.mark.parametrize(("name", "rejected"), REJECTED.values(), ids=REJECTED.keys())
def test_each_node_counts_under_the_filter_that_rejects_it(name: str, rejected: Host) -> None:
    wanted = ask(4, Topology.NVLINK_ALL, model="H100")
    assert why([rejected], wanted).rejected == {name: 1}


def test_every_node_is_counted_once_and_the_message_names_them_all() -> None:
    hosts = [replace(node, id=f"n{i}") for i, (_, node) in enumerate(REJECTED.values())]
    outcome = why(hosts, ask(4, Topology.NVLINK_ALL, model="H100"))
    assert sum(outcome.rejected.values()) == len(hosts)
    assert outcome.sentence == (
        f"none of {len(hosts)} nodes fits: state rejected 3, trust rejected 1, model rejected 3,"
        " topology rejected 2 (the closest has 3 of 4 together),"
        " devices rejected 4 (the closest has 3 of 4 free)"
    )


def test_more_than_any_node_has_is_said() -> None:
    small, large = host("s"), Host("l", dgx("l"), busy(8, 0, 50))
    outcome = why([small, Host("m", dgx("m", 3)), large], ask(9, model="H100"))
    assert outcome.sentence == (
        "none of 3 nodes fits: devices rejected 3; no node has 9 such devices, the largest has 8"
    )
    assert "the largest has 8" in why([host(cordoned=True)], ask(9)).sentence
    for enough in (large, host(cordoned=True), Host("n", dgx("n"), sick=ALL_SICK)):
        assert "largest" not in why([enough], ask(8)).sentence


def test_what_no_node_has_is_said_with_what_there_is_instead() -> None:
    mixed = [host("a"), Host("m", mig_host("m")), Host("v", captured(V100_MESH))]
    for asked, words in (
        (ask(1, model="H200"), "no node has such devices; there are: "),
        (ask(1, device_class=DeviceClass.MIG, profile="7g.80gb"), "no node has such devices; "),
        (
            ask(1, device_class=DeviceClass.SLOT),
            "; no node has devices of class gpu.slot: use another",
        ),
    ):
        assert words in why(mixed, asked).sentence
    models = {device.model for node in mixed for device in node.devices}
    told = why(mixed, ask(1, model="H200")).sentence.partition("there are: ")[2].split(", ")
    assert told == sorted(models)


def test_a_pool_without_nodes_says_so() -> None:
    outcome = why([], ask(1))
    assert (outcome.rejected, outcome.earliest_ms) == ({}, None)
    assert "no nodes" in outcome.sentence


def test_the_nearest_time_is_the_first_end_that_frees_enough() -> None:
    staggered = host(bookings=tuple((i, 0, 10 * (i + 1)) for i in range(8)))
    for count in range(1, 9):
        assert why([staggered], ask(count)).earliest_ms == 10 * count


def test_the_nearest_time_counts_the_whole_duration() -> None:
    """Free at 10, but booked again at 500; free for an hour from 700 on."""
    hosts = [host(bookings=(*busy(8, 0, 10), *busy(8, 500, 700)))]
    assert why(hosts, ask(1)).earliest_ms == 700


def test_the_nearest_time_is_that_of_the_nearest_node() -> None:
    hosts = [host(name, busy(8, 0, end)) for name, end in (("a", 30), ("b", 20), ("c", 40))]
    assert why(hosts, ask(8)).earliest_ms == 20


def test_the_nearest_time_keeps_the_topology_in_mind() -> None:
    bookings = ((0, 0, 50), (4, 0, 70), (5, 0, 60))
    assert why([Host("n", captured(V100_MESH), bookings)], ask(4, Topology.NVLINK_ALL)
               ).earliest_ms == 50  # fmt: skip


def test_no_time_is_named_where_no_end_of_a_booking_would_help() -> None:
    for rejected in (
        host(bookings=busy(8, 0, 10), cordoned=True),
        Host("n", dgx("n"), busy(1, 0, 10), sick=frozenset(range(1, 8))),
        Host("n", dgx("n", 3), busy(3, 0, 10)),
    ):
        assert why([rejected], ask(4)).earliest_ms is None


def test_bookings_that_are_over_say_nothing_of_the_future() -> None:
    """A view may be behind: an end that has passed is no time to name."""
    late = host(bookings=(*busy(8, 0, 10), *busy(8, 1100, 1200)))
    assert why([late], ask(1), now=500).earliest_ms == 1200


def test_instances_wait_for_the_whole_gpu_that_is_booked_over_them() -> None:
    both = (gpu("g"), replace(mig_host("a", 1, 1)[1], gpu="g"))
    taken = Host("n", both, ((0, 0, 40),))
    assert why([taken], ask(1, device_class=DeviceClass.MIG)).earliest_ms == 40


def test_the_label_that_is_missing_is_named() -> None:
    """Spec 6.4: what books host resources needs a daemon that enforces them."""
    hosts = [host("a"), Host("b", dgx("b"), labels=CAN_LIMIT, vcpu=8), host("c", cordoned=True)]
    wanted = demand(ask(1), resources=Resources(vcpu=16), labels=CAN_LIMIT)
    outcome = why_not(hosts, wanted)
    assert outcome.sentence == (
        "none of 3 nodes fits: state rejected 1, labels rejected 1 (needs label"
        " bc.dev/cap.devices.limits=*), resources rejected 1 (the closest has 8 of 16 vcpu)"
    )


def test_what_no_daemon_serves_is_said_also_where_its_nodes_are_away() -> None:
    kubelet = demand(ask(1), labels=CAN_HAND_TO_KUBELET)
    limits = Host("b", dgx("b"), labels=CAN_LIMIT)
    words = (
        "; no node's daemon serves binding.kubernetes: run bcd doctor on the nodes, or use another"
        " pool"
    )
    for hosts, rejected in (
        ([host("a"), limits], "labels rejected 2 (needs label bc.dev/cap.binding.kubernetes=*)"),
        ([host("a", cordoned=True)], "state rejected 1"),
        ([host("a", trusted=False)], "trust rejected 1"),
    ):
        outcome = why_not(hosts, kubelet)
        assert outcome.sentence == f"none of {len(hosts)} nodes fits: {rejected}{words}"
        assert outcome.earliest_ms is None
    neither = demand(ask(9), labels=f"{CAN_HAND_TO_KUBELET} {CAN_LIMIT}")
    told = why_not([host("a")], neither).sentence
    assert "; no node has 9 such devices, the largest has 8; no node's daemon serves" in told
    assert "serves binding.kubernetes or devices.limits: " in told


def test_a_capability_that_some_daemon_serves_or_may_yet_tell_of_is_not_missing() -> None:
    kubelet = demand(ask(1), labels=CAN_HAND_TO_KUBELET)
    away = Host("a", dgx("a"), labels=CAN_HAND_TO_KUBELET, flags={"reachable": False})
    for hosts in ([away, host("b")], [host("c", ready=False)]):
        assert "serves" not in why_not(hosts, kubelet).sentence


def test_of_host_resources_the_nearest_miss_is_named() -> None:
    hosts = [
        Host("a", dgx("a"), vcpu=16, amounts=((10, 0, 50),)),
        Host("b", dgx("b"), vcpu=14, amounts=((2, 0, 30), (2, 60, 90))),
        Host("c", dgx("c")),
    ]
    outcome = why_not(hosts, demand(ask(1), resources=Resources(vcpu=13)))
    assert outcome.rejected == {"resources": 3}
    assert outcome.nearest == {"resources": "the closest has 12 of 13 vcpu"}
    assert outcome.earliest_ms == 50


def test_a_gang_says_how_many_nodes_would_do() -> None:
    hosts = [host("a"), host("b"), host("c", busy(8, 0, 50)), host("d", busy(8, 0, 70))]
    outcome = why_not(hosts, demand(ask(8), gang=3))
    assert outcome.sentence == (
        "2 of 4 nodes fit, the gang needs 3: devices rejected 2 (the closest has 0 of 8 free)"
    )
    assert outcome.earliest_ms == 50
    outcome = why_not(hosts, demand(ask(8), gang=5))
    assert outcome.sentence.startswith("2 of 4 nodes fit, the gang needs 5: ")
    assert outcome.earliest_ms is None
    assert why_not([host("a")], demand(ask(1), gang=2)).sentence == (
        "1 of 1 nodes fits, the gang needs 2"
    )


def test_excluded_nodes_are_out_of_the_question() -> None:
    view = pool([host("a"), host("b", busy(8, 0, 50))])
    excluded = frozenset({NodeId("a")})
    outcome = explain(view, demand(ask(1)), 0, HOUR, excluded)
    assert (outcome.rejected, outcome.earliest_ms) == ({"devices": 1}, 50)


@settings(max_examples=300)
@given(pools(), WINDOWS, DEMANDS)
def test_every_node_counts_once_whatever_is_asked(
    hosts: Sequence[Host], window: tuple[int, int], wanted: Demand
) -> None:
    now, duration = window
    view = pool(hosts)
    outcome = explain(view, wanted, now, duration)
    assert sum(outcome.rejected.values()) + outcome.fitting == len(hosts)
    where = Where(start_ms=now, end_ms=now + duration)
    assert (outcome.fitting >= wanted.gang_size) == (find(view, wanted, where) is not None)
    assert all(outcome.rejected[name] for name in outcome.nearest)

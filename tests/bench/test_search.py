"""Finding the best node for four linked GPUs and eight hours, in a pool with a full calendar.

The floor is a scan of the same bookings, interval by interval and node by node. Times are CPU.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId
from bcd.model.reservation import DeviceAsk, Resources, Topology
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.placer.placement.choose import chooser
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.node import NodeFacts, NodeView
from bcd.placer.placement.search import Found, Where, find
from bcd.placer.placement.shape import Shape, Slot, shape_of
from bcd.placer.placement.view import PoolView
from tests.bench.measure import percentile, table
from tests.conftest import Rounds

LENGTH = 8 * HOUR_MS
CALENDAR = 90 * DAY_MS
EPOCH = 1_800_000_000_000
ASK = DeviceAsk(device_class=DeviceClass.GPU, count=4, topology=Topology.NVLINK_ALL)
DEMAND = Demand(devices=(ASK,), gang_size=1, resources=Resources(), labels=frozenset())
# Sizes of NVLink cliques on a node of eight, and how many in a hundred nodes are like that.
KINDS = ((8, 60), (4, 20), (2, 10), (1, 10))


def shape(clique: int) -> Shape:
    """Eight GPUs on two NUMA nodes, linked in cliques."""
    return shape_of(
        tuple(
            Slot(
                device_class=DeviceClass.GPU,
                model="NVIDIA H100 80GB HBM3",
                profile="",
                numa=at // 4,
                gpu=at,
                links=sum(1 << o for o in range(8) if o // clique == at // clique and o != at),
            )
            for at in range(8)
        )
    )


@dataclass(frozen=True)
class Calendar:
    """A pool, and the same bookings as plain intervals by node and device."""

    view: PoolView
    intervals: dict[NodeId, list[list[tuple[int, int]]]]


def calendar(nodes: int, bookings: int) -> Calendar:
    """``bookings`` device bookings of eight hours, four devices at a time, at random moments."""
    chance = random.Random(7)
    shapes = [shape(clique) for clique, share in KINDS for _ in range(share)]
    made = Calendar(PoolView(), {})
    quads = bookings // 4 // nodes
    for number in range(nodes):
        node_id = NodeId(f"node_{number:06}")
        intervals: list[list[tuple[int, int]]] = [[] for _ in range(8)]
        for half in (0, 4):
            for start in apart(chance, quads // 2):
                for at in range(half, half + 4):
                    intervals[at].append((start, start + LENGTH))
        made.intervals[node_id] = intervals
        facts = NodeFacts(
            id=node_id,
            ready=True,
            reachable=True,
            cordoned=False,
            trusted=True,
            labels=frozenset(),
            shape=shapes[number % 100],
            bookable=0xFF,
            atom_ids=tuple(range(8)),
        )
        booked = ((at, s, e) for at, mine in enumerate(intervals) for s, e in mine)
        made.view.put(NodeView(facts, booked))
    return made


def apart(chance: random.Random, count: int) -> list[int]:
    """So many random starts in the calendar of which no two windows overlap."""
    slack = CALENDAR - count * LENGTH
    offsets = sorted(chance.randrange(slack) for _ in range(count))
    return [EPOCH + offset + place * LENGTH for place, offset in enumerate(offsets)]


def scan(made: Calendar, start: int) -> tuple[int, int]:
    """The best (broken, leftover), by looking at every interval of every node."""
    best = (1 << 30, 0)
    for node_id, intervals in made.intervals.items():
        free = 0
        for at, mine in enumerate(intervals):
            if not any(begun < start + LENGTH and over > start for begun, over in mine):
                free |= 1 << at
        choice = chooser((ASK,)).best(made.view.nodes[node_id].facts.shape, 0xFF, free)
        if choice is not None:
            best = min(best, (choice.broken, choice.leftover))
    return best


def search(made: Calendar, start: int) -> Sequence[Found] | None:
    where = Where(start_ms=start, end_ms=start + LENGTH, now_ms=EPOCH)
    return find(made.view, DEMAND, where)


def take(made: Calendar, start: int) -> None:
    """Find and take into the view, as a placement does."""
    result = search(made, start)
    assert result is not None
    (one,) = result
    node = made.view.nodes[one.node_id]
    made.view.put(node.with_booking(one.atom_ids[0], Resources(), start, start + LENGTH))
    made.view.put(node)


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time of one call, in milliseconds."""
    began = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began) / 1e6


def starts(count: int) -> list[int]:
    chance = random.Random(11)
    return [EPOCH + chance.randrange(CALENDAR - LENGTH) for _ in range(count)]


def test_a_search_costs_a_small_part_of_a_scan_and_hardly_more_in_a_full_calendar(
    rounds: Rounds,
) -> None:
    nodes = rounds(1_000, 10_000)
    lines: list[tuple[str, str]] = []
    medians = []
    for per_node in (0, 10, 100):
        began = time.thread_time()
        made = calendar(nodes, nodes * per_node)
        built = time.thread_time() - began
        found = [cpu_ms(partial(search, made, start)) for start in starts(200)]
        floor = [cpu_ms(partial(scan, made, start)) for start in starts(3)]
        taken = [cpu_ms(partial(take, made, start)) for start in starts(200)]
        medians.append(percentile(found, 50))
        ratio = percentile(floor, 50) / medians[-1]
        lines.append(
            (
                f"{nodes * per_node} bookings",
                f"search p50 {medians[-1]:.2f} p99 {percentile(found, 99):.2f} ms,"
                f" with two changes {percentile(taken, 50):.2f} ms,"
                f" scan {percentile(floor, 50):.0f} ms, ratio {ratio:.0f},"
                f" built in {built:.1f} s",
            )
        )
    table(f"four linked GPUs for eight hours among {nodes} nodes of 8, CPU", lines)
    assert ratio > 20
    for start in starts(5):
        result = search(made, start)
        assert result is not None
        (one,) = result
        facts = made.view.nodes[one.node_id].facts
        free = made.view.nodes[one.node_id].free(start, start + LENGTH)
        choice = chooser((ASK,)).best(facts.shape, 0xFF, free)
        assert choice is not None
        assert (choice.broken, choice.leftover) == scan(made, start)

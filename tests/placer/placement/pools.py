"""Small pools for the pure search: nodes with bookings, drawn or made by hand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from bcd.model.device import Device
from bcd.model.ids import NodeId
from bcd.model.reservation import Resources
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.node import NodeFacts, NodeView
from bcd.placer.placement.shape import bits
from bcd.placer.placement.view import PoolView
from tests.placer.placement.machines import ASKS, bookable, hosts, mask, shape

Booking = tuple[int, int, int]


@dataclass(frozen=True)
class Host:
    """A node as a test describes it; bookings are (position, start, end).

    ``vcpu`` is all that its host gives, ``amounts`` are (vcpu, start, end) booked of it.
    """

    id: str
    devices: tuple[Device, ...]
    bookings: tuple[Booking, ...] = ()
    sick: frozenset[int] = frozenset()
    flags: dict[str, bool] = field(default_factory=dict)
    vcpu: int | None = None
    amounts: tuple[tuple[int, int, int], ...] = ()
    labels: str = ""
    rack: str = ""
    block: str = ""

    @property
    def usable(self) -> int:
        """The devices that can be booked at all."""
        return bookable(self.devices) & ~mask(self.sick)

    @property
    def schedulable(self) -> bool:
        flags = {"ready": True, "reachable": True, "cordoned": False, "trusted": True} | self.flags
        return flags["ready"] and flags["reachable"] and flags["trusted"] and not flags["cordoned"]

    def view(self) -> NodeView:
        """The node as the search sees it; atom ids are 100 and up."""
        flags = {"ready": True, "reachable": True, "cordoned": False, "trusted": True} | self.flags
        facts = NodeFacts(
            id=NodeId(self.id),
            labels=frozenset(self.labels.split()),
            shape=shape(self.devices),
            bookable=self.usable,
            atom_ids=tuple(100 + position for position in range(len(self.devices))),
            capacity=None if self.vcpu is None else Resources(vcpu=self.vcpu),
            rack=self.rack,
            block=self.block,
            **flags,
        )
        return NodeView(
            facts,
            ((100 + at, start, end) for at, start, end in self.bookings),
            ((Resources(vcpu=vcpu), start, end) for vcpu, start, end in self.amounts),
        )

    def spare(self, start: int, end: int) -> int:
        """How much vcpu is left at every instant of a window, instant by instant."""
        taken = [
            sum(vcpu for vcpu, begun, over in self.amounts if begun <= at < over)
            for at in range(start, end)
        ]
        return (self.vcpu or 0) - max(taken)

    def free(self, start: int, end: int) -> int:
        """What is free in a window, worked out device by device."""
        left = 0
        for position in bits(self.usable):
            mine = self.devices[position]
            if not any(
                begun < end and over > start and (at == position or rivals(mine, self.devices[at]))
                for at, begun, over in self.bookings
            ):
                left |= 1 << position
        return left


def rivals(one: Device, other: Device) -> bool:
    """Whether the two take one GPU in different modes."""
    return one.gpu == other.gpu and one.device_class != other.device_class


def pool(all_hosts: Iterable[Host]) -> PoolView:
    """These nodes as a view."""
    return PoolView(host.view() for host in all_hosts)


def busy(count: int, start: int, end: int) -> tuple[Booking, ...]:
    """The first ``count`` devices booked for a range."""
    return tuple((position, start, end) for position in range(count))


FLAGS: st.SearchStrategy[dict[str, bool]] = st.sampled_from(
    [{}, {}, {}, {"ready": False}, {"reachable": False}, {"cordoned": True}, {"trusted": False}]
)


AMOUNTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 90), st.integers(1, 30)).map(
        lambda drawn: (drawn[0], drawn[1], drawn[1] + drawn[2])
    ),
    max_size=3,
).map(tuple)


@st.composite
def pools(draw: st.DrawFn, most: int = 4) -> Sequence[Host]:
    """Hosts of few kinds, so that some are alike; bookings lie in [0, 100)."""
    kinds = draw(st.lists(hosts(most=3), min_size=1, max_size=2))
    made = []
    for number in range(draw(st.integers(1, most))):
        devices = draw(st.sampled_from(kinds))
        positions = st.integers(0, len(devices) - 1)
        bookings = draw(
            st.lists(st.tuples(positions, st.integers(0, 90), st.integers(1, 30)), max_size=4)
        )
        made.append(
            Host(
                id=f"node_{number}",
                devices=devices,
                bookings=tuple((at, start, start + length) for at, start, length in bookings),
                sick=draw(st.frozensets(positions, max_size=1)),
                flags=draw(FLAGS),
                vcpu=draw(st.sampled_from([None, 4, 8])),
                amounts=draw(AMOUNTS),
                labels=draw(st.sampled_from(["", "can", "can more"])),
                rack=draw(st.sampled_from(["", "r1", "r2"])),
                block=draw(st.sampled_from(["", "b1", "b2"])),
            )
        )
    return made


DEMANDS = st.builds(
    Demand,
    devices=ASKS,
    gang_size=st.sampled_from([1, 1, 2, 3]),
    resources=st.sampled_from([0, 0, 1, 4, 6]).map(lambda vcpu: Resources(vcpu=vcpu)),
    labels=st.sampled_from([frozenset[str](), frozenset({"can"})]),
)

WINDOWS = st.tuples(st.integers(0, 100), st.integers(1, 40))

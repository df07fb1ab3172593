"""The choice of who yields, against every choice there is."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bcd.model.device import DeviceClass
from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import DeviceAsk, Resources
from bcd.placer.lifecycle.victims import Room, choose_victims
from bcd.placer.placement.demand import Demand
from bcd.placer.placement.node import NodeFacts
from bcd.placer.placement.search import Where
from bcd.placer.placement.shape import Shape, Slot, shape_of

GPUS = 4
WINDOW = Where(start_ms=100, end_ms=200)
FIRM = ReservationId("firm")


def shape() -> Shape:
    slot = {
        "device_class": DeviceClass.GPU,
        "model": "NVIDIA H100",
        "profile": "",
        "numa": 0,
        "links": 0,
    }
    return shape_of(tuple(Slot(gpu=gpu, **slot) for gpu in range(GPUS)))  # type: ignore[arg-type]


def room(name: str, holders: list[ReservationId | None], cpus: dict[ReservationId, int]) -> Room:
    """A node whose GPUs these hold during the window, beside so many of its 8 CPUs."""
    facts = NodeFacts(
        id=NodeId(name),
        ready=True,
        reachable=True,
        cordoned=False,
        trusted=True,
        labels=frozenset(),
        shape=shape(),
        bookable=(1 << GPUS) - 1,
        atom_ids=tuple(range(GPUS)),
        capacity=Resources(vcpu=8),
    )
    devices = [(who, atom, 0, 150) for atom, who in enumerate(holders) if who is not None]
    here = {who for who in holders if who is not None}
    amounts = [(who, Resources(vcpu=n), 0, 150) for who, n in cpus.items() if who in here and n]
    return Room(facts, devices, amounts)


def demand(count: int, vcpu: int, size: int = 1) -> Demand:
    asked = DeviceAsk(device_class=DeviceClass.GPU, count=count)
    return Demand(
        devices=(asked,), gang_size=size, resources=Resources(vcpu=vcpu), labels=frozenset()
    )


def fits(one: Room, gone: frozenset[ReservationId], wanted: Demand) -> bool:
    """Said anew, by counting."""
    taken = {atom for who, atom, *_ in one.devices if who not in gone}
    used = sum(amounts.vcpu for who, amounts, *_ in one.amounts if who not in gone)
    return GPUS - len(taken) >= wanted.devices[0].count and used + wanted.resources.vcpu <= 8


SPOT = {ReservationId(f"spot-{age}"): age for age in range(4)}
HOLDERS = st.lists(st.sampled_from([None, FIRM, *SPOT]), min_size=GPUS, max_size=GPUS)
CPUS = st.fixed_dictionaries({who: st.integers(0, 3) for who in (FIRM, *SPOT)})


@given(st.lists(HOLDERS, min_size=1, max_size=3), CPUS, st.integers(1, GPUS), st.integers(0, 8))
def test_one_node_is_made_free_whenever_it_can_be_and_nobody_yields_in_vain(
    nodes: list[list[ReservationId | None]], cpus: dict[ReservationId, int], count: int, vcpu: int
) -> None:
    rooms = [room(f"node-{place}", holders, cpus) for place, holders in enumerate(nodes)]
    wanted = demand(count, vcpu)
    chosen = choose_victims(rooms, SPOT, wanted, WINDOW, 0)
    everyone = frozenset(SPOT)
    if chosen is None:
        assert not any(fits(one, everyone, wanted) for one in rooms)
        return
    assert chosen <= everyone
    helped = [one for one in rooms if fits(one, chosen, wanted)]
    assert helped
    for fewer in itertools.combinations(chosen, max(0, len(chosen) - 1)):
        if chosen:
            assert not any(fits(one, frozenset(fewer), wanted) for one in rooms)


@given(st.lists(HOLDERS, min_size=2, max_size=4), st.integers(1, GPUS), st.integers(0, 2))
def test_a_gang_gets_as_many_distinct_nodes_as_it_asks_for(
    nodes: list[list[ReservationId | None]], count: int, elsewhere: int
) -> None:
    rooms = [room(f"node-{place}", holders, {}) for place, holders in enumerate(nodes)]
    wanted = demand(count, 0, size=2)
    chosen = choose_victims(rooms, SPOT, wanted, WINDOW, elsewhere)
    able = sum(1 for one in rooms if fits(one, frozenset(SPOT), wanted))
    assert (chosen is None) == (able + elsewhere < 2)
    if chosen is not None:
        assert sum(1 for one in rooms if fits(one, chosen, wanted)) + elsewhere >= 2


def test_of_two_nodes_the_one_whose_holders_are_younger_is_freed() -> None:
    old, young = ReservationId("spot-0"), ReservationId("spot-3")
    rooms = [room("node-a", [old] * 4, {}), room("node-b", [young] * 4, {})]
    assert choose_victims(rooms, SPOT, demand(1, 0), WINDOW, 0) == frozenset({young})
    rooms = [room("node-a", [old, old, young, young], {})]
    assert choose_victims(rooms, SPOT, demand(2, 0), WINDOW, 0) == frozenset({young})

"""Plans survive being interrupted: kill after any step, look again, and the end is the same.

Beside the end, every single step keeps what may never break: a device name stands in one file
only, a spec never stands before what it promises, and a hold is not taken away before its
release is owed.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcd.model.assignment import Assignment, DesiredState, Sharing, SharingMode
from bcd.model.ids import AllocationId
from bcd.node import cdi
from bcd.node.hold import hold_of
from bcd.node.steps import StepName
from tests.node.memory import MIG, SLOTS, WHOLE
from tests.node.passes import Killed, Node, state
from tests.node.world import alloc_id, assignment, limits

MPS = Sharing(SharingMode.MPS, 10)
FREE = (*WHOLE, *MIG, *SLOTS)
LIMITS = st.sampled_from(
    [None, limits(memory_gib=20, cpus="0-3", mems="0"), limits(memory_gib=20, pages=2)]
)


@st.composite
def assignments(draw: st.DrawFn) -> tuple[Assignment, ...]:
    """Up to four holds over distinct devices, as a control plane would assign them."""
    devices = draw(st.permutations(FREE))
    holds = []
    for number in draw(st.lists(st.integers(1, 5), max_size=4, unique=True)):
        count = draw(st.integers(1, 3))
        taken, devices = devices[:count], devices[count:]
        if any(device not in SLOTS for device in taken):
            taken = [device for device in taken if device not in SLOTS]  # MPS slots come alone
        if taken:
            holds.append(assignment(number, *taken, limits=draw(LIMITS), sharing=MPS))
    return tuple(holds)


@st.composite
def tampering(draw: st.DrawFn) -> tuple[tuple[str, int], ...]:
    """What a person does to files and slices by hand: (what, which hold)."""
    kinds = st.sampled_from(
        ["no spec", "bad spec", "old spec", "no env", "bad env", "no slice", "no mps"]
    )
    return tuple(draw(st.lists(st.tuples(kinds, st.integers(1, 5)), max_size=3)))


def tamper(node: Node, changes: tuple[tuple[str, int], ...]) -> None:
    world = node.world
    for kind, number in changes:
        id_ = alloc_id(number)
        main = f"bcd-{id_}.json"
        match kind:
            case "no spec":
                world.cdi.files.pop(main, None)
            case "bad spec" if main in world.cdi.files:
                world.cdi.files[main] = b"{"
            case "old spec" if main in world.cdi.files:
                world.cdi.files[main] = (world.cdi.files[main] or b"").replace(b"rw", b"r")
            case "no env":
                world.env.files.pop(id_, None)
            case "bad env" if id_ in world.env.files:
                world.env.files[id_] = b"X=1\n"
            case "no slice":
                world.slices.slices.pop(id_, None)
            case "no mps":
                world.mps.daemons.clear()


def released(node: Node) -> set[AllocationId]:
    pending = node.reports.outbox.pending()
    return {entry.allocation_id for entry in pending if entry.slice_empty is not None}


def mains(node: Node) -> dict[AllocationId, bytes]:
    found = {}
    for name, content in node.world.cdi.files.items():
        parsed = cdi.parse_file_name(name)
        if parsed is not None and not parsed[1]:
            found[parsed[0]] = content or b""
    return found


def start(first: DesiredState, changes: tuple[tuple[str, int], ...]) -> Node:
    node = Node()
    node.settle(first)
    tamper(node, changes)
    return node


SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@SETTINGS
@given(assignments(), assignments(), tampering())
def test_killed_after_any_step_the_next_passes_reach_the_same_end(
    first: tuple[Assignment, ...],
    second: tuple[Assignment, ...],
    changes: tuple[tuple[str, int], ...],
) -> None:
    begun = start(state(*first), changes)
    then = state(*second, generation=2)
    whole = begun.copy()
    count = len(whole.plan(then).steps)
    whole.settle(then)
    for kill_after in range(1, count + 1):
        node = begun.copy()

        def kill(_: StepName, node: Node = node, kill_after: int = kill_after) -> None:
            if len(node.done) == kill_after:
                raise Killed

        node.after_step = kill
        with pytest.raises(Killed):
            node.run(then)
        node.after_step = lambda _: None
        node.restart()
        node.settle(then)
        assert node.world.state() == whole.world.state()
        assert released(node) == released(whole)
        assert node.reports.outbox.owed()[1] == frozenset()
        assert node.outcomes == whole.outcomes


@SETTINGS
@given(assignments(), assignments(), tampering())
def test_after_every_step_the_rules_of_specs_and_releases_hold(
    first: tuple[Assignment, ...],
    second: tuple[Assignment, ...],
    changes: tuple[tuple[str, int], ...],
) -> None:
    node = start(state(*first), changes)
    then = state(*second, generation=2)
    kept = {entry.allocation_id for entry in second}
    before = mains(node)

    def look(step: StepName) -> None:
        after = mains(node)
        gone = before.keys() - after.keys() - kept
        assert gone <= node.reports.outbox.owed()[0], "a hold went before its release was owed"
        if step is StepName.WRITE_SPEC:
            check_names(node)
        for id_ in after.keys() - before.keys():
            check_promise(node, id_, after[id_])

    node.after_step = look
    node.settle(then)
    assert mains(node).keys() == {entry.allocation_id for entry in second}


def check_names(node: Node) -> None:
    """A name in two files resolves for no reader."""
    names = []
    for content in node.world.cdi.files.values():
        names += [d.id for d in FREE if f'"name": "{d.id}"'.encode() in (content or b"")]
    assert len(names) == len(set(names)), "a device name stands in two files"


def check_promise(node: Node, id_: AllocationId, content: bytes) -> None:
    """What a new spec promises is there already."""
    hold = cdi.read_spec(content, id_)
    assert id_ in node.world.env.files
    if hold.limits is not None:
        assert node.world.slices.slices[id_] == hold.limits
    for device in hold.devices[1:]:
        if device.device_class is not hold.devices[0].device_class:
            assert cdi.file_name(id_, device.device_class) in node.world.cdi.files


def test_the_same_state_twice_is_one_state() -> None:
    node = Node()
    wanted = state(assignment(1, *FREE[:3], limits=limits()))
    node.settle(wanted)
    assert hold_of(wanted.assignments[0]).devices
    assert node.run(wanted).steps == ()

"""A node's calendar as a message: when each of its devices is taken, and what of its host."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bcd.model.reservation import Resources, Window
from bcd.placer.api.node_messages import Viewer
from bcd.placer.placement.timeline import AmountTimeline, amounts_of
from bcd.store import atoms, calendar, hosts
from bcd.store.atoms import Atom
from bcd.store.bookings import Holder
from bcd.store.calendar import Taken
from bcd.store.database import Transaction
from bcd.store.nodes import Node
from bcd.store.reservations import Kind
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1 import reservations_pb2
from bcd.wire.reservation import encode_resources

# Entries of one node. Many more than all its devices have at one moment, so that asking on from
# where an answer ends gets further.
MAX_TAKEN = 8192


def encode_calendar(tx: Transaction, node: Node, during: Window, viewer: Viewer) -> pb.CalendarNode:
    """What is taken of a node in a window; whose it is, is told to those only who may know."""
    own = atoms.on_node(tx, node.id)
    taken = calendar.devices_on(tx, node.id, during, MAX_TAKEN + 1)
    told_until_ms = _end_of_room(own, taken)
    if told_until_ms is not None:
        taken = [one for one in taken if one.start_ms < told_until_ms]
        during = Window(during.start_ms, told_until_ms)
    gpus = calendar.gpus_on(tx, node.id)
    capacity = hosts.capacity_of(tx, node.id)
    return pb.CalendarNode(
        id=node.id,
        hostname=node.hostname,
        schedulable=node.schedulable,
        devices=[_device(atom, gpus, taken, viewer) for atom in own],
        host=None
        if capacity is None
        else reservations_pb2.Resources(
            vcpu=capacity.vcpu,
            memory_gib=capacity.memory_gib,
            hugepages_1gi=capacity.hugepages_1gi,
        ),
        amounts=_amounts(tx, node, during),
        told_until=told_until_ms,
    )


def _end_of_room(own: Sequence[Atom], taken: Sequence[Taken]) -> int | None:
    """The start of the first booking that there is no room for; None when there is for all.

    A booking is shown at its device, and at those of the GPU that are of another mode.
    """
    on_gpu = Counter(atom.gpu_id for atom in own)
    alike = Counter((atom.gpu_id, atom.mode) for atom in own)
    entries = 0
    for one in taken:
        entries += 1 + on_gpu[one.gpu_id] - alike[(one.gpu_id, one.mode)]
        if entries > MAX_TAKEN:
            return one.start_ms
    return None


def _device(
    atom: Atom, gpus: Mapping[int, str], taken: Iterable[Taken], viewer: Viewer
) -> pb.CalendarDevice:
    mine = {
        (one.start_ms, one.end_ms, one.kind.value, _shown(one, viewer))
        for one in taken
        if one.atom_id == atom.id or (one.gpu_id == atom.gpu_id and one.mode != atom.mode)
    }
    return pb.CalendarDevice(
        id=atom.uuid,
        **{"class": atom.device_class.value},
        model=atom.model,
        profile=atom.profile,
        gpu=gpus.get(atom.gpu_id, ""),
        bookable=atom.bookable,
        taken=[
            pb.Taken(start=start_ms, end=end_ms, kind=kind, reservation_id=reservation_id)
            for start_ms, end_ms, kind, reservation_id in sorted(mine)
        ],
    )


def _shown(one: Taken, viewer: Viewer) -> str:
    """Maintenance windows have no tenant; they are the administrators'."""
    tenant_id = "" if one.kind is Kind.MAINTENANCE else one.tenant_id
    holder = Holder(one.reservation_id, tenant_id)
    return one.reservation_id if viewer.may_know(holder) else ""


def _amounts(tx: Transaction, node: Node, during: Window) -> Sequence[pb.BookedAmounts]:
    """What is booked of the host, added up, from each change to the next within the window."""
    booked = AmountTimeline(
        (amounts_of(one.resources), one.start_ms, one.end_ms)
        for one in calendar.amounts_on(tx, node.id, during)
    )
    return [
        pb.BookedAmounts(
            start=max(start_ms, during.start_ms),
            end=min(end_ms, during.end_ms),
            resources=encode_resources(
                Resources(vcpu=vcpu, memory_gib=memory_gib, hugepages_1gi=hugepages_1gi)
            ),
        )
        for (vcpu, memory_gib, hugepages_1gi), start_ms, end_ms in booked.spans()
        if start_ms < during.end_ms and end_ms > during.start_ms
    ]

"""Explains why a request fits nowhere, filter by filter, and when it would. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bcd.model.ids import NodeId, ReservationId
from bcd.model.reservation import DeviceAsk, Resources, Topology
from bcd.placer.placement.choose import chooser
from bcd.placer.placement.demand import CAPABILITY, Demand
from bcd.placer.placement.earliest import earliest
from bcd.placer.placement.node import NodeView
from bcd.placer.placement.planes import Alike
from bcd.placer.placement.shape import AdmittedAsk, Shape
from bcd.placer.placement.timeline import amounts_of
from bcd.placer.placement.view import PoolView

FILTERS = ("state", "trust", "labels", "model", "topology", "devices", "resources")
_MAX_KINDS = 8
_NONE: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unschedulable:
    """It fits nowhere now: how many nodes each filter rejected, and the nearest time that would do.

    ``earliest_ms`` is None when none of the bookings known now has to end first, or too many
    would have to be looked at. ``nearest`` has words for some filters, on what was missing or how
    near the nearest node came; ``shortage`` says what no node has enough of, or serves, at all.
    ``fitting`` nodes would do, of the ``wanted`` ones of a gang. ``barred`` says, in words, what
    the pool does not allow whatever its nodes have; ``reason`` is the condition's. ``kept`` names
    what was shown as taken because it is kept for an older one: whose it is, and from when on.
    """

    rejected: Mapping[str, int]
    earliest_ms: int | None
    shortage: str = ""
    nearest: Mapping[str, str] = field(default_factory=dict)
    fitting: int = 0
    wanted: int = 1
    reason: str = "NoNodeFits"
    barred: str = ""
    kept: tuple[ReservationId, int] | None = None

    @property
    def sentence(self) -> str:
        """For people: what was looked at, and what to do."""
        if self.barred:
            return self.barred
        total = sum(self.rejected.values()) + self.fitting
        if not total:
            return "the pool has no nodes; add one, or use another pool"
        parts = [
            f"{name} rejected {self.rejected[name]}{self._remark(name)}"
            for name in FILTERS
            if self.rejected.get(name)
        ]
        if self.wanted == 1:
            return f"none of {total} nodes fits: {', '.join(parts)}{self.shortage}"
        fit = f"{self.fitting or 'none'} of {total} nodes {'fit' if self.fitting > 1 else 'fits'}"
        why = f": {', '.join(parts)}" if parts else ""
        return f"{fit}, the gang needs {self.wanted}{why}{self.shortage}"

    def _remark(self, name: str) -> str:
        return f" ({self.nearest[name]})" if name in self.nearest else ""


def explain(
    view: PoolView,
    demand: Demand,
    start_ms: int,
    duration_ms: int,
    exclude: frozenset[NodeId] = _NONE,
) -> Unschedulable:
    """Count each node under the first filter that rejects it, and look for the nearest fit.

    Nodes in ``exclude`` are out of the question and not counted.
    """
    count = _Count(view, demand, (start_ms, start_ms + duration_ms), exclude)
    for node in view.nodes.values():
        if not node.facts.schedulable and node.facts.id not in exclude:
            count.rejected["state" if node.facts.trusted else "trust"] += 1
    for alike in view.alike(_NO_LABELS, start_ms, start_ms + duration_ms):
        count.take(alike)
    shortage = _shortage(view, demand.devices)
    return Unschedulable(
        rejected=count.rejected,
        earliest_ms=earliest(view, demand, start_ms, duration_ms, exclude),
        shortage=shortage + _unserved(view, demand.labels),
        nearest=count.nearest(with_devices=not shortage),
        fitting=count.fitting,
        wanted=demand.gang_size,
    )


_NO_LABELS: frozenset[str] = frozenset()
_CAME_LATER = "of models that came after it was admitted; reserve anew to be given them"


class _Count:
    """Nodes by the filter that rejects them, and how near the nearest of them came."""

    def __init__(
        self,
        view: PoolView,
        demand: Demand,
        window: tuple[int, int],
        exclude: frozenset[NodeId],
    ) -> None:
        self._view = view
        self._demand = demand
        self._window = window
        self._exclude = exclude
        self._strict = chooser(demand.devices)
        self._loose = chooser(
            tuple(msgspec.structs.replace(a, topology=Topology.ANY) for a in demand.devices)
        )
        self._wanted = sum(ask.count for ask in demand.devices)
        self._nearest: dict[str, tuple[float, str]] = {}
        self.rejected: Counter[str] = Counter()
        self.fitting = 0

    def take(self, alike: Alike) -> None:
        """Count nodes that have the same devices free."""
        nodes = [node_id for node_id in alike.node_ids() if node_id not in self._exclude]
        if not nodes:
            return
        reason = self._rejection(alike)
        if reason:
            self.rejected[reason] += len(nodes)
            self._note_devices(reason, alike)
            return
        for node_id in nodes:
            self._take_host(self._view.nodes[node_id])

    def _rejection(self, alike: Alike) -> str:
        shape, bookable = alike.kind.shape, alike.bookable
        if not self._demand.labels <= alike.kind.labels:
            return "labels"
        if not all(shape.matching(ask) for ask in self._demand.devices):
            return "model"
        if self._strict.best(shape, bookable, alike.free) is not None:
            return ""
        if self._loose.best(shape, bookable, bookable) is None:
            return "devices"  # too few, or some are unhealthy, gone, or shared in another mode
        if self._strict.best(shape, bookable, bookable) is None:
            return "topology"
        if self._loose.best(shape, bookable, alike.free) is not None:
            return "topology"
        return "devices"

    def _note_devices(self, reason: str, alike: Alike) -> None:
        """How near its devices come: free, together as they should, or only admitted too early."""
        parts = [(alike.free & alike.kind.shape.matching(a), a) for a in self._demand.devices]
        if reason == "model":
            if all(alike.kind.shape.matching(_regardless(ask)) for ask in self._demand.devices):
                self._nearest[reason] = (1.0, _CAME_LATER)
        elif reason == "devices":
            usable = sum(min(ask.count, free.bit_count()) for free, ask in parts)
            self._note(reason, usable, self._wanted, "free")
        elif reason == "topology":
            for free, ask in parts:
                groups = alike.kind.shape.groups(free, ask.topology)
                most = max((group.bit_count() for group in groups), default=0)
                if most < ask.count:
                    self._note(reason, most, ask.count, "together")
                    return

    def _note(self, name: str, have: int, wanted: int, what: str) -> None:
        """Keep the nearest miss of a filter."""
        if have < wanted and have / wanted > self._nearest.get(name, (-1.0, ""))[0]:
            self._nearest[name] = (have / wanted, f"the closest has {have} of {wanted} {what}")

    def _take_host(self, node: NodeView) -> None:
        lacks = node.lacks(self._demand.resources, *self._window)
        if not lacks:
            self.fitting += 1
            return
        self.rejected["resources"] += 1
        asked = _named(self._demand.resources)
        _, name = min((lacks[name] / asked[name], name) for name in lacks)
        self._note("resources", lacks[name], asked[name], name)

    def nearest(self, *, with_devices: bool) -> Mapping[str, str]:
        """Words on the filters that rejected something."""
        words = {name: text for name, (_, text) in self._nearest.items()}
        if self.rejected["labels"]:
            words["labels"] = "".join(f"needs label {key}=*" for key in self._missing())
        if not with_devices:
            words.pop("devices", None)
        return words

    def _missing(self) -> Sequence[str]:
        """The first label of those asked for that some node lacks."""
        schedulable = [n.facts.labels for n in self._view.nodes.values() if n.facts.schedulable]
        lacking = (
            key
            for key in sorted(self._demand.labels)
            if any(key not in labels for labels in schedulable)
        )
        return tuple(lacking)[:1]


def _named(resources: Resources) -> Mapping[str, int]:
    return dict(zip(("vcpu", "memoryGiB", "hugepages1Gi"), amounts_of(resources), strict=True))


def _shortage(view: PoolView, asks: Sequence[DeviceAsk]) -> str:
    """The first entry that no node could serve, in service and free or not, in words."""
    shapes = {node.facts.shape for node in view.nodes.values()}
    for ask in map(_regardless, asks):
        most = max((shape.matching(ask).bit_count() for shape in shapes), default=0)
        if not most:
            return f"; no node has {_instead(shapes, ask)}"
        if most < ask.count:
            return f"; no node has {ask.count} such devices, the largest has {most}"
    return ""


def _regardless(ask: DeviceAsk) -> DeviceAsk:
    """The entry as it was asked for, whichever models its admission saw."""
    if not isinstance(ask, AdmittedAsk):
        return ask
    return DeviceAsk(**{name: getattr(ask, name) for name in DeviceAsk.__struct_fields__})


def _unserved(view: PoolView, labels: Iterable[str]) -> str:
    """Labels asked for that no daemon has told of, in words; empty where no daemon told anything.

    One that is away counts too: it will serve what it served.
    """
    told = [node.facts.labels for node in view.nodes.values() if node.facts.ready]
    nobody = [key for key in sorted(labels) if told and not any(key in has for has in told)]
    if not nobody:
        return ""
    names = " or ".join(key.removeprefix(CAPABILITY) for key in nobody)
    return f"; no node's daemon serves {names}: run bcd doctor on the nodes, or use another pool"


def _instead(shapes: Iterable[Shape], ask: DeviceAsk) -> str:
    """What there is of the class that was asked for."""
    own = [
        slot for shape in shapes for slot in shape.slots if slot.device_class is ask.device_class
    ]
    kinds = sorted({" ".join((slot.model, slot.profile)).strip() for slot in own})
    if not kinds:
        return f"devices of class {ask.device_class}: use another pool"
    more = f" and {len(kinds) - _MAX_KINDS} more" if len(kinds) > _MAX_KINDS else ""
    return f"such devices; there are: {', '.join(kinds[:_MAX_KINDS])}{more}"

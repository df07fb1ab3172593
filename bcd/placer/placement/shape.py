"""How the devices of a node lie to each other, as bit masks. Pure.

Bit ``i`` of a mask stands for the node's ``i``-th atom. Nodes of one hardware model share one
shape, so that what was worked out for one serves all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from bcd.model.device import DeviceClass
from bcd.model.reservation import DeviceAsk, Topology

_MAX_CLIQUES = 256


class AdmittedAsk(DeviceAsk, frozen=True, kw_only=True):
    """An entry that only devices match whose models have no words but these, in lower case."""

    words: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One atom's place in a shape.

    ``gpu`` numbers the node's physical GPUs from 0; ``links`` is the mask of the atoms that
    NVLink joins it to, itself left out; to slots, those of the same GPU.
    """

    device_class: DeviceClass
    model: str
    profile: str
    numa: int | None
    gpu: int
    links: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """A node's atoms; made by ``shape_of`` only, so that equal shapes are one object.

    ``mixed`` is whether some GPU can be taken in more than one mode; ``rival_masks`` gives for
    each atom those that take its GPU in another one. ``numa_masks`` and ``gpu_masks`` have one
    mask for each NUMA node and physical GPU. ``twins`` are sets of shares of one GPU that differ
    in nothing: which of them is taken does not matter.
    """

    slots: tuple[Slot, ...]
    mixed: bool
    numa_masks: tuple[int, ...]
    gpu_masks: tuple[int, ...]
    rival_masks: tuple[int, ...]
    twins: tuple[int, ...]

    def matching(self, ask: DeviceAsk) -> int:
        """The atoms that are of the asked class, model and profile."""
        words = ask.words if isinstance(ask, AdmittedAsk) else None
        return _matching(self, ask.device_class, ask.model, ask.profile, words)

    def of_class(self, device_class: DeviceClass) -> int:
        """The atoms of one class."""
        return _matching(self, device_class, "", "", None)

    def consumed(self, taken: int) -> int:
        """These atoms and their rivals: a GPU taken in one mode is so in no other."""
        gone = taken
        if self.mixed:
            for position in bits(taken):
                gone |= self.rival_masks[position]
        return gone

    def cliques_within(self, mask: int) -> tuple[int, ...]:
        """Maximal sets within ``mask`` of which every pair is linked."""
        return _cliques_within(self, mask)

    def groups(self, mask: int, topology: Topology) -> tuple[int, ...]:
        """Sets within ``mask`` of which any choice satisfies the topology."""
        match topology:
            case Topology.ANY:
                return (mask,) if mask else ()
            case Topology.SAME_NUMA:
                return tuple(part for numa in self.numa_masks if (part := numa & mask))
            case Topology.NVLINK_ALL:
                return self.cliques_within(mask)


@lru_cache(maxsize=1024)
def shape_of(slots: tuple[Slot, ...]) -> Shape:
    """The shape of these atoms, worked out once."""
    numas = sorted({slot.numa for slot in slots if slot.numa is not None})
    gpus = sorted({slot.gpu for slot in slots})
    gpu_masks = {gpu: _mask(slot.gpu == gpu for slot in slots) for gpu in gpus}
    rivals = tuple(
        gpu_masks[slot.gpu] & _mask(o.device_class != slot.device_class for o in slots)
        for slot in slots
    )
    return Shape(
        slots=slots,
        mixed=any(rivals),
        numa_masks=tuple(_mask(slot.numa == numa for slot in slots) for numa in numas),
        gpu_masks=tuple(gpu_masks[gpu] for gpu in gpus),
        rival_masks=rivals,
        twins=_twins(slots),
    )


def _twins(slots: tuple[Slot, ...]) -> tuple[int, ...]:
    found: dict[object, int] = {}
    for position, slot in enumerate(slots):
        alone = slot.device_class is DeviceClass.GPU
        key = position if alone else replace(slot, links=0)
        found[key] = found.get(key, 0) | 1 << position
    return tuple(found.values())


def _mask(flags: Iterable[bool]) -> int:
    return sum(1 << position for position, flag in enumerate(flags) if flag)


def bits(mask: int) -> Iterator[int]:
    """The positions of a mask's bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=4096)
def _matching(
    shape: Shape,
    device_class: DeviceClass,
    model: str,
    profile: str,
    words: frozenset[str] | None,
) -> int:
    return _mask(
        slot.device_class == device_class
        and _words(model) <= _words(slot.model)
        and (words is None or _words(slot.model) <= words)
        and profile in ("", slot.profile)
        for slot in shape.slots
    )


def _words(model: str) -> frozenset[str]:
    """A device matches that has every word asked for: "H100" is in "NVIDIA H100 80GB HBM3"."""
    return frozenset(model.lower().split())


def words_of(ask: DeviceAsk, models: Iterable[str]) -> frozenset[str]:
    """The words, in lower case, of an entry's model and of each of these that it could be given."""
    asked = found = _words(ask.model)
    for model in models:
        known = _words(model)
        if asked <= known:
            found |= known
    return found


@lru_cache(maxsize=1024)
def admitted(ask: DeviceAsk, models: frozenset[str]) -> DeviceAsk:
    """An entry that was admitted where the pool had these models.

    One for which there was none, as in a pool that waits for its nodes, is given any that matches.
    """
    asked = _words(ask.model)
    if not any(asked <= _words(model) for model in models):
        return ask
    return AdmittedAsk(**msgspec.structs.asdict(ask), words=words_of(ask, models))


@lru_cache(maxsize=65536)
def _cliques_within(shape: Shape, mask: int) -> tuple[int, ...]:
    found: list[int] = []
    _bron_kerbosch(shape, 0, mask, 0, found)
    return tuple(found)


def _bron_kerbosch(shape: Shape, chosen: int, open_: int, done: int, found: list[int]) -> None:
    """Maximal cliques with pivoting (Bron and Kerbosch 1973); an atom without links is one.

    Bounded: hosts have few, large cliques; a link graph made to have many gets the first 256.
    """
    if len(found) >= _MAX_CLIQUES:
        return
    if not open_ and not done:
        if chosen:
            found.append(chosen)
        return
    pivot = max(bits(open_ | done), key=lambda i: (open_ & shape.slots[i].links).bit_count())
    for position in bits(open_ & ~shape.slots[pivot].links):
        links = shape.slots[position].links
        _bron_kerbosch(shape, chosen | 1 << position, open_ & links, done & links, found)
        open_ &= ~(1 << position)
        done |= 1 << position

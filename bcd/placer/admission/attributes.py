"""What a policy sees of a reservation: the whole request as attributes (spec 4.2). Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bcd.model.pool import SharingPolicy
from bcd.model.reservation import DeviceAsk, Request, Resources
from bcd.model.units import HOUR_MS
from bcd.placer.admission.quota import gpu_equivalents, memory_gib
from bcd.placer.placement.shape import words_of

ANY_MODEL = "any"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Cedar attributes and tags of one reservation."""

    attrs: Mapping[str, Any]
    tags: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reservation is asked for: the pool's region, its devices' models, how it shares."""

    region: str
    models: tuple[str, ...]
    sharing: SharingPolicy


def attributes_of(
    tenant_id: str, owner: str, place: Place, request: Request, booked: Resources
) -> Attributes:
    """The resource of a decision: everything that is asked for, of all nodes of a gang together.

    ``booked`` are the host resources of each node. Hours and GPUs are rounded up, Cedar has no
    fractions.
    """
    size = request.gang_size
    tags: Counter[str] = Counter()
    words = [_model_words(ask, place.models) for ask in request.devices]
    for ask, possible in zip(request.devices, words, strict=True):
        tags[f"class:{ask.device_class}"] += ask.count * size
        for word in possible:
            tags[f"model:{word}"] += ask.count * size
    worth = gpu_equivalents(request, place.sharing.slots_per_gpu)
    duration_ms = request.duration_ms
    return Attributes(
        attrs={
            "tenant": tenant_id,
            "owner": owner,
            "pool": request.pool_id,
            "region": place.region,
            "gpus": -(-worth.numerator * size // worth.denominator),
            "classes": sorted({ask.device_class.value for ask in request.devices}),
            "models": sorted(frozenset[str]().union(*words)),
            "durationHours": -(-duration_ms // HOUR_MS),
            "durationMs": duration_ms,
            "startMs": request.start or 0,
            "spot": request.spot,
            "binding": request.binding.value,
            "gangSize": size,
            "topologies": sorted({ask.topology.value for ask in request.devices}),
            "vcpu": booked.vcpu * size,
            "memoryGiB": memory_gib(booked) * size,
            "leaseSeconds": request.lease_seconds or 0,
            "labels": sorted(f"{key}={value}" for key, value in request.labels.items()),
        },
        tags=tags,
    )


def _model_words(ask: DeviceAsk, models: Iterable[str]) -> frozenset[str]:
    """The words, in capitals, of every model that an entry could be given, or ``any``.

    Placement compares words and not their case, so a cap on ``H100`` must see it in
    ``nvidia h100``, in ``80GB`` and in no model at all, where the pool has H100s. By way of lower
    case, which is what placement compares.
    """
    words = words_of(ask, models)
    return frozenset(word.upper() for word in words) or frozenset({ANY_MODEL})

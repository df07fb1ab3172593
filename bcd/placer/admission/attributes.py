"""What a policy sees of a reservation: the whole request as attributes (spec 4.2). Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bcd.model.reservation import DeviceAsk, Request
from bcd.model.units import HOUR_MS
from bcd.placer.admission.quota import gpu_equivalents

ANY_MODEL = "any"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Cedar attributes and tags of one reservation."""

    attrs: Mapping[str, Any]
    tags: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reservation is asked for: the pool's region, and the models of its devices."""

    region: str
    models: tuple[str, ...] = ()


def attributes_of(tenant_id: str, owner: str, place: Place, request: Request) -> Attributes:
    """The resource of a decision; hours and GPUs are rounded up, Cedar has no fractions."""
    tags: Counter[str] = Counter()
    words = [_model_words(ask, place.models) for ask in request.devices]
    for ask, possible in zip(request.devices, words, strict=True):
        tags[f"class:{ask.device_class}"] += ask.count
        for word in possible:
            tags[f"model:{word}"] += ask.count
    duration_ms = request.duration_ms
    return Attributes(
        attrs={
            "tenant": tenant_id,
            "owner": owner,
            "pool": request.pool_id,
            "region": place.region,
            "gpus": math.ceil(gpu_equivalents(request)),
            "classes": sorted({ask.device_class.value for ask in request.devices}),
            "models": sorted(frozenset[str]().union(*words)),
            "durationHours": -(-duration_ms // HOUR_MS),
            "durationMs": duration_ms,
            "startMs": 0,
            "spot": False,
            "binding": request.binding.value,
            "gangSize": 1,
            "topologies": sorted({ask.topology.value for ask in request.devices}),
            "vcpu": 0,
            "memoryGiB": 0,
            "leaseSeconds": 0,
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
    asked = frozenset(ask.model.lower().split())
    found = asked
    for model in models:
        known = frozenset(model.lower().split())
        if asked <= known:
            found |= known
    return frozenset(word.upper() for word in found) or frozenset({ANY_MODEL})

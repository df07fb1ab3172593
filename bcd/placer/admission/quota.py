"""What a request is charged, and how many GPUs' worth it asks for. Pure."""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from bcd.model.device import DeviceClass
from bcd.model.reservation import Request

# A MIG instance counts as a seventh of a GPU (spec 6.2).
_GPU_WORTH = {DeviceClass.GPU: Fraction(1), DeviceClass.MIG: Fraction(1, 7)}


def charges(request: Request) -> Mapping[str, int]:
    """Amounts by quota resource: each device class by its count (spec 5.2)."""
    amounts: Counter[str] = Counter()
    for ask in request.devices:
        amounts[ask.device_class.value] += ask.count
    return amounts


def gpu_equivalents(request: Request) -> Fraction:
    """How many physical GPUs' worth of devices a request asks for, exactly."""
    return sum((_GPU_WORTH[ask.device_class] * ask.count for ask in request.devices), Fraction())

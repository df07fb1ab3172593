"""What a request is charged, and how many GPUs' worth it asks for. Pure."""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from bcd.model.device import DeviceClass
from bcd.model.reservation import Request, Resources

VCPU = "vcpu"
MEMORY_GIB = "memoryGiB"


def charges(request: Request, booked: Resources, share: Resources) -> Mapping[str, int]:
    """Amounts by quota resource, of all nodes together (spec 5.2).

    Each device class by its count, and what is booked of each host above the share that rides on
    the devices. A huge page of 1 GiB is a GiB of memory. Only what is charged is there.
    """
    amounts: Counter[str] = Counter()
    for ask in request.devices:
        amounts[ask.device_class.value] += ask.count
    amounts[VCPU] = booked.vcpu - share.vcpu
    amounts[MEMORY_GIB] = memory_gib(booked) - memory_gib(share)
    size = request.gang_size
    return {name: amount * size for name, amount in amounts.items() if amount > 0}


def memory_gib(resources: Resources) -> int:
    """Memory in GiB, huge pages of 1 GiB included."""
    return resources.memory_gib + resources.hugepages_1gi


def gpu_equivalents(request: Request, slots_per_gpu: int) -> Fraction:
    """How many physical GPUs' worth of devices a request asks for on each node, exactly.

    A MIG instance counts as a seventh of a GPU, a slot as one of the pool's ``slots_per_gpu``
    (spec 6.2).
    """
    mig, slot = 7, slots_per_gpu
    parts = {DeviceClass.GPU: mig * slot, DeviceClass.MIG: slot, DeviceClass.SLOT: mig}
    return Fraction(sum(parts[ask.device_class] * ask.count for ask in request.devices), mig * slot)

"""Which host resources ride on a request's GPUs, and which it books in all (spec 6.2). Pure.

Worked out once, when the draft is written, and stored with it: what a reservation books does not
change with the pool.
"""

from fractions import Fraction

from bcd.model.assignment import Binding
from bcd.model.host import PerGpu
from bcd.model.pool import PoolPolicy
from bcd.model.reservation import Request, Resources
from bcd.placer.admission.quota import gpu_equivalents

NONE = Resources()


def host_share(request: Request, policy: PoolPolicy, least: PerGpu | None) -> Resources:
    """The pool's per-GPU share times the GPUs' worth asked for, per node.

    ``least`` is what every GPU host of the pool leaves for each GPU before the ratio, None where
    no host says, which makes the share empty whatever the policy. Exact until the end: each
    component is rounded down once. A whole node needs no share of itself.
    """
    if least is None or request.binding is Binding.NODE:
        return NONE
    worth = gpu_equivalents(request, policy.sharing.slots_per_gpu)
    vcpu, memory = policy.per_gpu.vcpu, policy.per_gpu.memory_gib
    return Resources(
        vcpu=_part(vcpu, least.vcpu * policy.ratio.vcpu_ratio, worth),
        memory_gib=_part(memory, least.memory_gib * policy.ratio.memory_ratio, worth),
    )


def _part(per_gpu: int | None, otherwise: Fraction, worth: Fraction) -> int:
    each = otherwise if per_gpu is None else Fraction(per_gpu)
    return int(each * worth)


def booked(request: Request, share: Resources) -> Resources:
    """What a request books of each node: what it asks for, nothing less than the share.

    GPUs without CPUs and memory of their own would run a workload without limits, on what was
    sold to others.
    """
    if request.resources is None or request.binding is Binding.NODE:
        return share
    return request.resources.raised_to(share)

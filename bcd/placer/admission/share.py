"""Which host resources ride on a request's GPUs, and which it books in all (spec 6.2). Pure.

Worked out once, when the draft is written, and stored with it: what a reservation books does not
change with the pool.
"""

from decimal import Decimal
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
    each, ratio = policy.per_gpu, policy.ratio
    return Resources(
        vcpu=_part(each.vcpu, least.vcpu, ratio.vcpu, worth),
        memory_gib=_part(each.memory_gib, least.memory_gib, ratio.memory_gib, worth),
    )


def _part(per_gpu: int | None, least: Fraction, ratio: Decimal, worth: Fraction) -> int:
    if per_gpu is not None:
        return per_gpu * worth.numerator // worth.denominator
    often, of = ratio.as_integer_ratio()
    whole = least.numerator * often * worth.numerator
    return whole // (least.denominator * of * worth.denominator)


def booked(request: Request, share: Resources) -> Resources:
    """What a request books of each node: what it asks for, nothing less than the share.

    GPUs without CPUs and memory of their own would run a workload without limits, on what was
    sold to others.
    """
    if request.resources is None or request.binding is Binding.NODE:
        return share
    return request.resources.raised_to(share)

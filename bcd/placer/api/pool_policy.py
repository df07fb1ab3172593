"""Pool policies as administrators write them: bounded, and refused where not built yet."""

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

import msgspec

from bcd.model.errors import InvalidInput, Unsupported
from bcd.model.pool import (
    MAX_GRACE_SECONDS,
    MAX_MEMORY_GIB,
    MAX_MEMORY_RATIO,
    MAX_RATIO,
    MAX_REPLICAS,
    MAX_TURNAROUND_MS,
    MAX_VCPU,
    RATIO_DECIMALS,
    HostReservePolicy,
    PerGpuPolicy,
    PlacerKind,
    PoolPolicy,
    RatioPolicy,
    SharingMode,
    SharingPolicy,
    SpotPolicy,
)
from bcd.wire.compute.v1 import admin_pb2 as pb

E = TypeVar("E", bound=StrEnum)

# Field names of the API and of the stored policy.
_FIELDS = {
    "turnaroundMs": "turnaround_ms",
    "placer": "placer",
    "perGpu": "per_gpu",
    "ratio": "ratio",
    "hostReserve": "host_reserve",
    "sharing": "sharing",
    "kubernetes": "kubernetes",
    "tenantRoot": "tenant_root",
    "spot": "spot",
}


def updated_policy(
    before: PoolPolicy, given: pb.PoolPolicy, reset: Sequence[str] = ()
) -> PoolPolicy:
    """The policy after ``reset`` fields went to their defaults and the given ones were set.

    Raises InvalidInput or Unsupported naming the field, such as ``policy.ratio.vcpu``.
    """
    for position, name in enumerate(reset):
        if name not in _FIELDS:
            raise InvalidInput(f"reset[{position}]", f"must be one of {', '.join(_FIELDS)}")
        default = getattr(PoolPolicy(), _FIELDS[name])
        before = msgspec.structs.replace(before, **{_FIELDS[name]: default})
    return PoolPolicy(
        turnaround_ms=_whole(
            "turnaroundMs",
            given.turnaround_ms if given.HasField("turnaround_ms") else before.turnaround_ms,
            0,
            MAX_TURNAROUND_MS,
        ),
        placer=_choice("placer", given.placer, before.placer, PlacerKind),
        per_gpu=_per_gpu(given, before.per_gpu),
        ratio=_ratio(given, before.ratio),
        host_reserve=_host_reserve(given, before.host_reserve),
        sharing=_sharing(given.sharing, before.sharing),
        kubernetes=given.kubernetes if given.HasField("kubernetes") else before.kubernetes,
        tenant_root=_tenant_root(given, before.tenant_root),
        spot=_spot(given.spot, before.spot),
    )


def encode_policy(policy: PoolPolicy) -> pb.PoolPolicy:
    """The policy with every field that has a value."""
    ratio, reserve, share = policy.ratio, policy.host_reserve, policy.per_gpu
    return pb.PoolPolicy(
        turnaround_ms=policy.turnaround_ms,
        placer=policy.placer.value,
        per_gpu=pb.HostAmounts(vcpu=share.vcpu, memory_gib=share.memory_gib),
        ratio=pb.HostRatio(vcpu=float(ratio.vcpu), memory_gib=float(ratio.memory_gib)),
        host_reserve=pb.HostAmounts(vcpu=reserve.vcpu, memory_gib=reserve.memory_gib),
        sharing=pb.Sharing(mode=policy.sharing.mode.value, replicas=policy.sharing.replicas),
        kubernetes=policy.kubernetes,
        tenant_root=policy.tenant_root,
        spot=pb.Spot(grace_seconds=policy.spot.grace_seconds),
    )


def _per_gpu(given: pb.PoolPolicy, before: PerGpuPolicy) -> PerGpuPolicy:
    vcpu, memory_gib = _amounts("perGpu", given.per_gpu)
    return PerGpuPolicy(
        vcpu=before.vcpu if vcpu is None else vcpu,
        memory_gib=before.memory_gib if memory_gib is None else memory_gib,
    )


def _host_reserve(given: pb.PoolPolicy, before: HostReservePolicy) -> HostReservePolicy:
    vcpu, memory_gib = _amounts("hostReserve", given.host_reserve)
    return HostReservePolicy(
        vcpu=before.vcpu if vcpu is None else vcpu,
        memory_gib=before.memory_gib if memory_gib is None else memory_gib,
    )


def _amounts(name: str, given: pb.HostAmounts) -> tuple[int | None, int | None]:
    vcpu = memory_gib = None
    if given.HasField("vcpu"):
        vcpu = _whole(f"{name}.vcpu", given.vcpu, 0, MAX_VCPU)
    if given.HasField("memory_gib"):
        memory_gib = _whole(f"{name}.memoryGiB", given.memory_gib, 0, MAX_MEMORY_GIB)
    return vcpu, memory_gib


def _ratio(given: pb.PoolPolicy, before: RatioPolicy) -> RatioPolicy:
    vcpu, memory_gib = before.vcpu, before.memory_gib
    if given.ratio.HasField("vcpu"):
        vcpu = _decimal("ratio.vcpu", given.ratio.vcpu)
    if given.ratio.HasField("memory_gib"):
        memory_gib = _decimal("ratio.memoryGiB", given.ratio.memory_gib)
        if memory_gib > MAX_MEMORY_RATIO:
            raise InvalidInput(
                "policy.ratio.memoryGiB",
                "must be at most 1: nodes admit holds by the memory that they have; set 1, or"
                " book less of it for each GPU (policy.perGpu.memoryGiB)",
            )
    return RatioPolicy(vcpu=vcpu, memory_gib=memory_gib)


def _sharing(given: pb.Sharing, before: SharingPolicy) -> SharingPolicy:
    mode = _choice("sharing.mode", given.mode, before.mode, SharingMode)
    replicas = before.replicas
    if given.HasField("replicas"):
        replicas = _whole("sharing.replicas", given.replicas, 1, MAX_REPLICAS)
    return SharingPolicy(mode=mode, replicas=replicas)


def _tenant_root(given: pb.PoolPolicy, before: bool) -> bool:
    wanted = given.tenant_root if given.HasField("tenant_root") else before
    if wanted:
        raise Unsupported("policy.tenantRoot is not supported yet", field="policy.tenantRoot")
    return wanted


def _spot(given: pb.Spot, before: SpotPolicy) -> SpotPolicy:
    if not given.HasField("grace_seconds"):
        return before
    seconds = _whole("spot.graceSeconds", given.grace_seconds, 0, MAX_GRACE_SECONDS)
    return SpotPolicy(grace_seconds=seconds)


def _choice(name: str, given: str, before: E, kinds: type[E]) -> E:
    if not given:
        return before
    if given not in tuple(kinds):
        raise InvalidInput(f"policy.{name}", f"must be one of {', '.join(kinds)}")
    return kinds(given)


def _whole(name: str, given: int, least: int, most: int) -> int:
    if not least <= given <= most:
        raise InvalidInput(f"policy.{name}", f"must be {least} to {most}")
    return given


def _decimal(name: str, given: float) -> Decimal:
    """What was written, exactly: the shortest decimal of a double is the one with few digits."""
    written = Decimal(repr(given))
    if not written.is_finite() or not 0 < written <= MAX_RATIO:
        raise InvalidInput(f"policy.{name}", f"must be more than 0 and at most {MAX_RATIO}")
    if written != round(written, RATIO_DECIMALS):
        raise InvalidInput(f"policy.{name}", f"must have at most {RATIO_DECIMALS} decimals")
    return written

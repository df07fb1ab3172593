"""A pool's policy, and the quota resources that devices are charged to."""

from enum import StrEnum

import msgspec

from bcd.model.units import DAY_MS


class PlacerKind(StrEnum):
    """Inline places within the create; queued plans in batches."""

    INLINE = "inline"
    QUEUED = "queued"


class HostReservePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every host of the pool keeps for itself."""

    vcpu: int = 2
    memory_gib: int = msgspec.field(default=4, name="memoryGiB")


class PoolPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How a pool is booked. ``turnaround_ms`` is kept free after every booking."""

    host_reserve: HostReservePolicy = HostReservePolicy()
    turnaround_ms: int = 0
    placer: PlacerKind = PlacerKind.INLINE


MAX_TURNAROUND_MS = DAY_MS

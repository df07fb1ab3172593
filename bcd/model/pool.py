"""A pool's policy (spec 1.5): how its devices and hosts are booked.

Stored as JSON with the pool. What a row of an older program lacks has its default.
"""

from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

import msgspec

from bcd.model.units import DAY_MS, HOUR_MS, SECOND_MS

MAX_TURNAROUND_MS = DAY_MS
MAX_GRACE_SECONDS = HOUR_MS // SECOND_MS
MAX_VCPU = 4096
MAX_MEMORY_GIB = 65_536
MAX_REPLICAS = 64
MAX_RATIO = Decimal(100)
MAX_MEMORY_RATIO = Decimal(1)
RATIO_DECIMALS = 3


class PlacerKind(StrEnum):
    """Inline places within the create; queued plans in batches."""

    INLINE = "inline"
    QUEUED = "queued"


class SharingMode(StrEnum):
    """How whole GPUs are cut into slots; ``none`` books them whole."""

    NONE = "none"
    TIME_SLICE = "time-slice"
    MPS = "mps"


_DEFAULT_REPLICAS = 4
_DEFAULT_REPLICAS_MPS = 10


class PerGpuPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The host resources that ride on each GPU; None takes the smallest host's share (spec 6.2)."""

    vcpu: int | None = None
    memory_gib: int | None = msgspec.field(default=None, name="memoryGiB")


class RatioPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How often a host's CPUs and memory are sold: exact decimals, 1 sells them once.

    Memory is sold once at most: a node admits holds by the memory that it has, so that what is
    sold twice never binds. A larger one, of an older program's row, reads as 1.
    """

    vcpu: Decimal = Decimal(1)
    memory_gib: Decimal = msgspec.field(default=Decimal(1), name="memoryGiB")

    def __post_init__(self) -> None:
        """Bound the memory's ratio."""
        if self.memory_gib > MAX_MEMORY_RATIO:
            msgspec.structs.force_setattr(self, "memory_gib", MAX_MEMORY_RATIO)

    @property
    def vcpu_ratio(self) -> Fraction:
        """The CPUs' ratio, exactly."""
        return Fraction(self.vcpu)

    @property
    def memory_ratio(self) -> Fraction:
        """The memory's ratio, exactly."""
        return Fraction(self.memory_gib)


class HostReservePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every host of the pool keeps for itself."""

    vcpu: int = 2
    memory_gib: int = msgspec.field(default=4, name="memoryGiB")


class SharingPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How GPUs are shared; ``replicas`` is None for the mode's own number."""

    mode: SharingMode = SharingMode.NONE
    replicas: int | None = None

    @property
    def slots_per_gpu(self) -> int:
        """Into how many slots a GPU is cut: 4, or 10 for MPS, where nothing else is set."""
        if self.replicas is not None:
            return self.replicas
        return _DEFAULT_REPLICAS_MPS if self.mode is SharingMode.MPS else _DEFAULT_REPLICAS


class SpotPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How long a spot reservation keeps its devices once somebody else needs them."""

    grace_seconds: int = 120

    @property
    def grace_ms(self) -> int:
        """The grace in milliseconds."""
        return self.grace_seconds * SECOND_MS


class PoolPolicy(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How a pool is booked. ``turnaround_ms`` is kept free after every booking."""

    host_reserve: HostReservePolicy = HostReservePolicy()
    turnaround_ms: int = 0
    placer: PlacerKind = PlacerKind.INLINE
    per_gpu: PerGpuPolicy = PerGpuPolicy()
    ratio: RatioPolicy = RatioPolicy()
    sharing: SharingPolicy = SharingPolicy()
    kubernetes: bool = False
    tenant_root: bool = False
    spot: SpotPolicy = SpotPolicy()

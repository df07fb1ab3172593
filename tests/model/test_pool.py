"""A pool's policy as it is stored: exact, and readable from rows of an older program (spec 1.5)."""

from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest

from bcd.model.pool import (
    HostReservePolicy,
    PerGpuPolicy,
    PlacerKind,
    PoolPolicy,
    RatioPolicy,
    SharingMode,
    SharingPolicy,
    SpotPolicy,
)


def decoded(text: bytes | str) -> PoolPolicy:
    return msgspec.json.decode(text, type=PoolPolicy)


def test_a_row_of_an_older_program_reads_with_the_defaults() -> None:
    row = '{"hostReserve":{"vcpu":2,"memoryGiB":4},"turnaroundMs":60000,"placer":"inline"}'
    assert decoded(row) == PoolPolicy(turnaround_ms=60_000)
    assert decoded("{}") == PoolPolicy()


def test_every_field_reads_as_it_was_written() -> None:
    policy = PoolPolicy(
        host_reserve=HostReservePolicy(vcpu=3, memory_gib=9),
        turnaround_ms=1,
        placer=PlacerKind.QUEUED,
        per_gpu=PerGpuPolicy(vcpu=12, memory_gib=0),
        ratio=RatioPolicy(vcpu=Decimal("1.5"), memory_gib=Decimal("0.001")),
        sharing=SharingPolicy(mode=SharingMode.MPS, replicas=3),
        kubernetes=True,
        tenant_root=True,
        spot=SpotPolicy(grace_seconds=7),
    )
    assert decoded(msgspec.json.encode(policy)) == policy


def test_a_ratio_stays_exact() -> None:
    stored = msgspec.json.encode(PoolPolicy(ratio=RatioPolicy(vcpu=Decimal("1.1"))))
    assert b'"1.1"' in stored
    assert decoded(stored).ratio.vcpu_ratio == Fraction(11, 10)
    assert decoded(stored).ratio.memory_ratio == 1


def test_memory_that_an_older_program_sold_twice_is_read_as_sold_once() -> None:
    row = '{"ratio":{"vcpu":"2","memoryGiB":"%s"}}'
    for stored, read in (("1.001", "1"), ("100", "1"), ("1", "1"), ("0.999", "0.999")):
        assert decoded(row % stored).ratio == RatioPolicy(vcpu=Decimal(2), memory_gib=Decimal(read))
    assert decoded(row % "1.5").ratio.memory_ratio == 1


@pytest.mark.parametrize(
    ("sharing", "slots"),
    [
        (SharingPolicy(), 4),
        (SharingPolicy(mode=SharingMode.TIME_SLICE), 4),
        (SharingPolicy(mode=SharingMode.MPS), 10),
        (SharingPolicy(mode=SharingMode.MPS, replicas=2), 2),
    ],
)
def test_a_gpu_has_as_many_slots_as_set_or_as_its_mode_says(
    sharing: SharingPolicy, slots: int
) -> None:
    assert sharing.slots_per_gpu == slots


def test_the_grace_of_spot_reservations_is_two_minutes_unless_set() -> None:
    assert PoolPolicy().spot.grace_ms == 120_000

"""The small pools and requests that histories draw from, in the program's words and our own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bcd.model.device import Device, DeviceClass
from tests.model_trace.claims import MINUTE_MS, Wish
from tests.model_trace.fits import Amounts, Ask, DeviceKey, Part
from tests.placer.world import ALICE, BOB, TENANT, dgx, gpu, mig

AGENT = replace(ALICE, actor="agent")
CALLERS = {caller.identity: caller for caller in (ALICE, AGENT, BOB)}
QUOTAS = {"gpu": 16, "gpu.mig": 4, "gpu.slot": 16, "vcpu": 60, "memoryGiB": 1000}
# What world.host_of leaves beside its reserve.
SPARE: Amounts = (62, 1020, 0)
ASKS = (
    (Ask("gpu", 1),),
    (Ask("gpu", 2),),
    (Ask("gpu", 3),),
    (Ask("gpu", 2, "same-numa"),),
    (Ask("gpu", 4, "nvlink-all"),),
    (Ask("gpu.mig", 2),),
    (Ask("gpu", 1), Ask("gpu.mig", 1)),
    (Ask("gpu", 1), Ask("gpu", 2, "same-numa")),
    (Ask("gpu.slot", 2),),
    (Ask("gpu.slot", 5), Ask("gpu", 1)),
)
MINUTES = (10, 60, 240)
_PLAIN = tuple(
    Wish(asks=asks, duration_ms=minutes * MINUTE_MS) for asks in ASKS for minutes in MINUTES
)
_TWO = _PLAIN[4]
# A start is given as the time until then.
WISHES = (
    *_PLAIN,
    *(replace(wish, start=ahead * MINUTE_MS) for wish in _PLAIN[::4] for ahead in (10, 70)),
    *(replace(_TWO, size=2, duration_ms=minutes * MINUTE_MS) for minutes in MINUTES),
    replace(_TWO, size=2, start=20 * MINUTE_MS),
    *(replace(_TWO, amounts=amounts) for amounts in ((40, 10, 0), (0, 800, 0), (0, 0, 1))),
    *(replace(wish, lease_s=300) for wish in _PLAIN[1:10:4]),
    replace(_TWO, lease_s=300, start=20 * MINUTE_MS),
    *(replace(wish, spot=True) for wish in _PLAIN[1:10:4]),
    replace(_TWO, spot=True, start=20 * MINUTE_MS),
)


def switched(name: str) -> Sequence[Device]:
    """Four GPUs of one switch, two on each of two NUMA nodes."""
    return dgx(name, 4)


def split(name: str) -> Sequence[Device]:
    """Two whole GPUs without links, and one in MIG mode with three instances."""
    parent = replace(gpu(f"GPU-{name}-mig", 1), mig_enabled=True)
    instances = [mig(f"MIG-{name}-{i}", parent.id, numa=1) for i in range(3)]
    return (gpu(f"GPU-{name}-0", 0), gpu(f"GPU-{name}-1", 1), parent, *instances)


POOLS = (
    (switched("a"),),
    (switched("a"), split("b")),
    (split("a"), split("b")),
    (switched("a"), switched("b"), split("c")),
)


def key_of(device: Device) -> DeviceKey:
    """A device's name in the reference."""
    return (device.device_class.value, device.id)


def part_of(device: Device) -> Part:
    """A device as the reference knows it."""
    assert device.numa_node is not None
    return Part(
        kind=device.device_class.value,
        id=device.id,
        gpu=device.gpu,
        numa=device.numa_node,
        fabric=device.nvlink_domain,
    )


def slots_of(whole: Part) -> Sequence[Part]:
    """The four slots of a shared GPU."""
    return [
        Part(kind="gpu.slot", id=f"{whole.id}::{n}", gpu=whole.id, numa=whole.numa)
        for n in range(4)
    ]


def document(wish: Wish, key: str, pool_id: str, dry: bool = False) -> dict[str, Any]:
    """The create that asks for it."""
    devices: list[dict[str, Any]] = [
        {"class": DeviceClass(ask.kind).value, "count": ask.count, "topology": ask.topology}
        for ask in wish.asks
    ]
    return {
        "tenantId": TENANT,
        "poolId": pool_id,
        "devices": devices,
        "duration": f"{wish.duration_ms}ms",
        "idempotencyKey": key,
        "dryRun": dry,
        "spot": wish.spot,
        **_extras(wish),
    }


def _extras(wish: Wish) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if wish.start:
        found["start"] = wish.start
    if wish.size > 1:
        found["gang"] = {"size": wish.size}
    if wish.amounts is not None:
        names = ("vcpu", "memoryGiB", "hugepages1Gi")
        found["resources"] = dict(zip(names, wish.amounts, strict=True))
    if wish.lease_s:
        found["leaseSeconds"] = wish.lease_s
    return found

"""What Xids, ECC errors and row remapping mean for a GPU's health. Pure.

A ``Trouble`` is something that happened and may be over; it ends with the first reading that is
clean and comes a probe later. What a reading itself says (a pending remap, a wanted reset) is
judged anew with each. Health never ends a hold. Xids: https://docs.nvidia.com/deploy/xid-errors/.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bcd.model.device import HEALTHY, Health, HealthState
from bcd.node.host.nvml.messages import Event, GpuReading

# An application's own faults, and preemption: the GPU is fine.
IGNORED_XIDS = frozenset({13, 31, 43, 45, 68, 109})
FATAL_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 95, 119, 120, 140})

# nvml.h: event types, NVML_COMPUTEMODE_PROHIBITED, and the recovery actions from 1.
_XID = 0x8
_PROHIBITED = 2
_TYPES: Mapping[int, tuple[HealthState, str]] = {
    0x2: (HealthState.UNHEALTHY, "uncorrected ECC error"),
    0x400: (HealthState.DEGRADED, "memory was retired"),
    0x800: (HealthState.UNHEALTHY, "memory could not be retired"),
    0x1000: (HealthState.DEGRADED, "contained poison error"),
    0x2000: (HealthState.UNHEALTHY, "poison error"),
    0x4000: (HealthState.UNHEALTHY, "the GPU is unavailable"),
}
_MAX_TROUBLES = 8
_ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the host",
    3: "an end of peer-to-peer traffic",
    4: "a drain, then a reset of the GPU",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Xids of the settings: they go before the built-in lists."""

    fatal: frozenset[int] = frozenset()
    ignored: frozenset[int] = frozenset()

    def judge(self, xid: int) -> HealthState:
        """Xids that are in no list leave the GPU degraded until the next clean reading."""
        if xid in self.ignored:
            return HealthState.HEALTHY
        if xid in self.fatal:
            return HealthState.UNHEALTHY
        if xid in IGNORED_XIDS:
            return HealthState.HEALTHY
        return HealthState.UNHEALTHY if xid in FATAL_XIDS else HealthState.DEGRADED


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What happened to a GPU, or to one of its instances; ``since`` in steady seconds.

    ``gpu`` is empty for an event that named no GPU that is known: it counts for all.
    """

    gpu: str
    gi: int | None
    ci: int | None
    health: Health
    since: float

    def concerns(self, gpu: str, gi: int | None, ci: int | None) -> bool:
        """Whether it is about this GPU or instance; a whole GPU's trouble is its instances'."""
        return (
            self.gpu in ("", gpu)
            and (self.gi is None or gi is None or self.gi == gi)
            and (self.ci is None or ci is None or self.ci == ci)
        )

    def repeats(self, other: "Trouble") -> bool:
        """Whether the same happened at another time."""
        return replace(self, since=other.since) == other


def trouble_of(event: Event, policy: Policy, now: float) -> Trouble | None:
    """What an event means, None when it means nothing for health."""
    if event.kind == _XID:
        state, reason = policy.judge(event.data), f"Xid {event.data}"
    else:
        state, reason = _TYPES.get(event.kind, (HealthState.HEALTHY, ""))
    if state is HealthState.HEALTHY:
        return None
    return Trouble(
        gpu=event.uuid, gi=event.gi, ci=event.ci, health=Health(state, reason), since=now
    )


def settle(
    troubles: Iterable[Trouble],
    before: Mapping[str, GpuReading],
    after: Mapping[str, GpuReading],
    now: float,
    probe_s: float,
) -> tuple[Trouble, ...]:
    """The troubles after a reading: those of clean GPUs end, risen error counts begin one.

    ``before`` and ``after`` are readings by UUID.
    """
    kept = [
        trouble
        for trouble in troubles
        if now - trouble.since < probe_s or not _clean(trouble.gpu, before, after)
    ]
    for gpu in after.values():
        if _rose(before.get(gpu.uuid), gpu):
            kept = list(record(kept, _ecc(gpu, now)))
    return tuple(kept)


def record(troubles: Sequence[Trouble], new: Trouble) -> tuple[Trouble, ...]:
    """The troubles with one more; one that repeats keeps its place, so that no storm is news.

    Of one GPU a few are kept, the worst.
    """
    if any(trouble.repeats(new) for trouble in troubles):
        return tuple(new if trouble.repeats(new) else trouble for trouble in troubles)
    mine = [trouble for trouble in troubles if trouble.gpu == new.gpu]
    if len(mine) >= _MAX_TROUBLES:
        mild = [trouble for trouble in mine if trouble.health.state is HealthState.DEGRADED]
        if not mild:
            return tuple(troubles)
        troubles = [trouble for trouble in troubles if trouble != mild[-1]]
    return (*troubles, new)


def _clean(gpu: str, before: Mapping[str, GpuReading], after: Mapping[str, GpuReading]) -> bool:
    concerned = [after.get(gpu)] if gpu else list(after.values())
    return all(
        reading is not None
        and standing(reading) == HEALTHY
        and not _rose(before.get(reading.uuid), reading)
        for reading in concerned
    )


def _rose(before: GpuReading | None, after: GpuReading) -> bool:
    if before is None or before.uncorrected is None or after.uncorrected is None:
        return False
    return after.uncorrected > before.uncorrected


def _ecc(gpu: GpuReading, now: float) -> Trouble:
    # Without the figures: the text goes into the inventory, and a counter may rise for days.
    health = Health(HealthState.UNHEALTHY, "uncorrected ECC errors rise")
    return Trouble(gpu=gpu.uuid, gi=None, ci=None, health=health, since=now)


def standing(gpu: GpuReading) -> Health:
    """What a reading alone says of a GPU."""
    pending, failed = gpu.remapped
    if failed:
        return Health(HealthState.UNHEALTHY, "row remapping failed; the GPU has to be replaced")
    if gpu.recovery:
        action = _ACTIONS.get(gpu.recovery, f"recovery action {gpu.recovery}")
        return Health(HealthState.UNHEALTHY, f"the driver asks for {action}")
    if gpu.error:
        return Health(HealthState.UNHEALTHY, gpu.error)
    if gpu.compute_mode == _PROHIBITED:
        return Health(HealthState.DEGRADED, "computing is prohibited; run: nvidia-smi -c DEFAULT")
    if pending:
        return Health(HealthState.DEGRADED, "row remapping waits for a reset of the GPU")
    return HEALTHY


def health_of(
    gpu: GpuReading,
    troubles: Iterable[Trouble],
    gi: int | None = None,
    ci: int | None = None,
) -> Health:
    """The worst of what stands and what happened; of equals what stands, then the first.

    The newest would say something else with every event of a storm.
    """
    found = [trouble.health for trouble in troubles if trouble.concerns(gpu.uuid, gi, ci)]
    worst = (HealthState.UNHEALTHY, HealthState.DEGRADED)
    for state in worst:
        for health in (standing(gpu), *found):
            if health.state is state:
                return health
    return HEALTHY

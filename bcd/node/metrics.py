"""The daemon's metrics: which there are, and how each follows from what the daemon knows.

``answers`` fills ``Measured`` and serves the result. Every name here is one that the alert rules
and the dashboard in ``packaging/`` may use. Labels take few values: never an allocation or a
device, whose numbers grow without bound over a year.
"""

import bisect
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bcd.model.device import DeviceClass, HealthState
from bcd.node.exposition import Family, Histogram, Kind, Sample
from bcd.node.ports import Clock

# A quiet pass takes milliseconds, one with slow binds seconds, and 900 s count as hung.
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
HOLD_STATES = ("bound", "waiting", "failed", "released")
# The daemon's own counters (``Daemon.counters``) by metric; others are counted by name.
COUNTERS = {
    "passes": ("bcd_passes_total", "Passes that began."),
    "failed passes": ("bcd_passes_failed_total", "Passes that came to nothing."),
    "refused desired states": (
        "bcd_desired_states_refused_total",
        "Desired states with a wrong signature, for another node, or older than the accepted one.",
    ),
    "sessions": ("bcd_sessions_total", "Sessions that the gateway accepted."),
    "reports not stored": (
        "bcd_reports_not_stored_total",
        "Reports that the gateway answered with ignored or rejected.",
    ),
    "nvml restarts": (
        "bcd_nvml_restarts_total",
        "NVML processes that took the place of one that hung, died, or knew another driver.",
    ),
}


class PassTimes:
    """How long passes took, in seconds of the steady clock, and when the last one ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total = 0.0
        self.ended_ms = 0  # epoch milliseconds, 0 before the first end

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """What happens in here is one pass, however it ends."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            seconds = max(0.0, self._clock.monotonic() - began)
            self._counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
            self._total += seconds
            self.ended_ms = self._clock.wall_ms()

    def histogram(self) -> Histogram:
        """All passes since the start."""
        return Histogram(BOUNDS_S, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the metrics are made of; ``devices`` counts by (class, health)."""

    version: str
    node_id: str
    driver_version: str
    cuda_version: str
    holds: Mapping[str, int]
    failures: Mapping[str, int]
    conditions: Mapping[str, int]
    devices: Mapping[tuple[str, str], int]
    counters: Mapping[str, int]
    reports_waiting: int
    connected: bool
    certificate_seconds_left: float
    last_pass_seconds: float
    passes: Histogram


def families(measured: Measured) -> tuple[Family, ...]:
    """All metrics, always the same names in the same order."""
    return (*_identity(measured), *_holds(measured), *_counters(measured), *_health(measured))


def _identity(measured: Measured) -> Iterator[Family]:
    build = {"version": measured.version, "node": measured.node_id}
    driver = {"driver": measured.driver_version, "cuda": measured.cuda_version}
    yield _gauge("bcd_build_info", "Version and node id.", Sample(1, build))
    yield _gauge(
        "bcd_driver_info", "NVIDIA driver and CUDA version, empty without.", Sample(1, driver)
    )


def _holds(measured: Measured) -> Iterator[Family]:
    yield _gauge(
        "bcd_holds",
        "Allocations as the last pass left them.",
        *(Sample(measured.holds.get(state, 0), {"state": state}) for state in HOLD_STATES),
    )
    yield _gauge(
        "bcd_hold_failures",
        "Failed allocations by reason.",
        *_by("reason", measured.failures),
    )
    yield _gauge(
        "bcd_conditions",
        "What a person should look at, by type; bcd status shows each with its remedy.",
        *_by("type", measured.conditions),
    )
    classes = {device_class for device_class, _ in measured.devices} | {str(DeviceClass.GPU)}
    yield _gauge(
        "bcd_devices",
        "Devices of the inventory by class and health.",
        *(
            Sample(measured.devices.get((name, state), 0), {"class": name, "health": state})
            for name in sorted(classes)
            for state in map(str, HealthState)
        ),
    )


def _counters(measured: Measured) -> Iterator[Family]:
    for key, (name, text) in COUNTERS.items():
        sample = Sample(measured.counters.get(key, 0))
        yield Family(name=name, kind=Kind.COUNTER, help=text, samples=(sample,))
    others = {key: n for key, n in measured.counters.items() if key not in COUNTERS}
    yield Family(
        name="bcd_unknown_messages_total",
        kind=Kind.COUNTER,
        help="Messages of kinds that this version does not know, by kind.",
        samples=_by("kind", others),
    )


def _health(measured: Measured) -> Iterator[Family]:
    yield Family(
        name="bcd_pass_duration_seconds",
        kind=Kind.HISTOGRAM,
        help="How long passes took.",
        samples=measured.passes.samples(),
    )
    yield _gauge(
        "bcd_last_pass_timestamp_seconds",
        "When the last pass ended, 0 before the first end.",
        Sample(measured.last_pass_seconds),
    )
    yield _gauge(
        "bcd_reports_waiting",
        "Signed reports that the gateway has not acknowledged.",
        Sample(measured.reports_waiting),
    )
    yield _gauge(
        "bcd_session_connected",
        "1 while a session with the gateway stands, else 0.",
        Sample(int(measured.connected)),
    )
    yield _gauge(
        "bcd_certificate_seconds_left",
        "Until the node's certificate expires; negative afterwards.",
        Sample(measured.certificate_seconds_left),
    )


def _gauge(name: str, text: str, *samples: Sample) -> Family:
    return Family(name=name, kind=Kind.GAUGE, help=text, samples=samples)


def _by(label: str, counts: Mapping[str, int]) -> tuple[Sample, ...]:
    return tuple(Sample(count, {label: name}) for name, count in sorted(counts.items()))

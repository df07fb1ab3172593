"""Xids and readings become health, and health comes back."""

from dataclasses import replace

import pytest

from bcd.model.device import HealthState
from bcd.node.host.nvml.health import (
    FATAL_XIDS,
    IGNORED_XIDS,
    Policy,
    Trouble,
    health_of,
    record,
    settle,
    trouble_of,
)
from bcd.node.host.nvml.messages import Event, GpuReading
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import PERIODS, Mig, gpu


def reading(**how: object) -> dict[str, GpuReading]:
    return {"G": GpuReading(index=0, uuid="G", **how)}  # type: ignore[arg-type]


def test_an_xid_makes_its_gpu_unhealthy_and_no_other(host: MakeHost) -> None:
    made = host()
    with made.running() as running:
        number = running.gpus.fingerprint()
        made.event(1, 79)
        running.until(lambda: running.health()[gpu(1).uuid] == "unhealthy Xid 79")
        assert running.health()[gpu(0).uuid] == "healthy"
        assert running.gpus.fingerprint() != number


def test_an_xid_of_a_gpu_is_an_xid_of_all_its_instances(host: MakeHost) -> None:
    migs = (Mig(uuid="MIG-a", gi=1), Mig(uuid="MIG-b", gi=2))
    made = host(gpus=(gpu(0, mig=True, migs=migs), gpu(1)))
    with made.running() as running:
        made.event(0, 79)
        running.until(lambda: running.health()["MIG-b"] == "unhealthy Xid 79")
        assert running.health()["MIG-a"] == "unhealthy Xid 79"
        assert running.health()[gpu(1).uuid] == "healthy"


def test_an_xid_of_an_instance_leaves_its_neighbours_healthy(host: MakeHost) -> None:
    migs = (Mig(uuid="MIG-a", gi=1), Mig(uuid="MIG-b", gi=2))
    made = host(gpus=(gpu(0, mig=True, migs=migs),))
    with made.running() as running:
        made.event(0, 79, instance="2 0")
        running.until(lambda: running.health()["MIG-b"] == "unhealthy Xid 79")
        assert running.health()["MIG-a"] == "healthy"


def test_an_application_s_own_xid_changes_nothing(host: MakeHost) -> None:
    made = host()
    with made.running() as running:
        made.event(0, 31)
        made.taken()
        made.event(1, 79)
        running.until(lambda: "unhealthy Xid 79" in running.health().values())
        assert running.health()[gpu(0).uuid] == "healthy"


@pytest.mark.parametrize(
    ("xid", "state"),
    [
        *((xid, HealthState.UNHEALTHY) for xid in FATAL_XIDS),
        *((xid, HealthState.HEALTHY) for xid in IGNORED_XIDS),
        (94, HealthState.DEGRADED),
        (12_345, HealthState.DEGRADED),
    ],
)
def test_every_xid_has_a_meaning(xid: int, state: HealthState) -> None:
    assert Policy().judge(xid) is state


def test_settings_go_before_the_lists() -> None:
    policy = Policy(fatal=frozenset({31, 94}), ignored=frozenset({79}))
    assert policy.judge(79) is HealthState.HEALTHY
    assert policy.judge(31) is policy.judge(94) is HealthState.UNHEALTHY


@pytest.mark.parametrize(
    ("change", "health"),
    [
        ({"remap": (1, 0)}, "degraded row remapping waits for a reset of the GPU"),
        ({"remap": (1, 1)}, "unhealthy row remapping failed; the GPU has to be replaced"),
        ({"recovery": 1}, "unhealthy the driver asks for a reset of the GPU"),
        ({"recovery": 9}, "unhealthy the driver asks for recovery action 9"),
        ({"ecc": 7}, "unhealthy uncorrected ECC errors rise"),
    ],
)
def test_what_a_gpu_says_of_itself_is_its_health(
    host: MakeHost, change: dict[str, object], health: str
) -> None:
    made = host()
    with made.running() as running:
        made.set(gpus=(gpu(0, **change), gpu(1)))
        made.event(1, kind=0x8000)
        running.until(lambda: running.health()[gpu(0).uuid] == health)
        assert running.health()[gpu(1).uuid] == "healthy"


def test_a_gpu_is_healthy_again_with_a_clean_look_later(host: MakeHost) -> None:
    made = host()
    with made.running(replace(PERIODS, probe=0.3)) as running:
        made.event(0, 79)
        running.until(lambda: running.health()[gpu(0).uuid] == "unhealthy Xid 79")
        running.until(lambda: running.health()[gpu(0).uuid] == "healthy")


def test_trouble_stays_while_the_gpu_is_not_clean() -> None:
    trouble = trouble_of(Event(uuid="G", kind=8, data=79), Policy(), 100.0)
    assert trouble is not None
    clean = reading(uncorrected=3)
    for after in (
        reading(recovery=1),
        reading(remapped=(True, False)),
        reading(uncorrected=4),
        reading(error="GPU is lost"),
        {},
    ):
        assert trouble in settle([trouble], clean, after, 1_000.0, 60.0)
    assert settle([trouble], clean, clean, 159.0, 60.0) == (trouble,)
    assert settle([trouble], clean, clean, 160.0, 60.0) == ()


def test_a_counter_that_starts_anew_with_the_driver_is_no_error() -> None:
    assert settle([], reading(uncorrected=9), reading(uncorrected=0), 1.0, 60.0) == ()
    assert settle([], {}, reading(uncorrected=9), 1.0, 60.0) == ()


def test_a_counter_that_keeps_rising_is_one_trouble_with_one_text() -> None:
    troubles: tuple[Trouble, ...] = ()
    texts = set()
    for number in range(1, 90):
        before, after = reading(uncorrected=number - 1), reading(uncorrected=number)
        troubles = settle(troubles, before, after, float(number), 60.0)
        texts.add(health_of(after["G"], troubles).reason)
    assert texts == {"uncorrected ECC errors rise"}
    assert [trouble.since for trouble in troubles] == [89.0]


def test_a_storm_of_all_xids_is_a_few_troubles_and_hides_no_other_gpu() -> None:
    def event(uuid: str, xid: int, now: float) -> Trouble:
        made = trouble_of(Event(uuid=uuid, kind=8, data=xid), Policy(), now)
        assert made is not None
        return made

    troubles = record((), event("H", 79, 0.0))
    texts = []
    for xid in range(1_000, 1_500):
        troubles = record(troubles, event("G", xid, float(xid)))
        texts.append(health_of(reading()["G"], troubles).reason)
    assert set(texts) == {"Xid 1000"}
    assert len(troubles) < 20
    troubles = record(troubles, event("G", 79, 2_000.0))
    assert health_of(reading()["G"], troubles).reason == "Xid 79"
    for xid in sorted(FATAL_XIDS):
        troubles = record(troubles, event("G", xid, 3_000.0))
    assert health_of(reading()["G"], troubles).reason == "Xid 79"
    assert event("H", 79, 0.0) in troubles
    assert len(troubles) < 20


def test_an_event_of_an_unknown_gpu_concerns_them_all() -> None:
    trouble = trouble_of(Event(uuid="", kind=0x2, data=0), Policy(), 1.0)
    assert trouble is not None
    assert trouble.concerns("G", None, None)


@pytest.mark.parametrize("kind", [0x1, 0x100, 0x8000])
def test_events_that_are_no_trouble_leave_health_alone(kind: int) -> None:
    assert trouble_of(Event(uuid="G", kind=kind, data=0), Policy(), 1.0) is None

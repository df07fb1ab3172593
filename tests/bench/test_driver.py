"""What it costs to find a host's driver, and to write a spec with it."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from bcd.node import cdi
from bcd.node.hold import hold_of
from bcd.node.ports import GpuSnapshot
from tests.bench.measure import percentile, table
from tests.conftest import Rounds
from tests.node.host.driver.fake import LIBRARIES, VERSION, standing
from tests.node.memory import device
from tests.node.world import assignment, node_id

_OTHERS = 3_000  # files of other packages beside the driver's libraries


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Milliseconds of CPU time of each call."""
    found = []
    for _ in range(times):
        began = time.thread_time_ns()
        work()
        found.append((time.thread_time_ns() - began) / 1e6)
    return found


def test_the_scan_of_a_driver_and_a_spec_of_eight_gpus(tmp_path: Path, rounds: Rounds) -> None:
    times = rounds(30, 300)
    host = standing(tmp_path, gpus=8)
    for number in range(_OTHERS):
        host.put(f"{LIBRARIES}/libother{number}.so.1.2.{number}")
    host.settle()
    driver = host.open()
    devices = [device(f"GPU-{minor}") for minor in range(8)]
    hold = hold_of(assignment(1, *devices))

    def snapshot() -> GpuSnapshot:
        edits = {d.id: driver.gpu(minor, "") for minor, d in enumerate(devices)}
        return GpuSnapshot(edits=edits, common=driver.common(VERSION))

    gpus = snapshot()
    mounts = [mount.host_path for mount in gpus.common.mounts]
    [file] = cdi.render(hold, gpus, node_id(), annotate=True) or ()
    document = json.loads(file.content)

    def floor() -> None:
        os.listdir(host.root / LIBRARIES[1:])
        for path in mounts:
            os.stat(path)

    measured = {
        "floor: list the folder, stat what is mounted": timed(floor, times),
        "scan, nothing remembered": timed(lambda: host.open().common(VERSION), times),
        "edits of the host again": timed(lambda: driver.common(VERSION), times),
        "edits of the host and eight GPUs": timed(snapshot, times),
        "fingerprint": timed(driver.fingerprint, times),
        "check of every node and file": timed(lambda: driver.problem(gpus.common), times),
        "floor: json.dumps of the spec": timed(lambda: json.dumps(document, indent=2), times),
        "render and check a spec of eight GPUs": timed(
            lambda: cdi.render(hold, gpus, node_id(), annotate=True), times
        ),
    }
    floors = [percentile(values, 50) for name, values in measured.items() if "floor" in name]
    rows = []
    for name, values in measured.items():
        middle = percentile(values, 50)
        ratio = middle / (floors[1] if "spec" in name else floors[0])
        rows.append((name, f"{middle:6.2f} ms  {ratio:5.1f} x floor"))
    table(f"the driver's files: {len(mounts)} mounts, spec of {len(file.content)} bytes", rows)
    assert driver.problem(gpus.common) is None

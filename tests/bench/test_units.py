"""What a child that serves a burst of systemd's operations saves over one child per operation."""

import sys
import time
from pathlib import Path

from bcd.node.host.systemd.conversation import SystemdUnits
from bcd.node.host.systemd.process import Launch
from tests.bench.measure import percentile, table
from tests.conftest import Rounds


def test_an_operation_of_a_child_that_runs(tmp_path: Path, rounds: Rounds) -> None:
    command = (sys.executable, "-P", "-m", "tests.node.host.systemd.fake_child")
    units = SystemdUnits(tmp_path, launch=Launch((*command, str(tmp_path / "log"))))
    first: list[float] = []
    next_: list[float] = []
    for _ in range(rounds(10, 100)):
        units.close()
        for times in (first, next_):
            began = time.perf_counter()
            assert units.start("a") == ""
            times.append(time.perf_counter() - began)
    units.close()
    ratio = percentile(first, 50) / percentile(next_, 50)
    table(
        "the child that speaks to systemd, without systemd's own time",
        [
            ("the first operation, p50", f"{percentile(first, 50) * 1000:.1f} ms"),
            ("each further one, p50", f"{percentile(next_, 50) * 1000:.2f} ms"),
            ("ratio", f"{ratio:.0f}"),
        ],
    )
    assert ratio > 2

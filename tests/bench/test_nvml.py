"""What NVML costs in a child process, beside NVML called directly."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from bcd.node.host.nvml.supervisor import Periods
from tests.bench.measure import MIB, cpu_ns, percentile, rss_bytes, table
from tests.conftest import Rounds
from tests.nvml.captured import DGX_A100, matrix
from tests.nvml.stub import Host, Running, State, build

# The least that asks NVML: an interpreter, pynvml, and one call for each GPU.
_BARE = """
import os, sys, time, pynvml
pynvml.nvmlInit()
gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(8)]
rounds = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    for gpu in gpus:
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)
    rounds.append(time.perf_counter() - began)
print(sorted(rounds)[len(rounds) // 2], open("/proc/self/statm").read().split()[1])
"""


def bare(host: Host, rounds: int) -> tuple[float, float, int]:
    """Seconds of the whole and of one round over 8 GPUs, and resident bytes."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _BARE, str(rounds)],
        env=host.launch.environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    one, pages = done.stdout.split()
    return time.perf_counter() - began, float(one), int(pages) * os.sysconf("SC_PAGE_SIZE")


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def xid(host: Host, running: Running, number: int) -> float:
    """Seconds from an Xid to the wake."""
    before = running.wakes
    data = (79, 48, 62, 74)[number // 8 % 4]
    began = time.perf_counter()
    host.event(number % 8, data)
    running.until(lambda: running.wakes > before)
    return time.perf_counter() - began


def test_nvml_in_a_child(tmp_path: Path, rounds: Rounds) -> None:
    host = Host(tmp_path, build(tmp_path / "lib"), State(gpus=matrix(DGX_A100, switched=True)))
    starts, idle_s, deadline = rounds(3, 10), rounds(5, 60), rounds(1, 10)
    floor_s, _, floor_rss = bare(host, 1)
    _, floor_call_s, _ = bare(host, 200)
    answers = []
    for _ in range(starts):
        began = time.perf_counter()
        with host.running(Periods()):
            answers.append(time.perf_counter() - began)
    with host.running(replace(Periods(), deadline=deadline, ping=0.4 * deadline)) as running:
        [child] = psutil.Process().children()
        rss = rss_bytes(child.pid)
        ids = tuple(running.gpus.snapshot().edits)
        busy = [timed(lambda: running.gpus.busy(ids)) for _ in range(200)]
        xids = [xid(host, running, number) for number in range(30)]
        time.sleep(1)
        used = cpu_ns(child.pid)
        time.sleep(idle_s)
        idle = (cpu_ns(child.pid) - used) / 1e9 / idle_s
        host.set(rules=("hang *",))
        hang = timed(lambda: running.until(lambda: bool(running.gpus.snapshot().unavailable)))
    table(
        "8 GPUs with 12 links each, NVML in a child beside NVML called directly",
        [
            ("RSS", f"{rss / MIB:.1f} MiB, {rss / floor_rss:.2f} x bare"),
            ("first answer", f"{percentile(answers, 50) / floor_s:.2f} x bare start"),
            ("busy check of 8", f"{percentile(busy, 50) / floor_call_s:.2f} x bare calls"),
            ("Xid -> wake", f"p50 {percentile(xids, 50) * 1e3:.1f} ms, max {max(xids) * 1e3:.1f}"),
            (f"CPU over {idle_s} s", f"{idle * 100:.2f} % of a core"),
            ("hang -> verdict", f"{hang / deadline:.2f} deadlines"),
        ],
    )
    assert hang / deadline < 1.5
    assert rss / floor_rss < 2

"""A driver that hangs, does not fit, is not there or crashes costs fresh inventory only."""

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from bcd.model.device import HealthState
from bcd.model.report import FailureReason
from bcd.node.edits import DeviceEdits
from bcd.node.host.nvml.messages import Event
from bcd.node.host.nvml.process import MAX_ABANDONED
from bcd.node.ports import GpuSnapshot
from tests.node.host.driver.fake import elf
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import PERIODS, QUICK, SWITCHED, XID, Host, Running, State, eventually, gpu

CALLS = [
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetPersistenceMode",
    "*",
]


def hung(found: GpuSnapshot) -> bool:
    return any(condition.type == "NVMLUnresponsive" for condition in found.conditions)


def children(pid: int) -> list[psutil.Process]:
    """Those that run; one that ends meanwhile does not."""
    return [child for child in psutil.Process(pid).children() if _runs(child)]


def _runs(child: psutil.Process) -> bool:
    try:
        return bool(child.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("call", CALLS)
def test_a_hang_is_known_soon_keeps_what_was_seen_and_passes(host: MakeHost, call: str) -> None:
    made = host(gpus=(gpu(0, links=(SWITCHED,)), gpu(1, links=(SWITCHED,))))
    with made.running(replace(QUICK, probe=0.5)) as running:
        before = running.gpus.snapshot()
        made.set(rules=(f"hang {call}",))
        running.until(lambda: hung(running.gpus.snapshot()))
        found = running.gpus.snapshot()
        assert [d.id for d in found.devices] == [d.id for d in before.devices]
        assert {d.health.state for d in found.devices} == {HealthState.UNKNOWN}
        assert (found.edits, found.common) == (before.edits, before.common)
        assert found.driver_version == before.driver_version
        assert found.unavailable is not None
        assert found.unavailable.reason == FailureReason.DRIVER_UNAVAILABLE
        assert running.gpus.prepare((gpu(0).uuid,)) == found.unavailable
        made.set(rules=())
        running.until(lambda: running.gpus.snapshot() == before)


def test_the_message_names_the_call_that_hangs(host: MakeHost) -> None:
    made = host(rules=("hang nvmlDeviceGetHandleByIndex_v2",))
    with made.running(replace(QUICK, deadline=0.3)) as running:
        message = running.conditions()["NVMLUnresponsive"]
    assert "nvmlDeviceGetHandleByIndex of GPU 0 has not returned for 0.3 s" in message


def test_the_log_says_once_that_nvml_fails_and_that_it_is_back(
    host: MakeHost, caplog: pytest.LogCaptureFixture
) -> None:
    made = host(init=9)
    starts = made.root / "starts"
    child = shlex.join(made.launch.arguments)
    script = f"echo >> {shlex.quote(str(starts))}; exec {child}"
    made.launch = replace(made.launch, arguments=("/bin/sh", "-c", script))
    with caplog.at_level("INFO", logger="bcd.node.host.nvml"), made.running() as running:
        eventually(lambda: len(starts.read_text()) >= 3)
        made.set(init=0)
        running.until(lambda: running.gpus.snapshot().unavailable is None)
        made.event(0, 79)
        running.until(lambda: running.health()[gpu(0).uuid] == "unhealthy Xid 79")
    assert [record.getMessage() for record in caplog.records] == [
        "NVML cannot be used; holds stay, new ones fail",
        "NVML can be used again",
        "a GPU is in trouble",
    ]


def test_one_start_of_nvml_serves_every_look(host: MakeHost) -> None:
    """Drivers have hung in their start after thousands of them."""
    made = host()
    starts = made.root / "starts"
    child = shlex.join(made.launch.arguments)
    script = f"echo >> {shlex.quote(str(starts))}; exec {child}"
    made.launch = replace(made.launch, arguments=("/bin/sh", "-c", script))

    def shown(mem: int) -> bool:
        return running.gpus.snapshot().devices[0].memory_bytes >> 20 == mem

    with made.running(replace(PERIODS, probe=0.05)) as running:
        for mem in (100, 200, 300, 400):
            made.set(gpus=(gpu(0, mem=mem), gpu(1)))
            running.until(partial(shown, mem))
        assert len(starts.read_text()) == 1


def test_a_slow_start_of_many_gpus_is_no_hang(host: MakeHost) -> None:
    """Each call has the deadline to itself: all together take longer."""
    made = host(
        gpus=tuple(gpu(i) for i in range(6)), rules=("slow 300 nvmlDeviceGetHandleByIndex_v2",)
    )
    with made.running(replace(PERIODS, deadline=1.0)) as running:
        assert running.gpus.snapshot().unavailable is None
        assert len(running.gpus.snapshot().devices) == 6


def test_many_slow_calls_are_no_hang(host: MakeHost) -> None:
    links = tuple(f"gpu@{gpu(i).bus}" for i in range(6))
    made = host(gpus=tuple(gpu(i, links=links) for i in range(6)), rules=("slow 20 *",))
    with made.running(replace(PERIODS, deadline=1.0)) as running:
        assert running.conditions() == {}
        assert len(running.gpus.snapshot().devices) == 6


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetName", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetNvLinkState"]
)
def test_the_message_names_the_very_call_among_many_of_a_gpu(host: MakeHost, call: str) -> None:
    made = host(gpus=(gpu(0, links=(SWITCHED,)), gpu(1)), rules=(f"hang {call}",))
    with made.running(replace(QUICK, deadline=0.4)) as running:
        message = running.conditions()["NVMLUnresponsive"]
    assert f"{call} of GPU 0 has not returned for 0.4 s" in message


def test_nothing_blocks_while_the_driver_hangs(host: MakeHost) -> None:
    made = host(rules=("hang *",))
    gpus = made.make(replace(PERIODS, deadline=60.0))
    gpus.start(lambda: None)
    answered = threading.Event()

    def use() -> None:
        assert gpus.snapshot().waiting
        assert gpus.busy((gpu(0).uuid,)) == frozenset()
        assert gpus.prepare((gpu(0).uuid,)) is not None
        answered.set()

    threading.Thread(target=use).start()
    assert answered.wait(20)
    gpus.close()
    eventually(lambda: not children(os.getpid()))


def test_children_that_cannot_be_killed_are_few_and_never_waited_for(host: MakeHost) -> None:
    made = host()
    kept: list[subprocess.Popen[bytes]] = []
    healed = made.root / "healed"
    starts = shlex.join(made.launch.arguments)
    script = f"test -e {shlex.quote(str(healed))} || exec sleep 600; exec {starts}"
    made.launch = replace(made.launch, arguments=("/bin/sh", "-c", script), kill=kept.append)
    gpus = made.make(replace(PERIODS, init=1.0))
    running = Running(gpus)
    gpus.start(running.woken)
    try:
        running.until(
            lambda: any("cannot be ended" in c.message for c in gpus.snapshot().conditions)
        )
        assert len(kept) == MAX_ABANDONED
        healed.touch()
        kept.pop().kill()
        running.until(lambda: gpus.snapshot().unavailable is None)
    finally:
        began = time.monotonic()
        gpus.close()
        waited = time.monotonic() - began
        for process in kept:
            process.kill()
            process.wait()
    assert waited < PERIODS.deadline


def test_the_child_ends_when_the_daemon_is_killed_even_in_a_call(
    host: MakeHost, library: Path
) -> None:
    made = host(rules=("hang nvmlDeviceGetUUID",))
    code = (
        "import sys, time; from pathlib import Path; from tests.nvml.stub import Host, State\n"
        f"h = Host(Path({str(made.root)!r}), Path({str(library)!r}),"
        " State(rules=('hang nvmlDeviceGetUUID',)))\n"
        "h.make().start(lambda: None); print('up', flush=True); time.sleep(600)"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    assert daemon.stdout.readline() == b"up\n"
    eventually(lambda: bool(children(daemon.pid)))
    [child] = children(daemon.pid)
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    eventually(lambda: not _runs(child))


def test_a_child_that_dies_once_is_replaced_and_nobody_hears_of_it(host: MakeHost) -> None:
    made = host()
    with made.running() as running:
        [child] = children(os.getpid())
        wakes = running.wakes
        child.kill()
        eventually(lambda: bool(children(os.getpid())) and children(os.getpid()) != [child])
        made.event(1, 79)
        running.until(lambda: running.health()[gpu(1).uuid] == "unhealthy Xid 79")
        assert running.gpus.snapshot().unavailable is None
        assert running.gpus.snapshot().restarts == 1
        assert running.wakes == wakes + 1


def test_a_child_that_always_dies_is_said_so(host: MakeHost) -> None:
    made = host()
    made.launch = replace(made.launch, arguments=("/bin/false",))
    with made.running() as running:
        assert "ended by itself" in running.conditions()["NVMLFailed"]
        assert running.gpus.snapshot().devices == ()


def test_a_child_that_cannot_be_started_is_said_so(host: MakeHost) -> None:
    made = host()
    made.launch = replace(made.launch, arguments=("/no/such/python",))
    with made.running() as running:
        assert "No such file" in running.conditions()["NVMLFailed"]


@pytest.mark.parametrize("output", ["printf '\\377\\377\\377\\377'", "printf '\\0\\0\\0\\1\\0'"])
def test_a_child_that_talks_nonsense_is_ended(host: MakeHost, output: str) -> None:
    made = host()
    made.launch = replace(made.launch, arguments=("/bin/sh", "-c", f"{output}; sleep 60"))
    with made.running() as running:
        assert "no message" in running.conditions()["NVMLFailed"]


def test_a_flood_of_events_does_not_hide_a_hang(host: MakeHost) -> None:
    made = host()
    flood = (
        "import os; from bcd.node.host.nvml.messages import Event, Ready, frame\n"
        "os.write(1, frame(Ready(driver='1', nvml='1', cuda='', library='')))\n"
        "while True: os.write(1, frame(Event(uuid='', kind=1, data=0)))"
    )
    made.launch = replace(made.launch, arguments=(sys.executable, "-c", flood))
    with made.running(replace(QUICK, deadline=0.3)) as running:
        assert "has not returned" in running.conditions()["NVMLUnresponsive"]


@pytest.mark.parametrize(
    ("code", "condition", "words"),
    [
        (9, "DriverNotLoaded", "modprobe nvidia"),
        (18, "DriverLibraryMismatch", "the kernel module is 535.1.2, the library 550.54.15"),
        (4, "NVMLFailed", "as root"),
        (999, "NVMLFailed", "NVML error 999"),
        (998, "NVMLFailed", "NVML error 998"),
    ],
)
def test_a_driver_that_cannot_be_used_is_named_with_the_remedy(
    host: MakeHost, code: int, condition: str, words: str
) -> None:
    made = host(init=code)
    made.kernel_version("535.1.2")
    with made.running() as running:
        found = running.gpus.snapshot()
        assert words in running.conditions()[condition]
        assert found.devices == ()
        assert found.unavailable is not None
        made.set(init=0)
        running.until(lambda: running.gpus.snapshot().unavailable is None)
        assert len(running.gpus.snapshot().devices) == 2


def test_a_host_without_the_library_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with Host(tmp_path, tmp_path / "empty", State()).running() as running:
        assert "libnvidia-ml.so.1" in running.conditions()["DriverLibraryMissing"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello" * 99, "invalid ELF header"),
        (b"", "file too short"),
        (elf("libnvidia-ml.so.1", machine=8), "the loader does not take it"),
    ],
)
@pytest.mark.parametrize("below", [False, True])
def test_a_library_that_cannot_be_loaded_is_said_in_the_loaders_words(
    tmp_path: Path, content: bytes, words: str, below: bool
) -> None:
    folder = tmp_path / ("driver/usr/lib64" if below else "library")
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").write_bytes(content)
    made = Host(tmp_path, tmp_path / "empty" if below else folder, State())
    if below:
        made.launch = replace(made.launch, driver_root=str(tmp_path / "driver"))
    with made.running() as running:
        message = running.conditions()["DriverLibraryMissing"]
    assert "NVML cannot be loaded: " in message
    assert words in message
    assert str(folder) in message


@pytest.mark.parametrize("target", ["libnvidia-ml.so.550", "/usr/lib64/libnvidia-ml.so.550"])
def test_a_driver_below_a_root_of_its_own_is_loaded_from_there(
    tmp_path: Path, library: Path, target: str
) -> None:
    folder = tmp_path / "run/nvidia/driver/usr/lib64"
    folder.mkdir(parents=True)
    shutil.copy(library / "libnvidia-ml.so.1", folder / "libnvidia-ml.so.550")
    (folder / "libnvidia-ml.so.1").symlink_to(target)
    made = Host(tmp_path, tmp_path / "empty", State())
    with made.running() as running:
        assert running.gpus.snapshot().devices == ()
    made.launch = replace(made.launch, driver_root=str(tmp_path / "run/nvidia/driver"))
    with made.running() as running:
        assert len(running.gpus.snapshot().devices) == 2


def test_an_upgrade_under_a_running_daemon_costs_no_device(host: MakeHost) -> None:
    """First the library no longer fits, then the new module is loaded."""
    made = host()
    with made.running() as running:
        before = running.gpus.snapshot()
        made.set(init=18, driver="560.1.1", nvml="12.560.1.1")
        made.kernel_version("550.54.99")  # whatever touches it: the child is replaced
        running.until(lambda: "DriverLibraryMismatch" in running.conditions())
        assert "library 560.1.1" in running.conditions()["DriverLibraryMismatch"]
        assert running.gpus.snapshot().edits == before.edits
        made.set(init=0)
        made.kernel_version("560.1.1")
        running.until(lambda: running.gpus.snapshot().driver_version == "560.1.1")
        found = running.gpus.snapshot()
        assert [d.id for d in found.devices] == [d.id for d in before.devices]
        assert found.common.env == ("DRIVER=560.1.1",)


def test_a_pipe_in_the_place_of_the_library_is_a_hang_of_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    os.mkfifo(folder / "libnvidia-ml.so.1")
    with Host(tmp_path, folder, State()).running(replace(QUICK, init=2.0)) as running:
        message = running.conditions()["NVMLUnresponsive"]
    assert "nvmlInit has not returned for 2 s" in message


def test_a_library_that_is_replaced_gets_a_new_child(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").write_bytes((library / "libnvidia-ml.so.1").read_bytes())
    made = Host(tmp_path, folder, State())
    with made.running():
        [child] = children(os.getpid())
        fresh = folder / "new"
        fresh.write_bytes((library / "libnvidia-ml.so.1").read_bytes())
        fresh.rename(folder / "libnvidia-ml.so.1")
        eventually(lambda: bool(children(os.getpid())) and children(os.getpid()) != [child])
        eventually(lambda: len(psutil.Process().children()) == 1)  # nor is a zombie left


def test_no_descriptor_and_no_process_is_left_behind(host: MakeHost) -> None:
    made = host()
    fresh = replace(QUICK, deadline=0.3)
    with made.running(fresh):
        pass
    eventually(lambda: not children(os.getpid()))
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    with made.running(fresh) as running:
        for _ in range(4):
            made.set(rules=("hang *",))
            running.until(lambda: hung(running.gpus.snapshot()))
            made.set(rules=())
            running.until(lambda: running.gpus.snapshot().unavailable is None)
    eventually(lambda: not psutil.Process().children())
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_a_fault_of_the_driver_s_reader_is_not_the_end_of_looking(host: MakeHost) -> None:
    made = host()
    real = made.driver.common
    broken = [True]

    def common(driver_version: str) -> DeviceEdits:
        if broken:
            raise ZeroDivisionError
        return real(driver_version)

    made.driver.common = common  # type: ignore[method-assign]
    gpus = made.make()
    running = Running(gpus)
    gpus.start(running.woken)
    eventually(lambda: bool(children(os.getpid())))
    assert gpus.snapshot().waiting
    broken.clear()
    running.until(lambda: len(gpus.snapshot().devices) == 2)
    gpus.close()


def test_a_storm_of_events_is_few_readings(host: MakeHost) -> None:
    made = host()
    with made.running(replace(PERIODS, gap=30.0)) as running:
        wakes = running.wakes
        for _ in range(20):
            made.event(0, 79)
            made.taken()
        running.until(lambda: running.health()[gpu(0).uuid] == "unhealthy Xid 79")
        made.set(gpus=(gpu(0),))
        made.event(1, 48)
        running.until(lambda: running.health()[gpu(1).uuid] == "unhealthy Xid 48")
        assert len(running.gpus.snapshot().devices) == 2  # no reading yet
        assert running.wakes == wakes + 2  # one for each kind of trouble


def test_a_gpu_that_is_missing_gets_nvml_started_anew_now_and_then(host: MakeHost) -> None:
    made = host(gpus=(gpu(0), gpu(1, gone=True)))
    with made.running(replace(PERIODS, probe=0.05)) as running:
        [child] = children(os.getpid())
        eventually(lambda: bool(children(os.getpid())) and child not in children(os.getpid()))
        assert [d.id for d in running.gpus.snapshot().devices] == [gpu(0).uuid]
        assert running.gpus.snapshot().unavailable is None


def test_an_event_before_the_first_reading_does_not_empty_the_host(host: MakeHost) -> None:
    gpus = host().make()
    gpus.event(Event(uuid=gpu(0).uuid, kind=XID, data=79))
    assert gpus.snapshot().waiting
    failed = gpus.prepare((gpu(0).uuid,))
    assert failed is not None
    assert failed.reason == FailureReason.DRIVER_UNAVAILABLE
    gpus.close()


def test_closing_twice_or_before_the_start_is_fine(host: MakeHost) -> None:
    gpus = host().make()
    gpus.close()
    gpus.close()

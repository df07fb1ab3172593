"""The operator's commands on a real systemd: exec in a slice, holds, and what the doctor sees."""

import json
import subprocess
import sys
from pathlib import Path

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.node import hold as holds
from bcd.node.cdi import render
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.ports import GpuSnapshot
from tests.vm.guest.host import CDI, MIB, Hold, made, run, wait_for

_NODE = "node_" + "0" * 26
_GPU = "GPU-1"
_ENV = Path("/run/bcd/allocations")
_CONFIG = Path("/run/bcd/bcd.toml")
_SETTINGS = '[gateway]\naddress = "127.0.0.1:1"\nenroll_address = "127.0.0.1:1"\n'


def _bcd(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "bcd.cli.bcd", words[0], "--config", str(_CONFIG)]
    return subprocess.run(
        [*command, *words[1:]], capture_output=True, text=True, check=False, timeout=120
    )


def _on_disk(hold: Hold, **limits: int | str) -> None:
    """The hold's spec and env file, as a daemon leaves them."""
    _ENV.mkdir(parents=True, exist_ok=True)
    _CONFIG.write_text(_SETTINGS)
    device = AssignedDevice(_GPU, DeviceClass.GPU)
    of_disk = holds.Hold(hold.id, (device,), made(**limits))
    nodes = DeviceEdits(nodes=(DeviceNode("/dev/null", "/dev/null"),))
    CDI.mkdir(exist_ok=True)
    for spec in render(of_disk, GpuSnapshot(edits={_GPU: nodes}), _NODE, annotate=True) or ():
        (CDI / spec.name).write_bytes(spec.content)
    (_ENV / f"{hold.id}.env").write_bytes(holds.env_file(of_disk, _NODE))


def a_command_runs_in_its_holds_slice_and_its_code_comes_back(hold: Hold) -> None:
    hold.ensure(cpu_millis=1000, memory_bytes=64 * MIB)
    _on_disk(hold, cpu_millis=1000, memory_bytes=64 * MIB)
    show = "cat /proc/self/cgroup; echo $CUDA_VISIBLE_DEVICES; exit 7"
    done = _bcd("exec", str(hold.id), "--", "sh", "-c", show)
    assert done.returncode == 7, done
    place, gpus = done.stdout.splitlines()
    assert f"/{hold.slice}/" in place
    assert gpus == _GPU
    done = _bcd("exec", str(hold.id), "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode in (-15, 143), done


def a_command_is_refused_where_it_would_run_unlimited(hold: Hold) -> None:
    _on_disk(hold, cpu_millis=1000, memory_bytes=64 * MIB)
    done = _bcd("exec", str(hold.id), "--", "true")
    assert (done.returncode, "is not active" in done.stderr) == (1, True), done
    # A workload manager brings the slice into being by itself: it has no CPU limit then.
    with subprocess.Popen(["systemd-run", "--scope", f"--slice={hold.slice}", "sleep", "60"]) as it:
        wait_for("the slice", (hold.folder / "memory.max").exists)
        done = _bcd("exec", str(hold.id), "--", "true")
        it.terminate()
    assert (done.returncode, "would run unlimited" in done.stderr) == (1, True), done


def who_is_left_in_a_slice_is_named(hold: Hold) -> None:
    hold.ensure(memory_bytes=64 * MIB)
    _on_disk(hold, memory_bytes=64 * MIB)
    with subprocess.Popen(["systemd-run", "--scope", f"--slice={hold.slice}", "sleep", "60"]) as it:
        wait_for("the process", lambda: hold.file("cgroup.events").startswith("populated 1"))
        documents = json.loads(_bcd("holds", "-o", "json").stdout)["holds"]
        it.terminate()
    [mine] = [each for each in documents if each["allocationId"] == str(hold.id)]
    assert mine["state"] == "bound", mine
    assert "sleep" in [each["command"] for each in mine["slice"]["processes"]]


def the_doctor_sees_this_hosts_systemd(hold: Hold) -> None:
    _on_disk(hold)
    found = {
        each["name"]: each for each in json.loads(_bcd("doctor", "-o", "json").stdout)["findings"]
    }
    for name in ("init", "cgroup", "controllers", "pystemd", "fail-closed", "fail-closed-loaded"):
        assert found[name]["level"] == "ok", found[name]
    for name in ("driver", "daemon", "enrolled"):
        assert found[name]["level"] == "failed", found[name]
    # What a person overrides is found out.
    override = Path("/etc/systemd/system/bcd-alloc-.slice.d/90-mine.conf")
    override.parent.mkdir(parents=True, exist_ok=True)
    override.write_text("[Slice]\nMemoryMax=infinity\n")
    try:
        run("systemctl", "daemon-reload")
        document = json.loads(_bcd("doctor", "-o", "json").stdout)
    finally:
        override.unlink()
        run("systemctl", "daemon-reload")
    [loaded] = [each for each in document["findings"] if each["name"] == "fail-closed-loaded"]
    assert (loaded["level"], "systemctl cat" in loaded["fix"]) == ("failed", True), loaded


TOOLS = (
    a_command_runs_in_its_holds_slice_and_its_code_comes_back,
    a_command_is_refused_where_it_would_run_unlimited,
    who_is_left_in_a_slice_is_named,
    the_doctor_sees_this_hosts_systemd,
)

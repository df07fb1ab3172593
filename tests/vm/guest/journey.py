"""An operator's host, from ``apt install`` to a reboot and the removal of the package.

Each scenario goes on where the one before left the host; one that fails does not stop the rest.
``python3 -m tests.vm.guest.journey RESULTS ANNOTATIONS`` as root in that host, once per boot.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bcd.model.assignment import Limits, slice_name
from bcd.model.ids import AllocationId
from bcd.model.report import Bound, Failed, FailureReason, Released
from tests.vm.guest import gpu_host
from tests.vm.guest.gpu_host import CDI, ENV, IMAGE, NODE, Gateway, eventually, hold
from tests.vm.guest.host import MIB, alloc_id, journal, run, shown

GIB = 1 << 30
LIMITS = Limits(cpu_millis=1500, memory_bytes=256 * MIB, hugepages_1gi=1, cpus="2-3", mems="1")
LIMITED, PLAIN, LATE = hold(1, 0, limits=LIMITS), hold(2, 1), hold(3, 2, limits=LIMITS)
ONE, TWO, THREE = (entry.allocation_id for entry in (LIMITED, PLAIN, LATE))
_DEADLINE = gpu_host.WAIT_S


class Host:
    """What the scenarios of one boot share."""

    def __init__(self, results: Path, annotations: str) -> None:
        self.results = results
        self.annotations = annotations
        self.gateway: Gateway | None = None

    @property
    def front(self) -> Gateway:
        """The gateway; starts with the first use."""
        self.gateway = self.gateway or Gateway()
        return self.gateway

    def released(self, id_: AllocationId) -> None:
        """Wait until nothing of a hold is left."""
        eventually("the release", lambda: bool(self.front.heard(Released, id_)))
        eventually("its slice's end", lambda: not _slice(id_).exists())


# Installation.


def the_package_installs_with_apt_and_without_a_network(host: Host) -> None:
    log = (host.results / "apt.log").read_text()
    assert (host.results / "installed").read_text().strip() == "0", log
    assert run("bcd", "--version").startswith("bcd ")
    assert run("systemctl", "is-active", "bcd.service", check=False).strip() != "active"


def the_host_enrols_with_a_join_token(host: Host) -> None:
    gpu_host.make_hardware()
    gpu_host.configure(host.front, host.annotations)
    token = Path("/root/join-token")
    token.write_text(host.front.fake.token(NODE))
    token.chmod(0o600)
    assert f"node/{NODE}" in run("bcd", "enroll", "--token-file", str(token))


def the_service_starts_and_tells_its_inventory(host: Host) -> None:
    run("systemctl", "enable", "--now", "bcd.service")
    assert run("systemctl", "is-active", "bcd.service").strip() == "active"
    eventually("the inventory", lambda: _devices(host) == 4)
    hello = host.front.fake.hellos[-1]
    assert set(hello.capabilities) == {"attested-reports", "devices.limits"}
    devices = host.front.fake.inventories[NODE].devices
    assert [device.id for device in devices] == [gpu_host.gpu_uuid(n) for n in range(4)]


def _devices(host: Host) -> int:
    found = host.front.fake.inventories.get(NODE)
    return len(found.devices) if found is not None else 0


def the_doctor_finds_nothing_wrong(host: Host) -> None:
    run("podman", "import", "-q", "/payload/busybox.tar", IMAGE)
    assert gpu_host.red() == {}


# Holds.


def a_hold_binds_with_its_limits_under_the_nodes_signature(host: Host) -> None:
    host.front.bind(LIMITED, PLAIN)
    [report] = host.front.heard(Bound, ONE)
    outcome = report.outcome
    assert isinstance(outcome, Bound)
    assert outcome.cdi_devices == (f"bcd.dev/gpu={gpu_host.gpu_uuid(0)}",)
    assert outcome.cgroup_parent == slice_name(ONE)
    assert Path(outcome.env_file).read_text() == gpu_host.on_disk(ONE)["env"]
    assert host.front.fake.forged == 0
    assert gpu_host.limits_of(ONE) == {
        "cpu.max": "150000 100000",
        "memory.max": str(256 * MIB),
        "memory.swap.max": "0",
        "cpuset.cpus": "2-3",
        "cpuset.mems": "1",
        "hugetlb.1GB.max": str(GIB),
        "hugetlb.1GB.rsvd.max": str(GIB),
        "hugetlb.2MB.max": "0",
    }


def a_container_in_the_slice_has_the_holds_devices_and_no_others(host: Host) -> None:
    code, said = gpu_host.podman(ONE, "sh", "-c", "env; ls /dev; cat /dev/nvidia0")
    assert "BCD_ALLOCATION_ID=" + ONE in said
    assert "NVIDIA_VISIBLE_DEVICES=void" in said
    words = said.split()
    assert {"nvidia0", "nvidiactl", "nvidia-uvm"} <= set(words)
    assert "nvidia1" not in words
    # No driver answers the node; the kernel's answer is not that of a device that is forbidden.
    assert code != 0
    assert "No such device or address" in said
    assert "not permitted" not in said


def a_container_runs_on_the_holds_cpus_and_memory_node(host: Host) -> None:
    code, said = gpu_host.podman(ONE, "cat", "/proc/self/status")
    assert code == 0, said
    assert "Cpus_allowed_list:\t2-3" in said
    assert "Mems_allowed_list:\t1" in said


def a_container_beyond_the_holds_memory_is_killed(host: Host) -> None:
    code, said = gpu_host.podman(ONE, "dd", "if=/dev/zero", "of=/dev/null", "bs=400M", "count=1")
    assert code == 137, said
    assert "oom_kill 1" in gpu_host.control(ONE, "memory.events").splitlines()


def a_container_beyond_the_holds_huge_pages_is_refused(host: Host) -> None:
    assert gpu_host.podman(ONE, "huge", "1", "30") == (0, "1\n")
    assert gpu_host.podman(ONE, "huge", "2", "30") == (12, "1\n")
    assert gpu_host.podman(ONE, "huge", "1", "21") == (12, "0\n")


def bcd_exec_runs_in_the_hold_and_passes_the_exit_code_on(host: Host) -> None:
    script = "echo $CUDA_VISIBLE_DEVICES; grep Cpus_allowed_list /proc/self/status; exit 7"
    done = subprocess.run(
        ["bcd", "exec", ONE, "--", "sh", "-c", script],
        capture_output=True, text=True, check=False, timeout=_DEADLINE,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{gpu_host.gpu_uuid(0)}\nCpus_allowed_list:\t2-3\n"


def an_assignment_beyond_the_host_is_refused_and_the_rest_stands(host: Host) -> None:
    greedy = hold(9, 3, limits=Limits(cpu_millis=1000, memory_bytes=64 * GIB, hugepages_1gi=0))
    host.front.want(LIMITED, PLAIN, greedy)
    eventually("the refusal", lambda: bool(host.front.heard(Failed, greedy.allocation_id)))
    [report] = host.front.heard(Failed, greedy.allocation_id)
    assert isinstance(report.outcome, Failed)
    assert report.outcome.reason == FailureReason.RESOURCES_EXHAUSTED
    host.front.want(LIMITED, PLAIN)
    assert gpu_host.on_disk(ONE)


# What happens to a host.


def a_daemon_reload_changes_nothing_for_what_runs(host: Host) -> None:
    code, said = gpu_host.podman(ONE, "sleep", "1000", detached="worker")
    assert code == 0, said
    before = gpu_host.limits_of(ONE)
    run("systemctl", "daemon-reload")
    assert gpu_host.limits_of(ONE) == before
    done = subprocess.run(
        ["podman", "exec", "worker", "cat", "/dev/nvidia0"],
        capture_output=True, text=True, check=False, timeout=_DEADLINE,
    )  # fmt: skip
    assert "No such device or address" in done.stderr


def a_killed_daemon_comes_back_and_finds_everything_as_it_was(host: Host) -> None:
    before = (_holds(), gpu_host.limits_of(ONE), _worker())
    killed, sessions = gpu_host.main_pid(), len(host.front.fake.hellos)
    os.kill(int(killed), 9)
    eventually("a new daemon", lambda: gpu_host.main_pid() not in (killed, "0"))
    eventually("its session", lambda: len(host.front.fake.hellos) > sessions)
    assert (_holds(), gpu_host.limits_of(ONE), _worker()) == before


def an_upgrade_keeps_holds_and_workloads(host: Host) -> None:
    before = (_holds(), gpu_host.limits_of(ONE), _worker())
    old, sessions = gpu_host.main_pid(), len(host.front.fake.hellos)
    run("apt-get", "install", "-y", "/payload/newer.deb")
    eventually("the new daemon's session", lambda: len(host.front.fake.hellos) > sessions)
    assert gpu_host.main_pid() != old
    assert (_holds(), gpu_host.limits_of(ONE), _worker()) == before


def _holds() -> list[dict[str, str]]:
    return [gpu_host.on_disk(id_) for id_ in (ONE, TWO)]


def _worker() -> str:
    return run("podman", "inspect", "-f", "{{.State.Pid}} {{.State.StartedAt}}", "worker")


def what_a_person_changes_is_put_right(host: Host) -> None:
    before = (_holds(), gpu_host.limits_of(ONE))
    (CDI / f"bcd-{TWO}.json").unlink()
    (ENV / f"{ONE}.env").write_text("X=1\n")
    spec = CDI / f"bcd-{ONE}.json"
    spec.write_text(spec.read_text().replace('"rw"', '"r"'))
    run("systemctl", "set-property", "--runtime", slice_name(ONE), "MemoryMax=infinity")
    eventually("the repair", lambda: (_quietly(_holds), gpu_host.limits_of(ONE)) == before)


def _quietly(look: Callable[[], list[dict[str, str]]]) -> list[dict[str, str]]:
    try:
        return look()
    except FileNotFoundError:
        return []


def a_release_under_a_workload_ends_the_hold_and_not_the_workload(host: Host) -> None:
    host.front.want(PLAIN)
    eventually("the release", lambda: bool(host.front.heard(Released, ONE)))
    [report] = host.front.heard(Released, ONE)
    assert report.outcome == Released(slice_empty=False)
    assert not (CDI / f"bcd-{ONE}.json").exists()
    assert not (ENV / f"{ONE}.env").exists()
    assert "running" in run("podman", "inspect", "-f", "{{.State.Status}}", "worker")
    eventually("a word about it", lambda: "LingeringWorkload" in _conditions())
    run("podman", "rm", "-f", "-t", "0", "worker")
    eventually("the slice's end", lambda: not _slice(ONE).exists())
    eventually("no more words", lambda: "LingeringWorkload" not in _conditions())


def _conditions() -> list[str]:
    return [condition["type"] for condition in gpu_host.status()["conditions"]]


def _slice(id_: AllocationId) -> Path:
    return Path("/sys/fs/cgroup/bcd.slice/bcd-alloc.slice", slice_name(id_))


def each_fault_turns_its_own_check_red(host: Host) -> None:
    faults: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "cdi-folder": (lambda: CDI.chmod(0o700), lambda: CDI.chmod(0o755)),
        "foreign-specs": (
            lambda: Path("/etc/cdi/other.json").write_text(
                json.dumps({"cdiVersion": "0.5.0", "kind": "bcd.dev/gpu", "devices": [
                    {"name": gpu_host.gpu_uuid(3), "containerEdits": {"env": ["X=1"]}}]})
            ),
            Path("/etc/cdi/other.json").unlink,
        ),
        "char-links": (
            lambda: Path("/dev/char/60:1").unlink(),
            lambda: Path("/dev/char/60:1").symlink_to("../nvidia1"),
        ),
        "device-nodes": (
            lambda: Path("/dev/nvidia3").rename("/dev/away"),
            lambda: Path("/dev/away").rename("/dev/nvidia3"),
        ),
    }  # fmt: skip
    before = gpu_host.wrong()
    for name, (break_it, mend) in faults.items():
        break_it()
        eventually(f"{name} to turn", lambda: gpu_host.wrong() != before)
        assert gpu_host.wrong() - before == {name}, gpu_host.doctor()
        mend()
        eventually(f"{name} to turn back", lambda: gpu_host.wrong() == before)


def binding_takes_as_long_as_it_takes(host: Host) -> None:
    """Not a limit: the figures beside the time of one durable write and one rename."""
    floor, took, used = [], [], []
    for number in range(20, 30):
        began = time.monotonic()
        path = CDI / ".floor"
        path.write_text("x" * 2000)
        with path.open() as file:
            os.fsync(file.fileno())
        path.rename(CDI / ".floor2")
        floor.append(time.monotonic() - began)
        cpu, began = _service_cpu_s(), time.monotonic()
        host.front.bind(hold(number, 3, limits=LIMITS))
        took.append(time.monotonic() - began)
        used.append(_service_cpu_s() - cpu)
        host.front.want(PLAIN)
        host.released(alloc_id(number))
    (CDI / ".floor2").unlink()
    middle, least, cost = (1000 * statistics.median(found) for found in (took, floor, used))
    print(
        f"bind with limits, {len(took)} times: p50 {middle:.0f} ms,"
        f" worst {max(took) * 1000:.0f} ms, CPU of the service {cost:.0f} ms; floor {least:.1f} ms"
    )


def _service_cpu_s() -> float:
    """CPU time of the daemon and its children, as its control group counts it."""
    text = Path("/sys/fs/cgroup/system.slice/bcd.service/cpu.stat").read_text()
    return int(text.split("usage_usec", 1)[1].split()[0]) / 1e6


# The reboot.


_EARLY = "early.service"
# As small as can be, so that what fails is not its own size. What stays is there when the daemon
# comes. Each step that fails is the unit's failure.
_EARLY_UNIT = """\
[Unit]
Before=bcd.service

[Service]
Type=oneshot
RemainAfterExit=yes
Slice={slice}
WorkingDirectory={folder}
ExecStart=/bin/sh -ec 'read -r limit <memory.max; echo $$limit >/results/early; sleep 1000 &'

[Install]
WantedBy=basic.target
"""


def before_the_reboot(host: Host) -> None:
    """Two holds stand, the gateway goes away for good, and a workload starts first at boot.

    So does a socket of podman's, which Debian 13 does not start by itself.
    """
    host.front.bind(LATE)
    unit = _EARLY_UNIT.format(slice=slice_name(THREE), folder=_slice(THREE))
    Path("/etc/systemd/system", _EARLY).write_text(unit)
    run("systemctl", "enable", _EARLY, "podman.socket")
    # The host boots into the scenarios and not into multi-user.target.
    run("systemctl", "add-wants", "scenarios.target", "bcd.service")
    assert host.gateway is not None
    host.gateway.do(host.gateway.fake.stop())
    kept = {id_: gpu_host.on_disk(id_) for id_ in (TWO, THREE)}
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    document = {"kept": kept, "limits": gpu_host.limits_of(THREE), "boot": boot}
    (host.results / "before.json").write_text(json.dumps(document))


def _before(host: Host) -> Any:
    return json.loads((host.results / "before.json").read_text())


def systemd_leaves_nothing_out_at_boot(host: Host) -> None:
    """Units that wait for each other in a circle: one of them is not started, by chance which."""
    assert Path("/proc/sys/kernel/random/boot_id").read_text() != _before(host)["boot"]
    said = run("journalctl", "-b", "-o", "cat").splitlines()
    assert any(line.startswith("Linux version") for line in said), "the boot's beginning is lost"
    circles = [line for line in said if "ordering cycle" in line]
    assert not circles, circles
    assert shown("ActiveState", "podman.socket") == "active"


def a_workload_that_starts_before_the_daemon_is_held_down(host: Host) -> None:
    eventually("the early workload's start", lambda: not shown("Job", _EARLY))
    # A daemon's start waits for it, so that it is over now, or was never asked for.
    assert shown("ActiveState", _EARLY) == "active", _last_words(_EARLY, THREE)
    seen = (host.results / "early").read_text()
    assert seen == f"{16 * MIB}\n", _last_words(_EARLY, THREE)


def _last_words(unit: str, id_: AllocationId) -> str:
    """Why a workload is not there: systemd's word, its own, and what its slice refused it."""
    said = [run("systemctl", "status", "-l", "-n", "30", unit, check=False)]
    for name in ("memory.max", "memory.peak", "memory.events", "pids.max", "pids.events"):
        path = _slice(id_) / name
        said.append(f"{name}: {path.read_text().split() if path.exists() else 'no such file'}")
    return "\n".join(said)


def every_hold_stands_as_before_without_a_gateway(host: Host) -> None:
    eventually("the daemon", lambda: _active())
    before = _before(host)
    assert {id_: gpu_host.on_disk(AllocationId(id_)) for id_ in before["kept"]} == before["kept"]
    assert gpu_host.limits_of(THREE) == before["limits"]
    assert "populated 1" in gpu_host.control(THREE, "cgroup.events"), _last_words(_EARLY, THREE)
    assert not gpu_host.status()["gateway"]["connected"]


def _active() -> bool:
    return run("systemctl", "is-active", "bcd.service", check=False).strip() == "active"


def a_container_starts_in_a_hold_of_before(host: Host) -> None:
    code, said = gpu_host.podman(THREE, "sh", "-c", "ls /dev; cat /proc/self/status")
    assert code == 0, said
    assert "nvidia2" in said.split()
    assert "Cpus_allowed_list:\t2-3" in said


def the_removal_of_the_package_keeps_every_hold(host: Host) -> None:
    before = _before(host)
    run("apt-get", "remove", "-y", "bcd")
    assert {id_: gpu_host.on_disk(AllocationId(id_)) for id_ in before["kept"]} == before["kept"]
    assert gpu_host.limits_of(THREE)["memory.max"] == before["limits"]["memory.max"]


Scenario = Callable[[Host], None]
SCENARIOS: tuple[Scenario, ...] = (
    the_package_installs_with_apt_and_without_a_network,
    the_host_enrols_with_a_join_token,
    the_service_starts_and_tells_its_inventory,
    the_doctor_finds_nothing_wrong,
    a_hold_binds_with_its_limits_under_the_nodes_signature,
    a_container_in_the_slice_has_the_holds_devices_and_no_others,
    a_container_runs_on_the_holds_cpus_and_memory_node,
    a_container_beyond_the_holds_memory_is_killed,
    a_container_beyond_the_holds_huge_pages_is_refused,
    bcd_exec_runs_in_the_hold_and_passes_the_exit_code_on,
    an_assignment_beyond_the_host_is_refused_and_the_rest_stands,
    a_daemon_reload_changes_nothing_for_what_runs,
    a_killed_daemon_comes_back_and_finds_everything_as_it_was,
    an_upgrade_keeps_holds_and_workloads,
    what_a_person_changes_is_put_right,
    a_release_under_a_workload_ends_the_hold_and_not_the_workload,
    each_fault_turns_its_own_check_red,
    binding_takes_as_long_as_it_takes,
    before_the_reboot,
)
AFTER_REBOOT: tuple[Scenario, ...] = (
    systemd_leaves_nothing_out_at_boot,
    a_workload_that_starts_before_the_daemon_is_held_down,
    every_hold_stands_as_before_without_a_gateway,
    a_container_starts_in_a_hold_of_before,
    the_removal_of_the_package_keeps_every_hold,
)


def main() -> None:
    """The first or the second boot's scenarios, as the folder says."""
    results, annotations = Path(sys.argv[1]), sys.argv[2]
    target = results / "outcomes.json"
    found: dict[str, dict[str, Any]] = {}
    if not target.exists():
        _run_all(SCENARIOS, Host(results, annotations), target, found)
        os.sync()
        run("systemctl", "reboot", "-f", "-f", check=False)
        time.sleep(60)  # it is under way
        sys.exit("the host did not reboot")
    found = json.loads(target.read_text())
    gpu_host.appear()
    _run_all(AFTER_REBOOT, Host(results, annotations), target, found)


def _run_all(
    scenarios: tuple[Scenario, ...], host: Host, target: Path, found: dict[str, dict[str, Any]]
) -> None:
    for scenario in scenarios:
        name, problem = scenario.__name__, ""
        began, since = time.monotonic(), time.time()
        try:
            scenario(host)
        except Exception:
            problem = f"{traceback.format_exc()}\n{_daemons_journal()}\n{journal(since)}"
        seconds = round(time.monotonic() - began, 1)
        print(f"{'FAILED' if problem else 'ok':6} {seconds:6.1f} s  {name}", flush=True)
        if problem:
            print(problem, flush=True)
        found[name] = {"problem": problem, "seconds": seconds}
        target.write_text(json.dumps(found, indent=1))


def _daemons_journal() -> str:
    return run("journalctl", "-u", "bcd.service", "-n", "30", "-o", "cat", check=False)


if __name__ == "__main__":
    main()

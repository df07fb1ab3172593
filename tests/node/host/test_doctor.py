"""The doctor: a healthy host has nothing wrong, and each fault turns exactly its check red."""

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bcd.model.device import DeviceClass
from bcd.model.report import Failed
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.node.host.doctor import runtimes, system
from bcd.node.host.doctor.examine import CHECKS, examine
from bcd.node.host.doctor.finding import Answer, Finding, Level
from bcd.node.host.doctor.patient import NvmlAnswer, Patient, dial, free_bytes, told
from bcd.node.identity import save_identity
from bcd.node.settings import CdiSettings
from bcd.signing.certificates import Role
from tests.authority import Authority
from tests.closed import ordinary_user
from tests.node.host.made_host import VERSION, MadeHost
from tests.node.world import limits, node_id

RED = (Level.FAILED, Level.WARNING)
Fault = Callable[[MadeHost], object]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    return MadeHost(tmp_path / "root")


def findings(host: MadeHost) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(host.patient())}


def change(**changes: object) -> Fault:
    return lambda host: host.changes.update(changes)


def unit(**changes: str) -> Fault:
    return lambda host: host.unit.update(changes)


def condition(name: str) -> Fault:
    return lambda host: host.told(conditions={name: "it is so; do this"})


def gateway_away(host: MadeHost) -> None:
    host.changes["dial"] = lambda _: "Connection refused"
    host.told(connected=False, problem="away")


def persistence_off(host: MadeHost) -> None:
    host.remove("run/nvidia-persistenced/socket")
    host.told(conditions={"PersistenceModeOff": "off"})


def other_library(host: MadeHost) -> None:
    for name in ("libcuda", "libnvidia-ml"):
        host.remove(f"usr/lib/x86_64-linux-gnu/{name}.so.{VERSION}")
    host.write("usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03", "")


def lingering(host: MadeHost) -> None:
    host.spec(1).unlink()
    host.env(1).unlink()
    host.run_in_slice(1, (77, "python3"))


def mig_with_podman_4(host: MadeHost) -> None:
    host.program("podman", "echo podman version 4.9.3")
    host.told(classes=frozenset({"gpu", "gpu.mig"}))


FAULTS: list[tuple[str, Level, Fault, str]] = [
    ("state-folder", Level.FAILED, lambda h: h.paths.state.chmod(0o755), "chmod 700"),
    ("state-room", Level.FAILED, change(free_bytes=lambda _: 1 << 20), "df -hi"),
    ("state-room", Level.WARNING, change(free_bytes=lambda _: 1 << 29), "df -hi"),
    ("key", Level.FAILED, lambda h: (h.paths.state / "credentials.pem").chmod(0o644), "chmod 600"),
    (
        "enrolled",
        Level.FAILED,
        lambda h: (h.paths.state / "credentials.pem").unlink(),
        "bcd enroll",
    ),
    (
        "enrolled",
        Level.FAILED,
        lambda h: (h.paths.state / "credentials.pem").write_bytes(b"rubbish"),
        "bcd enroll",
    ),
    (
        "enrolled",
        Level.FAILED,
        lambda h: save_identity(h.paths.state, Authority().issue(Role.GATEWAY, "g")),
        "bcd enroll",
    ),
    ("certificate", Level.WARNING, change(now_ms=now_ms() + 20 * HOUR_MS), "bcd status"),
    ("certificate", Level.FAILED, change(now_ms=now_ms() + 30 * HOUR_MS), "restart bcd"),
    ("certificate", Level.FAILED, change(now_ms=now_ms() + 30 * DAY_MS), "bcd enroll"),
    ("clock", Level.FAILED, change(now_ms=now_ms() - 2 * HOUR_MS), "timedatectl"),
    ("clock", Level.FAILED, change(now_ms=now_ms() - HOUR_MS // 2), "timedatectl"),
    ("cdi-folder", Level.FAILED, lambda h: h.paths.cdi.chmod(0o700), "chmod 755"),
    (
        "foreign-specs",
        Level.FAILED,
        lambda h: h.write("etc/cdi/.mine.yaml", "kind: bcd.dev/gpu\n"),
        "mv ",
    ),
    (
        "foreign-specs",
        Level.FAILED,
        lambda h: h.write(f"var/run/cdi/{h.spec(1).name}", h.spec(1).read_text()),
        "mv ",
    ),
    ("env-folder", Level.FAILED, lambda h: h.paths.env.chmod(0o777), "chmod 755"),
    ("holds", Level.FAILED, lambda h: h.env(1).unlink(), "restart bcd"),
    ("holds", Level.FAILED, lambda h: h.env(1).write_text("BCD_ALLOCATION_ID=x\n"), "restart"),
    ("holds", Level.FAILED, lambda h: h.spec(1).write_text("{"), "restart bcd"),
    ("holds", Level.FAILED, lambda h: h.remove(f"{h.slice(1)}/cgroup.events"), "restart bcd"),
    (
        "holds",
        Level.FAILED,
        lingering,
        "end what bcd holds shows",
    ),
    ("init", Level.FAILED, lambda h: h.write("proc/1/comm", "runit\n"), "systemd"),
    (
        "cgroup",
        Level.FAILED,
        lambda h: h.remove("sys/fs/cgroup/cgroup.controllers"),
        "unified_cgroup_hierarchy",
    ),
    (
        "controllers",
        Level.FAILED,
        lambda h: h.write("sys/fs/cgroup/cgroup.controllers", "cpu cpuset memory\n"),
        "cgroup_enable=hugetlb",
    ),
    ("pystemd", Level.FAILED, change(has_module=lambda _: False), "pip install"),
    (
        "fail-closed",
        Level.FAILED,
        lambda h: h.remove("usr/lib/systemd/system/bcd-alloc-.slice.d/10-bcd-failclosed.conf"),
        "reinstall",
    ),
    (
        "fail-closed-loaded",
        Level.FAILED,
        lambda h: h.write("made/bcd-alloc-doctor.slice", "DropInPaths=\nMemoryMax=infinity\n"),
        "systemctl daemon-reload",
    ),
    (
        "fail-closed-loaded",
        Level.FAILED,
        lambda h: h.write(
            "made/bcd-alloc-doctor.slice",
            "DropInPaths=/usr/lib/systemd/system/bcd-alloc-.slice.d/10-bcd-failclosed.conf"
            " /etc/systemd/system/bcd-alloc-.slice.d/90-mine.conf\nMemoryMax=infinity\n",
        ),
        "systemctl cat",
    ),
    ("daemon", Level.FAILED, change(daemon="no bcd answers there"), "systemctl start bcd"),
    ("daemon", Level.FAILED, condition("PassFailed"), "bcd status"),
    ("ready", Level.FAILED, unit(ActiveState="activating", SubState="start"), "journalctl"),
    ("enabled", Level.FAILED, unit(UnitFileState="disabled"), "systemctl enable bcd"),
    ("watchdog", Level.WARNING, unit(WatchdogUSec="infinity"), "systemctl edit"),
    ("order", Level.FAILED, unit(Before="shutdown.target"), "Before=slurmd.service"),
    ("order", Level.FAILED, unit(Before="slurmd.service podman.socket"), "take podman.socket out"),
    ("gateway", Level.FAILED, gateway_away, "firewall"),
    ("session", Level.FAILED, lambda h: h.told(connected=False, problem="no"), "bcd status"),
    ("driver", Level.FAILED, lambda h: h.remove("proc/driver/nvidia/version"), "modprobe nvidia"),
    ("library", Level.FAILED, other_library, "rmmod"),
    ("nvml", Level.FAILED, condition("NVMLUnresponsive"), "nvidia-smi"),
    ("gpus", Level.FAILED, lambda h: h.told(gpus=1), "lspci"),
    ("persistence", Level.WARNING, persistence_off, "nvidia-smi -pm 1"),
    ("device-nodes", Level.FAILED, lambda h: h.remove("dev/nvidia-uvm"), "nvidia-modprobe"),
    ("device-nodes", Level.FAILED, condition("DeviceNotReady"), "bcd status"),
    ("device-nodes", Level.FAILED, condition("DriverNotReady"), "bcd status"),
    ("char-links", Level.WARNING, lambda h: h.remove("dev/char/1:3"), "ln -s ../nvidia0"),
    ("cdi-hook", Level.FAILED, lambda h: h.cdi(CdiSettings(hook="/opt/none")), 'hook = "auto"'),
    ("podman", Level.FAILED, lambda h: h.program("podman", "echo podman version 3.4.4"), "4.1"),
    (
        "podman",
        Level.WARNING,
        lambda h: h.program("podman", "echo podman version 4.3.1"),
        'annotations = "never"',
    ),
    ("podman", Level.WARNING, mig_with_podman_4, "podman 5"),
    (
        "containerd",
        Level.FAILED,
        lambda h: h.program("containerd", "echo containerd x/containerd 1.6.20~ds1 1.6.20~ds1-1"),
        "1.7",
    ),
    (
        "containerd",
        Level.FAILED,
        lambda h: h.program("containerd", "echo containerd containerd.io v1.7.27 05044ec"),
        "enable_cdi = true",
    ),
    (
        "containerd",
        Level.FAILED,
        lambda h: h.write(
            "etc/containerd/config.toml",
            'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false\n',
        ),
        "enable_cdi = true",
    ),
    (
        "docker",
        Level.FAILED,
        lambda h: h.program("docker", "echo Docker version 24.0.7, build afdd53b"),
        "Docker 25",
    ),
    (
        "docker",
        Level.FAILED,
        lambda h: h.program("docker", "echo Docker version 27.5.1, build 9f9e405"),
        '"cdi": true',
    ),
    (
        "docker",
        Level.FAILED,
        lambda h: h.write("etc/docker/daemon.json", '{"features": {"cdi": false}}'),
        '"cdi": true',
    ),
]


def test_a_healthy_host_has_nothing_wrong(host: MadeHost) -> None:
    found = findings(host)
    assert {name: f.found for name, f in found.items() if f.level is not Level.OK} == {}
    assert list(found) == [check.name for check in CHECKS]


@pytest.mark.parametrize(
    ("name", "level", "fault", "fix"), FAULTS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(FAULTS)]
)
def test_each_fault_turns_exactly_its_check_red(
    host: MadeHost, name: str, level: Level, fault: Fault, fix: str
) -> None:
    fault(host)
    found = findings(host)
    red = {key: f.level for key, f in found.items() if f.level in RED}
    assert red == {name: level}, [f for f in found.values() if f.level in RED]
    assert fix in found[name].fix
    assert found[name].found
    assert found[name].why


def test_every_check_has_a_fault() -> None:
    assert {check.name for check in CHECKS} == {name for name, *_ in FAULTS}


def test_the_libraries_are_looked_for_where_the_driver_lies(host: MadeHost) -> None:
    lib = host.root / "usr/lib/x86_64-linux-gnu"
    away = host.root / "opt/driver/usr/lib/x86_64-linux-gnu"
    away.parent.mkdir(parents=True)
    lib.rename(away)
    assert findings(host)["library"].level is Level.FAILED
    host.cdi(CdiSettings(driver_root="/opt/driver"))
    assert findings(host)["library"].level is Level.OK


def test_the_hook_is_told_of_and_neither_way_is_wrong(host: MadeHost) -> None:
    assert findings(host)["cdi-hook"].found == "not installed, specs do without"
    host.program("nvidia-cdi-hook", "")
    assert findings(host)["cdi-hook"].found == "installed, specs use it"
    host.cdi(CdiSettings(hook="/usr/bin/nvidia-cdi-hook"))
    assert findings(host)["cdi-hook"].found == "/usr/bin/nvidia-cdi-hook"
    host.cdi(CdiSettings(hook="never"))
    assert findings(host)["cdi-hook"].found == "not used, as the settings say"


def test_on_simulated_hardware_nothing_real_is_asked(host: MadeHost) -> None:
    host.changes["profile"] = "dgx-h100"
    for path in ("proc/driver/nvidia/version", "proc/1/comm", "dev/nvidiactl"):
        host.remove(path)
    found = findings(host)
    assert {f.name for f in found.values() if f.level is Level.SIMULATED} == {
        check.name for check in CHECKS if check.real
    }
    assert not [f for f in found.values() if f.level in RED]
    assert found["driver"].found == "the hardware is dgx-h100, simulated"


def test_a_host_with_nothing_on_it_says_so_without_a_traceback(tmp_path: Path) -> None:
    host = MadeHost(tmp_path / "made")
    host.changes |= {
        "paths": host.paths.__class__(
            root=tmp_path / "none",
            state=tmp_path / "none/state",
            cdi=tmp_path / "none/cdi",
            cdi_dynamic=tmp_path / "none/dynamic",
            env=tmp_path / "none/env",
            run=tmp_path / "none/run",
            socket=tmp_path / "none/s",
        ),
        "slices": {},
        "daemon": "no bcd answers there",
        "free_bytes": free_bytes,
    }
    found = findings(host)
    wrong = {name for name, f in found.items() if f.level is Level.FAILED}
    assert wrong == {
        *("state-folder", "enrolled", "cdi-folder", "env-folder"),
        *("init", "cgroup", "fail-closed", "daemon", "driver"),
    }
    assert found["podman"].found == "not installed"


def test_without_a_daemon_nvml_is_asked_once_in_its_place(host: MadeHost) -> None:
    host.changes |= {"daemon": "none", "nvml": lambda: NvmlAnswer(VERSION, 2)}
    assert findings(host)["gpus"].found == "2 on the PCI bus, 2 usable"
    host.changes["nvml"] = lambda: Failed("NVMLUnresponsive", "no answer within 10 s")
    found = findings(host)["nvml"]
    assert found.level is Level.FAILED
    assert "no answer within 10 s" in found.found


BROKEN = {
    "exit 3": "ends with 3",
    "kill -KILL $$": "ends with -9",
    "echo no numbers": "names no version",
    "exec sleep 60": "has not ended within 0.5 s",
    "sleep 60 & echo 5.4.2": "has not ended within 0.5 s",
    "exec >&-; exec sleep 60": "has not ended within 0.5 s",
    "exec yes": "prints more than",
}


@pytest.mark.parametrize("script", BROKEN)
@pytest.mark.parametrize("look", [runtimes.podman, runtimes.docker, runtimes.containerd])
def test_a_runtime_that_is_broken_or_hangs_is_not_called_absent(
    host: MadeHost, look: Callable[[Patient], Answer], script: str
) -> None:
    host.program(look.__name__, script)
    answer = look(host.patient(program_s=0.5 if "sleep" in script else 20.0))
    assert answer.level is Level.WARNING
    assert BROKEN[script] in answer.found


def test_a_runtime_that_is_no_program_is_said_so(host: MadeHost) -> None:
    host.write("usr/bin/containerd", "not a program")
    os.chmod(host.root / "usr/bin/containerd", 0o755)
    answer = runtimes.containerd(host.patient())
    assert "cannot be run (Exec format error)" in answer.found


def test_a_systemd_that_hangs_is_a_fault_and_not_for_root_to_look_at(host: MadeHost) -> None:
    host.program("systemctl", "exec sleep 60")
    found = {f.name: f for f in examine(host.patient(program_s=0.2))}
    for name in ("enabled", "watchdog", "order", "fail-closed-loaded"):
        assert found[name].level is Level.FAILED, found[name]
        assert "systemctl show has not ended within 0.2 s" in found[name].found
        assert "as root" not in found[name].found
    host.program("systemctl", "exit 1")
    assert findings(host)["enabled"].level is Level.SKIPPED


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/containerd/config.toml", "[[["),
        ("etc/containerd/config.toml", "plugins = 3\n"),
        ("etc/docker/daemon.json", "["),
        ("etc/docker/daemon.json", '{"features": [1]}'),
        ("etc/docker/daemon.json", "[" * 100_000),
    ],
)
def test_settings_of_others_that_make_no_sense_cost_nothing(
    host: MadeHost, path: str, text: str
) -> None:
    host.write(path, text)
    assert not [f for f in findings(host).values() if f.level in RED]


def test_containerd_1_7_with_its_setting_reads_specs(host: MadeHost) -> None:
    host.program("containerd", "echo containerd containerd.io 1.7.27 05044ec")
    host.write(
        "etc/containerd/config.toml",
        'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = true\n',
    )
    assert findings(host)["containerd"].level is Level.OK


def test_podman_of_debian_12_is_fine_without_annotations(host: MadeHost) -> None:
    host.program("podman", "echo podman version 4.3.1")
    host.cdi(CdiSettings(annotations="never"))
    assert findings(host)["podman"].level is Level.OK


def test_podman_4_cannot_read_a_standing_hold_of_a_slot_whatever_the_settings_say(
    host: MadeHost,
) -> None:
    host.program("podman", "echo podman version 4.3.1")
    host.cdi(CdiSettings(annotations="never"))
    host.hold(2, device_class=DeviceClass.SLOT)
    found = findings(host)["podman"]
    assert found.level is Level.WARNING
    assert "specs of gpu.slot (CDI 0.6)" in found.found


def test_a_file_in_the_place_of_the_folder_of_specs_is_the_folders_fault_alone(
    host: MadeHost,
) -> None:
    host.program("podman", "echo podman version 4.9.3")
    host.paths.cdi.rename(host.root / "away")
    host.paths.cdi.touch()
    found = findings(host)
    assert [name for name, f in found.items() if f.level in RED] == ["cdi-folder"]
    for name in ("foreign-specs", "holds"):
        assert found[name].level is Level.SKIPPED
        assert "cannot be read" in found[name].found


def test_what_must_start_later_is_what_the_unit_says() -> None:
    unit = (Path(__file__).parents[3] / "systemd/bcd.service").read_text()
    lines = [line.removeprefix("Before=") for line in unit.splitlines() if "Before=" in line]
    assert sorted(system.MANAGERS) == sorted(" ".join(lines).split())


def test_the_unit_starts_before_services_only_since_sockets_come_before_it() -> None:
    assert {name.rpartition(".")[2] for name in system.MANAGERS} == {"service"}


# What this user may not look at.


@pytest.fixture
def visited() -> Iterator[MadeHost]:
    """A host that an ordinary user may walk through; close what it must not read, and look."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        host = MadeHost(Path(folder) / "root")
        host.paths.state.chmod(0o755)  # so that what lies in it can be closed alone
        yield host


CLOSED = [
    ("var/lib", "state-folder"),
    ("var/lib", "state-room"),
    ("var/lib", "key"),
    ("var/lib/bcd/credentials.pem", "enrolled"),
    ("var/lib/bcd/credentials.pem", "certificate"),
    ("var/lib/bcd/credentials.pem", "clock"),
    ("etc", "cdi-folder"),
    ("etc/cdi", "foreign-specs"),
    ("etc/cdi/other.json", "foreign-specs"),
    ("etc/cdi", "holds"),
    ("run/bcd/allocations", "holds"),
    ("run/bcd", "env-folder"),
    ("proc/1/comm", "init"),
    ("run/nvidia-persistenced", "persistence"),
    ("dev", "device-nodes"),
    ("etc/containerd/config.toml", "containerd"),
    ("etc/docker/daemon.json", "docker"),
]


@pytest.mark.parametrize(("path", "name"), CLOSED)
def test_what_is_closed_to_this_user_is_no_fault_of_the_host(
    visited: MadeHost, path: str, name: str
) -> None:
    host = visited
    host.write("etc/cdi/other.json", "{}")
    host.write("etc/docker/daemon.json", "{}")
    closed = host.root / path
    patient = host.patient(free_bytes=free_bytes)
    mode = closed.stat().st_mode
    closed.chmod(0)
    try:
        with ordinary_user():
            found = {finding.name: finding for finding in examine(patient)}
    finally:
        closed.chmod(mode)
    assert found[name].level is Level.SKIPPED
    assert "run it as root" in found[name].found
    red = {key for key, finding in found.items() if finding.level is Level.FAILED}
    # The modes of folders are of this test's making.
    assert red <= {"state-folder", "cdi-folder", "env-folder"}


def test_a_socket_that_is_closed_to_this_user_does_not_mean_that_no_daemon_runs(
    host: MadeHost,
) -> None:
    host.changes |= {"daemon": "may not be opened by this user; run it as root", "closed": True}
    found = findings(host)
    for name in ("daemon", "session"):
        assert found[name].level is Level.SKIPPED
        assert "run it as root" in found[name].found
    assert found["ready"].level is Level.OK


def test_a_link_of_others_into_the_folder_of_specs_is_followed_as_readers_do(
    host: MadeHost,
) -> None:
    mine = host.write("opt/mine.json", '{"kind": "bcd.dev/gpu"}')
    (host.paths.cdi / "mine.json").symlink_to(mine)
    assert findings(host)["foreign-specs"].level is Level.FAILED


def test_a_daemon_run_by_hand_is_not_asked_of_systemd(host: MadeHost) -> None:
    host.unit = {"LoadState": "not-found", "ActiveState": "inactive"}
    found = findings(host)
    for name in ("ready", "enabled", "watchdog", "order"):
        assert found[name].level is Level.SKIPPED
        assert "by hand" in found[name].found


def test_more_than_one_broken_hold_is_counted(host: MadeHost) -> None:
    host.hold(2, limits())
    for number in (1, 2):
        host.env(number).unlink()
    assert "and 1 more" in findings(host)["holds"].found


def test_the_doctor_changes_nothing(host: MadeHost) -> None:
    (host.paths.cdi / ".bcd-x.json.00112233.tmp").write_text("being written")
    (host.paths.state / "candidate").mkdir()
    (host.paths.state / "candidate/credentials.pem").write_text("broken")
    patient = host.patient()

    def everything() -> dict[Path, tuple[int, int]]:
        found = ((path, path.lstat()) for path in sorted(host.root.rglob("*")))
        return {path: (stat.st_mode, stat.st_mtime_ns) for path, stat in found}

    before = everything()
    assert len(list(examine(patient))) == len(CHECKS)
    assert everything() == before


def test_the_gateway_is_dialled_truly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert dial(f"127.0.0.1:{port}") == ""
    assert "refused" in dial(f"127.0.0.1:{port}")
    assert dial("nobody.invalid:7443")


@pytest.mark.parametrize(
    ("status", "inventory"),
    [(None, None), ({"gateway": 3}, {}), ({"gateway": {"connected": True}}, {"devices": [{}]})],
)
def test_a_daemon_of_another_version_is_said_so(status: object, inventory: object) -> None:
    assert "another version" in str(told(status, inventory))


def test_the_first_condition_of_a_type_is_told() -> None:
    conditions = [{"type": "A", "subject": s, "message": s} for s in ("1", "2")]
    status = {"gateway": {"connected": False, "problem": "p"}, "conditions": conditions}
    found = told(status, {"devices": [{"gpu": "a"}, {"gpu": "a"}, {"gpu": "b"}]})
    assert not isinstance(found, str)
    assert (found.conditions, found.gpus, found.problem) == ({"A": "1"}, 2, "p")


def test_a_patient_of_todays_host_can_be_made(host: MadeHost) -> None:
    assert isinstance(host.patient(), Patient)
    assert findings(host)["enrolled"].found == f"as {node_id()}"

"""Slices with limits, on the kernel and the systemd that enforce them."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bcd.model.report import FailureReason
from bcd.node.cdi import file_name
from tests.contracts import slice_cases
from tests.vm.guest.host import CDI, MIB, PYTHON, UNIT_FILES, Hold, made, run, wait_for
from tests.vm.guest.under_way import UNDER_WAY

Scenario = Callable[[Hold], None]

_TOUCH = "b = bytearray({} << 20)"
_MAP = """
import mmap
try:
    mmap.mmap(-1, {bytes}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | {log2} << 26)
    print("mapped")
except OSError as error:
    print(error.errno)
"""
_NO_MEMORY = "12"  # ENOMEM
_CONTROL = "/run/systemd/system.control"


def _maps(hold: Hold, count: int, log2: int) -> str:
    """What mapping so many huge pages of 2**log2 bytes in the slice comes to."""
    return hold.execute(_MAP.format(bytes=count << log2, log2=log2))[1]


def memory_beyond_the_limit_is_killed_and_below_is_not(hold: Hold) -> None:
    hold.ensure(memory_bytes=64 * MIB)
    assert hold.execute(_TOUCH.format(20))[0] == 0
    assert hold.execute(_TOUCH.format(200))[0] != 0
    assert "oom_kill 1" in hold.file("memory.events").splitlines()
    assert hold.state().limits == made(memory_bytes=64 * MIB)


def a_process_sees_only_its_cpus_and_memory_nodes(hold: Hold) -> None:
    hold.ensure(cpus="2-3", mems="1")
    _, status = hold.execute("print(open('/proc/self/status').read())")
    assert "Cpus_allowed_list:\t2-3" in status
    assert "Mems_allowed_list:\t1" in status


def huge_pages_are_refused_beyond_the_limit_and_where_none_are_booked(hold: Hold) -> None:
    hold.ensure(hugepages_1gi=1)
    assert _maps(hold, 1, 30) == "mapped"
    assert _maps(hold, 2, 30) == _NO_MEMORY
    assert _maps(hold, 1, 21) == _NO_MEMORY
    hold.ensure(hugepages_1gi=0)
    assert _maps(hold, 1, 30) == _NO_MEMORY


def a_hold_without_huge_pages_finds_every_size_closed(hold: Hold) -> None:
    hold.ensure()
    sizes = sorted(path.name for path in hold.folder.glob("hugetlb.*.max"))
    assert sizes == [
        f"hugetlb.{size}{kind}.max" for size in ("1GB", "2MB") for kind in ("", ".rsvd")
    ]
    assert {hold.file(name) for name in sizes} == {"0"}


def a_hold_has_no_swap_and_as_many_tasks_as_it_likes(hold: Hold) -> None:
    hold.ensure()
    assert hold.file("memory.swap.max") == "0"
    assert hold.file("pids.max") == "max"


def limits_outlive_daemon_reload_and_reexec(hold: Hold) -> None:
    limits = made(cpu_millis=1235, memory_bytes=96 * MIB, hugepages_1gi=1, cpus="1,3", mems="0-1")
    assert hold.slices.ensure(hold.id, limits) is None
    before = hold.state()
    assert hold.file("cpu.max") == "124000 100000"
    run("systemctl", "daemon-reload")
    assert hold.state() == before
    run("systemctl", "daemon-reexec")
    assert hold.state() == before
    assert hold.slices.ensure(hold.id, limits) is None


def a_quota_below_a_per_cent_outlives_daemon_reload(hold: Hold) -> None:
    hold.ensure(cpu_millis=1)
    run("systemctl", "daemon-reload")
    assert hold.file("cpu.max") == "1000 100000"
    assert hold.state().limits.cpu_millis == 10


def a_slice_that_a_workload_made_is_held_down_until_it_gets_its_limits(hold: Hold) -> None:
    hold.publish()
    hold.start()
    assert hold.file("memory.max") == str(16 * MIB)
    assert hold.file("pids.max") == "8"
    assert hold.state().surprise != ""
    hold.ensure(memory_bytes=512 * MIB, cpus="0")
    assert hold.state().limits == made(memory_bytes=512 * MIB, cpus="0")
    assert hold.state().surprise == ""
    assert not hold.state().empty
    run("systemctl", "daemon-reload")
    assert hold.state().limits == made(memory_bytes=512 * MIB, cpus="0")


def nothing_of_a_stopped_slice_comes_back_with_its_name(hold: Hold) -> None:
    hold.publish()
    hold.start()
    hold.ensure(memory_bytes=512 * MIB, cpus="0")
    hold.end()
    assert hold.slices.stop(hold.id)
    assert not Path(_CONTROL, f"{hold.slice}.d").exists()
    hold.ensure(memory_bytes=128 * MIB)
    assert hold.state().limits == made(memory_bytes=128 * MIB)


def a_slice_with_processes_and_no_devices_handed_out_is_refused(hold: Hold) -> None:
    hold.start()
    failed = hold.slices.ensure(hold.id, made())
    assert failed is not None
    assert failed.reason == FailureReason.SLICE_FAILED
    assert "end them" in failed.message
    assert not hold.state().empty


def a_process_that_outlived_its_slice_is_refused_with_the_next(hold: Hold) -> None:
    hold.ensure()
    with subprocess.Popen(["sleep", "1000"]) as process:
        (hold.folder / "cgroup.procs").write_text(str(process.pid))
        run("systemctl", "stop", hold.slice)
        failed = hold.slices.ensure(hold.id, made())
        assert process.poll() is None
        process.kill()
    assert failed is not None
    assert "end them" in failed.message


def stopping_never_ends_a_process(hold: Hold) -> None:
    hold.ensure()
    hold.start()
    pids = hold.file(f"{hold.unit}/cgroup.procs")
    assert not hold.slices.stop(hold.id)
    assert hold.file(f"{hold.unit}/cgroup.procs") == pids
    assert hold.state().limits == made()


def nothing_starts_in_a_slice_that_is_about_to_stop(hold: Hold) -> None:
    hold.ensure()
    (hold.folder / "cgroup.max.descendants").write_text("0")
    code, said = hold.execute("print('ran')")
    assert code != 0
    assert said == ""
    assert hold.state().surprise != ""
    hold.ensure()
    assert hold.execute("print('ran')") == (0, "ran")


def a_limit_that_a_person_changed_is_repaired(hold: Hold) -> None:
    hold.ensure(memory_bytes=128 * MIB, cpu_millis=500)
    for setting in ("MemoryMax=infinity", "MemoryHigh=1M", "CPUQuota=300%", "MemorySwapMax=1G",
                    "TasksMax=3", "AllowedCPUs=0"):  # fmt: skip
        run("systemctl", "set-property", "--runtime", hold.slice, setting)
    (hold.folder / "hugetlb.2MB.max").write_text("max")
    assert hold.state().surprise != ""
    hold.ensure(memory_bytes=128 * MIB, cpu_millis=500)
    assert hold.state().limits == made(memory_bytes=128 * MIB, cpu_millis=500)
    assert hold.state().surprise == ""


def a_change_that_a_person_made_for_good_is_repaired(hold: Hold) -> None:
    hold.ensure(memory_bytes=128 * MIB)
    run("systemctl", "set-property", hold.slice, "MemoryMax=1G")
    hold.ensure(memory_bytes=128 * MIB)
    run("systemctl", "daemon-reload")
    assert hold.state().limits == made(memory_bytes=128 * MIB)


def a_unit_file_that_a_person_left_does_not_win(hold: Hold) -> None:
    unit = Path("/etc/systemd/system", hold.slice)
    unit.write_text("[Slice]\nMemoryMax=1G\nCPUQuota=10%\n")
    try:
        run("systemctl", "daemon-reload")
        hold.ensure(memory_bytes=128 * MIB, cpu_millis=500)
        assert hold.state().limits == made(memory_bytes=128 * MIB, cpu_millis=500)
        assert hold.slices.stop(hold.id)
        assert not Path(_CONTROL, f"{hold.slice}.d").exists()
        assert unit.exists(), "it is the person's"
    finally:
        unit.unlink()
        run("systemctl", "daemon-reload")


def a_slice_that_a_person_stopped_is_made_again(hold: Hold) -> None:
    hold.ensure(memory_bytes=128 * MIB)
    run("systemctl", "stop", hold.slice)
    assert hold.slices.read() == {}
    hold.ensure(memory_bytes=128 * MIB)
    assert hold.state().limits == made(memory_bytes=128 * MIB)


def a_control_group_that_a_person_removed_is_made_again(hold: Hold) -> None:
    hold.ensure(memory_bytes=128 * MIB)
    hold.folder.rmdir()
    hold.ensure(memory_bytes=128 * MIB)
    assert hold.state().limits == made(memory_bytes=128 * MIB)


def a_cpu_that_this_host_has_not_fails_by_name_and_leaves_no_slice(hold: Hold) -> None:
    failed = hold.slices.ensure(hold.id, made(cpus="1,17"))
    assert failed is not None
    assert failed.reason == FailureReason.SLICE_FAILED
    assert "cpuset.cpus" in failed.message
    assert "'1,17'" in failed.message
    assert hold.slices.read() == {}


def cpus_with_ids_of_more_than_a_byte_are_those_that_were_booked(hold: Hold) -> None:
    for cpus in ("8", "1,10", "9-12,15"):  # offline, and known to the kernel
        hold.ensure(cpus=cpus)
        assert hold.file("cpuset.cpus") == cpus
    assert hold.slices.stop(hold.id)


def a_node_that_this_host_has_not_fails_and_a_standing_slice_is_made_anew(hold: Hold) -> None:
    hold.ensure(mems="0")
    failed = hold.slices.ensure(hold.id, made(mems="0,5"))
    assert failed is not None
    assert "cpuset.mems" in failed.message
    assert hold.slices.read() == {}


def memory_in_use_is_never_taken_away(hold: Hold) -> None:
    hold.publish()
    hold.ensure(memory_bytes=256 * MIB)
    program = "import time; b = bytearray(120 << 20); print('up'); time.sleep(1000)"
    hold.start(PYTHON, "-I", "-S", "-c", program)
    wait_for("its memory", lambda: int(hold.file("memory.current")) > 120 * MIB)
    failed = hold.slices.ensure(hold.id, made(memory_bytes=64 * MIB))
    assert failed is not None
    assert failed.reason == FailureReason.SLICE_FAILED
    assert not hold.state().empty
    assert hold.state().limits == made(memory_bytes=256 * MIB)
    hold.ensure(memory_bytes=192 * MIB)
    assert "oom_kill 0" in hold.file("memory.events").splitlines()


def two_holds_keep_apart(hold: Hold) -> None:
    hold.ensure(cpus="0-1", mems="0", memory_bytes=64 * MIB)
    other = Hold(hold.number + 1000)
    other.ensure(cpus="2-3", mems="1", memory_bytes=128 * MIB, hugepages_1gi=1)
    assert hold.state().limits == made(cpus="0-1", mems="0", memory_bytes=64 * MIB)
    assert hold.slices.stop(hold.id)
    assert list(other.slices.read()) == [other.id]
    assert other.slices.stop(other.id)


def a_hold_is_made_and_stopped_many_times(hold: Hold) -> None:
    began = time.monotonic()
    for _ in range(3):
        hold.ensure(cpus="0-1", mems="0", hugepages_1gi=1)
        assert hold.slices.stop(hold.id)
    print(f"one round: {(time.monotonic() - began) / 3:.2f} s")


def systemd_knows_every_setting_of_our_units(hold: Hold) -> None:
    units = sorted(str(path) for path in UNIT_FILES.glob("*.service"))
    assert len(units) > 2
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    # Programs and users that this host has not are none of our settings.
    wrong = [line for line in done.stderr.splitlines() if "ignoring" in line]
    assert wrong == [], wrong


def the_daemons_own_sandbox_lets_it_make_and_stop_slices(hold: Hold) -> None:
    code, said = hold.daemon("""
import sys
from pathlib import Path
from bcd.node.host.systemd.slices import SystemdSlices
from tests.vm.guest.host import alloc_id, made
slices = SystemdSlices(Path("/"), settle_s=4.0)
id_ = alloc_id(int(sys.argv[1]))
wanted = made(cpus="1", mems="0", hugepages_1gi=1)
print(slices.problem(), slices.ensure(id_, wanted), slices.read()[id_].limits == wanted)
print(slices.stop(id_), slices.read())
""")
    assert (code, said.splitlines()) == (0, [" None True", "True {}"]), said


def _contract(case: slice_cases.Case) -> Scenario:
    def scenario(hold: Hold) -> None:
        def populate(busy: bool) -> None:
            if busy:
                hold.start()
            else:
                hold.end()

        case(hold.slices, populate)

    scenario.__name__ = case.__name__
    return scenario


def a_reboot_takes_the_slice_and_the_next_workload_is_held_down(hold: Hold) -> None:
    assert hold.slices.read() == {}
    assert (CDI / file_name(hold.id)).exists(), "the reboot is no test: it took the spec as well"
    hold.start()
    assert hold.file("memory.max") == str(16 * MIB)
    hold.ensure(memory_bytes=512 * MIB, cpus="3", hugepages_1gi=1)
    wanted = made(memory_bytes=512 * MIB, cpus="3", hugepages_1gi=1)
    assert hold.state().limits == wanted
    assert hold.state().surprise == ""


def before_reboot(hold: Hold) -> None:
    """A hold that stands when the host goes down."""
    hold.ensure(memory_bytes=512 * MIB, cpus="3", hugepages_1gi=1)
    hold.publish()


AFTER_REBOOT: tuple[Scenario, ...] = (a_reboot_takes_the_slice_and_the_next_workload_is_held_down,)
SCENARIOS: tuple[Scenario, ...] = (
    *(_contract(case) for case in slice_cases.CASES),
    memory_beyond_the_limit_is_killed_and_below_is_not,
    a_process_sees_only_its_cpus_and_memory_nodes,
    huge_pages_are_refused_beyond_the_limit_and_where_none_are_booked,
    a_hold_without_huge_pages_finds_every_size_closed,
    a_hold_has_no_swap_and_as_many_tasks_as_it_likes,
    limits_outlive_daemon_reload_and_reexec,
    a_quota_below_a_per_cent_outlives_daemon_reload,
    a_slice_that_a_workload_made_is_held_down_until_it_gets_its_limits,
    nothing_of_a_stopped_slice_comes_back_with_its_name,
    a_slice_with_processes_and_no_devices_handed_out_is_refused,
    a_process_that_outlived_its_slice_is_refused_with_the_next,
    stopping_never_ends_a_process,
    nothing_starts_in_a_slice_that_is_about_to_stop,
    a_limit_that_a_person_changed_is_repaired,
    a_change_that_a_person_made_for_good_is_repaired,
    a_unit_file_that_a_person_left_does_not_win,
    a_slice_that_a_person_stopped_is_made_again,
    a_control_group_that_a_person_removed_is_made_again,
    a_cpu_that_this_host_has_not_fails_by_name_and_leaves_no_slice,
    cpus_with_ids_of_more_than_a_byte_are_those_that_were_booked,
    a_node_that_this_host_has_not_fails_and_a_standing_slice_is_made_anew,
    memory_in_use_is_never_taken_away,
    two_holds_keep_apart,
    systemd_knows_every_setting_of_our_units,
    the_daemons_own_sandbox_lets_it_make_and_stop_slices,
    a_hold_is_made_and_stopped_many_times,
    *UNDER_WAY,
)

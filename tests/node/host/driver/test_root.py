"""The edits of a host's driver: what is in them, and when they are not true any more."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bcd.model.report import FailureReason
from bcd.node.edits import NO_EDITS, DeviceEdits, DeviceNode, Mount
from bcd.node.host.driver import CHAR_LINKS_REMEDY
from tests.node.host.driver.fake import (
    CAPS_MAJOR,
    HOOK,
    LIBRARIES,
    MEMORY_MAJOR,
    STEMS,
    VERSION,
    FakeDriver,
    elf,
    standing,
)

PCI = "0000:3b:00.0"


@pytest.fixture
def host(tmp_path: Path) -> FakeDriver:
    return standing(tmp_path)


def sources(edits: DeviceEdits, root: Path) -> dict[str, str]:
    """Host paths below the root, by what the container sees."""
    return {m.container_path: m.host_path.removeprefix(str(root)) for m in edits.mounts}


def link_words(edits: DeviceEdits) -> list[str]:
    return [
        word
        for hook in edits.hooks
        if hook.args[1] == "create-symlinks"
        for word in hook.args[2:]
        if word != "--link"
    ]


def test_control_nodes_come_first_and_carry_no_numbers(host: FakeDriver) -> None:
    nodes = host.open().common(VERSION).nodes
    assert [node.path for node in nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert all(node.number is None for node in nodes)
    assert [node.host_path for node in nodes] == [f"{host.root}{node.path}" for node in nodes]


def test_a_node_that_every_program_needs_is_named_even_when_it_is_missing(
    host: FakeDriver,
) -> None:
    (host.root / "dev/nvidia-uvm").unlink()
    common = host.open().common(VERSION)
    assert "/dev/nvidia-uvm" in [node.path for node in common.nodes]
    failed = host.open().problem(common)
    assert failed is not None
    assert failed.reason == FailureReason.DEVICE_NODE_MISSING
    assert "nvidia-modprobe -u -c 0" in failed.message


def test_with_the_hook_program_each_library_is_mounted_once(host: FakeDriver) -> None:
    host.hook("enable-cuda-compat", "disable-device-node-modification")
    driver = host.open()
    common = driver.common(VERSION)
    assert driver.problem(common) is None
    seen = sources(common, host.root)
    assert seen == {path: path for path in seen} | {
        "/etc/vulkan/icd.d/nvidia_icd.json": "/usr/share/vulkan/icd.d/nvidia_icd.json"
    }
    assert [path for path in seen if "/lib" in path and "firmware" not in path] == [
        *sorted(f"{LIBRARIES}/{stem}.so.{VERSION}" for stem in STEMS if stem < "libnvidia-e"),
        *(f"{LIBRARIES}/{name}" for name in ("libnvidia-egl-gbm.so.1.1.2",)),
        f"{LIBRARIES}/libnvidia-encode.so.{VERSION}",
        f"{LIBRARIES}/libnvidia-glcore.so.{VERSION}",
        f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
        f"{LIBRARIES}/libnvidia-nvvm70.so.4",
        *(
            f"{LIBRARIES}/{stem}.so.{VERSION}"
            for stem in sorted(STEMS)
            if stem.startswith(("libnvidia-o", "libnvidia-p", "libnvidia-r"))
        ),
        f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
    ]
    assert common.env == (f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}",)
    assert [hook.args[1] for hook in common.hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert {hook.path for hook in common.hooks} == {f"{host.root}{HOOK}"}
    assert {hook.args[0] for hook in common.hooks} == {"nvidia-cdi-hook"}
    words = link_words(common)
    assert f"libcuda.so.1::{LIBRARIES}/libcuda.so" in words
    assert f"libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1" in words
    assert f"libGLX_nvidia.so.{VERSION}::{LIBRARIES}/libGLX_indirect.so.0" in words
    assert f"../libnvidia-allocator.so.1::{LIBRARIES}/gbm/nvidia-drm_gbm.so" in words


def test_without_it_each_library_is_mounted_under_every_name(host: FakeDriver) -> None:
    driver = host.open()
    common = driver.common(VERSION)
    assert driver.problem(common) is None
    assert common.hooks == ()
    seen = sources(common, host.root)
    cuda = f"{LIBRARIES}/libcuda.so.{VERSION}"
    for name in ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"):
        assert seen[f"{LIBRARIES}/{name}"] == cuda
    assert seen[f"{LIBRARIES}/gbm/nvidia-drm_gbm.so"].endswith(f"libnvidia-allocator.so.{VERSION}")
    assert seen[f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.1"].endswith(f".so.{VERSION}")
    assert len(seen) == len(common.mounts)


def test_images_of_another_distribution_find_each_library_by_its_soname(
    host: FakeDriver,
) -> None:
    seen = sources(host.open().common(VERSION), host.root)
    assert seen["/usr/lib64/libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.{VERSION}"
    assert "/usr/lib64/libvdpau_nvidia.so.1" not in seen
    host.hook()
    seen = sources(host.open().common(VERSION), host.root)
    assert not any(path.startswith("/usr/lib64/") for path in seen)


def test_a_soname_stands_even_where_the_host_has_no_link(host: FakeDriver) -> None:
    (host.root / LIBRARIES[1:] / "libcuda.so.1").unlink()
    seen = sources(host.open().common(VERSION), host.root)
    assert seen[f"{LIBRARIES}/libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.{VERSION}"


def test_files_are_read_only_and_sockets_can_be_connected_to(host: FakeDriver) -> None:
    options = {m.container_path: m.options for m in host.open().common(VERSION).mounts}
    assert options["/run/nvidia-persistenced/socket"] == (
        "nosuid",
        "nodev",
        "rbind",
        "rprivate",
        "noexec",
    )
    assert options["/usr/bin/nvidia-smi"] == ("ro", "nosuid", "nodev", "rbind", "rprivate")


def test_libraries_of_another_version_are_never_taken(host: FakeDriver) -> None:
    host.library("libcuda", version="535.54.03")
    host.put(f"{LIBRARIES}/libnvidia-old.so.535.54.03", elf("libnvidia-old.so.1"))
    # A link under the right name that leads to the wrong version.
    host.link(f"{LIBRARIES}/libnvidia-cfg.so.{VERSION}", "libnvidia-old.so.535.54.03")
    assert not any("535" in m.host_path for m in host.open().common(VERSION).mounts)
    assert any("535" in m.host_path for m in host.open().common("535.54.03").mounts)


@pytest.mark.parametrize("version", ["../..", "550", "550.1/..", "*", "550.163.01\n", "a.b"])
def test_a_version_that_is_none_gives_way_to_the_kernel_modules(
    host: FakeDriver, version: str
) -> None:
    driver = host.open()
    assert driver.common(version) == driver.common(VERSION)
    assert driver.problem(driver.common(version)) is None


@pytest.mark.parametrize("version", ["", "550", "R550", "550.54.15-dev"])
def test_without_any_version_nothing_is_found_and_that_is_said(
    host: FakeDriver, version: str
) -> None:
    host.write("/proc/driver/nvidia/version", f"NVRM version: Kernel Module  {version}  x\n")
    driver = host.open()
    common = driver.common(version)
    assert (common.mounts, common.env) == ((), ())
    assert [node.path for node in common.nodes][:2] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    failed = driver.problem(common)
    assert failed is not None
    assert failed.reason == FailureReason.DRIVER_FILE_MISSING
    assert "install a released driver" in failed.message
    assert driver.problem(driver.gpu(0, "")) is None  # its own node is there


def test_without_a_version_the_kernel_modules_counts(host: FakeDriver) -> None:
    driver = host.open()
    assert driver.common() == driver.common(VERSION)
    host.write(
        "/proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build\n",
    )
    assert driver.common() == driver.common(VERSION)
    (host.root / "proc/driver/nvidia/version").unlink()
    assert driver.common().mounts == ()


def test_a_driver_in_a_container_of_its_own_is_mounted_from_there(tmp_path: Path) -> None:
    host = standing(tmp_path, driver_root="/run/nvidia/driver")
    driver = host.open()
    common = driver.common(VERSION)
    assert driver.problem(common) is None
    assert sources(common, host.root)[f"{LIBRARIES}/libcuda.so.1"] == (
        f"/run/nvidia/driver{LIBRARIES}/libcuda.so.{VERSION}"
    )
    assert all(m.host_path.startswith(f"{host.driver}/") for m in common.mounts)
    assert common.nodes[0] == DeviceNode("/dev/nvidiactl", f"{host.driver}/dev/nvidiactl")
    (host.driver / "dev/nvidiactl").unlink()
    host.control()
    assert driver.common(VERSION).nodes[0].host_path == f"{host.root}/dev/nvidiactl"


@pytest.mark.parametrize("target", ["/etc/secret", "../../../../../../../etc/secret"])
def test_a_link_never_leads_out_of_the_drivers_root(tmp_path: Path, target: str) -> None:
    host = standing(tmp_path, driver_root="/run/nvidia/driver")
    host.write("/etc/secret", "of the host")
    host.link("/usr/bin/nvidia-debugdump", target)
    host.link(f"{LIBRARIES}/libnvidia-cfg.so.{VERSION}", target)
    driver = host.open()
    assert not any("secret" in m.host_path for m in driver.common(VERSION).mounts)
    host.put("/etc/secret", "of the driver")
    [mount] = [m for m in driver.common(VERSION).mounts if "debugdump" in m.container_path]
    assert mount.host_path == f"{host.driver}/etc/secret"


def test_links_in_a_circle_and_odd_files_are_left_out(host: FakeDriver) -> None:
    host.link("/usr/bin/nvidia-imex", "nvidia-imex-ctl")
    host.link("/usr/bin/nvidia-imex-ctl", "nvidia-imex")
    os.mkfifo(host.root / "usr/bin/nvidia-xconfig")
    (host.root / "usr/bin/nvidia-persistenced").mkdir()
    host.put(f"{LIBRARIES}/libnvidia-x\n.so.{VERSION}")
    os.mkfifo(f"{host.root}{LIBRARIES}/libnvidia-pipe.so.{VERSION}")
    (host.root / f"usr/lib/x86_64-linux-gnu/libnvidia-folder.so.{VERSION}").mkdir()
    driver = host.open()
    names = {os.path.basename(m.container_path) for m in driver.common(VERSION).mounts}
    assert names.isdisjoint({"nvidia-imex", "nvidia-imex-ctl", "nvidia-xconfig"})
    assert "nvidia-persistenced" not in names
    assert not any("pipe" in name or "folder" in name for name in names)
    assert all(name.isprintable() for name in names)


def test_debians_folder_of_the_current_driver_is_found_through_its_links(tmp_path: Path) -> None:
    host = FakeDriver(tmp_path)
    host.control()
    current = f"{LIBRARIES}/nvidia/current"
    host.install(current)
    host.link(f"{LIBRARIES}/libcuda.so.1", "/etc/alternatives/libcuda.so.1")
    host.link("/etc/alternatives/libcuda.so.1", f"{current}/libcuda.so.1")
    host.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")
    host.link("/etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    host.put("/usr/lib/nvidia/current/nvidia-smi")
    driver = host.open()
    common = driver.common(VERSION)
    assert driver.problem(common) is None
    seen = sources(common, tmp_path)
    assert seen["/usr/bin/nvidia-smi"] == "/usr/lib/nvidia/current/nvidia-smi"
    for folder in (LIBRARIES, current):
        assert seen[f"{folder}/libcuda.so.1"] == f"{current}/libcuda.so.{VERSION}"
        assert seen[f"{folder}/libnvidia-ml.so.1"] == f"{current}/libnvidia-ml.so.{VERSION}"
    host.hook()
    words = link_words(driver.common(VERSION))
    assert f"{current}/libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1" in words
    assert f"libcuda.so.{VERSION}::{current}/libcuda.so.1" in words


def test_another_choice_among_alternatives_is_noticed(host: FakeDriver) -> None:
    host.put("/usr/lib/nvidia/one/nvidia-imex")
    host.put("/usr/lib/nvidia/two/nvidia-imex")
    host.link("/usr/bin/nvidia-imex", "/etc/alternatives/nvidia-imex")
    host.link("/etc/alternatives/nvidia-imex", "/usr/lib/nvidia/one/nvidia-imex")
    host.settle()
    driver = host.open()
    before = driver.fingerprint()
    seen = sources(driver.common(VERSION), host.root)
    assert seen["/usr/bin/nvidia-imex"] == "/usr/lib/nvidia/one/nvidia-imex"
    host.link("/etc/alternatives/nvidia-imex", "/usr/lib/nvidia/two/nvidia-imex")
    seen = sources(driver.common(VERSION), host.root)
    assert seen["/usr/bin/nvidia-imex"] == "/usr/lib/nvidia/two/nvidia-imex"
    assert driver.fingerprint() != before


def test_folders_that_only_the_linkers_cache_knows_are_searched(tmp_path: Path) -> None:
    host = FakeDriver(tmp_path)
    host.install("/opt/nvidia/lib")
    host.put("/opt/nvidia/lib32/libcuda.so.1", b"\x7fELF\x01\x01" + bytes(64))
    host.put(f"/opt/nvidia/lib32/libx.so.{VERSION}")
    host.put(
        "/etc/ld.so.cache",
        b"glibc-ld.so.cache1.1\0libcuda.so.1\0/opt/nvidia/lib/libcuda.so.1\0"
        b"/opt/nvidia/lib32/libcuda.so.1\0",
    )
    folders = {os.path.dirname(m.container_path) for m in host.open().common(VERSION).mounts}
    assert "/opt/nvidia/lib" in folders
    assert "/opt/nvidia/lib32" not in folders


def test_an_alias_of_a_folder_is_not_searched_twice(host: FakeDriver) -> None:
    host.link("/lib64", "usr/lib/x86_64-linux-gnu")
    paths = [m.container_path for m in host.open().common(VERSION).mounts]
    assert len(paths) == len(set(paths))
    assert not any(path.startswith("/lib64/") for path in paths)


def test_firmware_is_taken_from_the_first_folder_that_the_kernel_looks_into(
    host: FakeDriver,
) -> None:
    def folders() -> set[str]:
        mounts = host.open().common(VERSION).mounts
        return {os.path.dirname(m.container_path) for m in mounts if "gsp_" in m.container_path}

    assert folders() == {f"/lib/firmware/nvidia/{VERSION}"}
    host.put(f"/lib/firmware/6.1.0-test/nvidia/{VERSION}/gsp_ga10x.bin")
    assert folders() == {f"/lib/firmware/6.1.0-test/nvidia/{VERSION}"}
    host.put(f"/opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    host.write("/sys/module/firmware_class/parameters/path", "/opt/firmware\n")
    assert folders() == {f"/opt/firmware/nvidia/{VERSION}"}


def test_a_gpus_node_follows_its_minor_and_its_display_nodes_its_address(
    host: FakeDriver,
) -> None:
    host.gpu(7, PCI)
    driver = host.open()
    for address in (PCI, "00000000:3B:00.0"):
        edits = driver.gpu(7, address)
        assert [node.path for node in edits.nodes] == [
            "/dev/nvidia7",
            "/dev/dri/card7",
            "/dev/dri/renderD135",
        ]
    assert edits.hooks == ()
    assert driver.problem(edits) is None
    host.hook()
    assert link_words(driver.gpu(7, PCI)) == [
        f"../card7::/dev/dri/by-path/pci-{PCI}-card",
        f"../renderD135::/dev/dri/by-path/pci-{PCI}-render",
    ]
    assert driver.gpu(0, "00000001:3B:00.0").hooks == ()


@pytest.mark.parametrize("address", ["", "../../x", "0000:3b:00.0/../..", "x" * 5000, "0\0"])
def test_an_address_that_is_none_has_no_display_nodes(host: FakeDriver, address: str) -> None:
    assert [node.path for node in host.open().gpu(0, address).nodes] == ["/dev/nvidia0"]


@pytest.mark.parametrize("minor", [-1, 1024, 10**9])
def test_a_minor_that_no_gpu_has_finds_nothing(host: FakeDriver, minor: int) -> None:
    assert host.open().gpu(minor, PCI) == NO_EDITS
    assert host.open().mig(minor, PCI, 1, 0) == NO_EDITS


def test_a_mig_instance_has_three_nodes_and_display_nodes_only_for_graphics(
    host: FakeDriver,
) -> None:
    host.gpu(3, PCI)
    host.mig(3, gi=2, ci=0, cap=426)
    driver = host.open()
    edits = driver.mig(3, PCI, 2, 0, graphics=False)
    assert [node.path for node in edits.nodes] == [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap426",
        "/dev/nvidia-caps/nvidia-cap427",
    ]
    assert all(node.number is None for node in edits.nodes)
    assert driver.problem(edits) is None
    with_display = driver.mig(3, PCI, 2, 0, graphics=True)
    assert [n.path for n in with_display.nodes[3:]] == ["/dev/dri/card3", "/dev/dri/renderD131"]


def test_a_capability_without_a_node_is_named_by_its_number(host: FakeDriver) -> None:
    host.mig(1, gi=1, ci=0, cap=147, nodes=False)
    driver = host.open()
    edits = driver.mig(1, PCI, 1, 0)
    assert [node.number for node in edits.nodes] == [None, (CAPS_MAJOR, 147), (CAPS_MAJOR, 148)]
    assert driver.problem(edits) is None
    host.majors["nvidia-caps"] = 59
    host.kernel()
    failed = driver.problem(edits)
    assert failed is not None
    assert failed.reason == FailureReason.DEVICE_NODE_MISSING
    assert "had the number 61:147 and has 59:147 now" in failed.message


def test_the_list_of_capabilities_stands_in_for_the_live_instances(host: FakeDriver) -> None:
    host.write(
        "/proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n",
    )
    edits = host.open().mig(1, PCI, 1, 0)
    assert [node.path for node in edits.nodes[1:]] == [
        "/dev/nvidia-caps/nvidia-cap147",
        "/dev/nvidia-caps/nvidia-cap148",
    ]


def test_an_instance_that_the_driver_does_not_know_is_never_taken_for_complete(
    host: FakeDriver,
) -> None:
    host.write("/proc/driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\n")
    driver = host.open()
    edits = driver.mig(1, PCI, 1, 0)
    assert len(edits.nodes) == 3
    failed = driver.problem(edits)
    assert failed is not None
    assert failed.reason == FailureReason.DEVICE_NODE_MISSING
    assert "gpu1-gi1" in failed.message
    assert "nvidia-smi" in failed.message


@pytest.mark.parametrize("number", [0, 1, 2])
def test_capabilities_over_the_whole_host_are_given_to_nobody(
    host: FakeDriver, number: int
) -> None:
    host.mig(1, 1, 0, number, nodes=False)
    driver = host.open()
    edits = driver.mig(1, PCI, 1, 0)
    given = {node.path.rpartition("nvidia-cap")[2] for node in edits.nodes if node.number}
    assert given.isdisjoint({"0", "1", "2"})
    assert driver.problem(edits) is not None


def test_every_kind_of_missing_part_has_its_reason_and_remedy(host: FakeDriver) -> None:
    host.hook()
    driver = host.open()
    common, gpu = driver.common(VERSION), driver.gpu(0, "")
    assert driver.problem(common) is None
    assert driver.problem(gpu) is None

    def said(edits: DeviceEdits) -> tuple[str, str]:
        failed = driver.problem(edits)
        assert failed is not None
        return failed.reason, failed.message

    (host.root / "dev/nvidia0").unlink()
    assert said(gpu) == (
        FailureReason.DEVICE_NODE_MISSING,
        f"{host.root}/dev/nvidia0 is no character device; run: nvidia-modprobe -c 0",
    )
    host.write("/dev/nvidia0", "plain")
    assert "is no character device" in said(gpu)[1]
    host.node("/dev/nvidia0", 60, 1)
    assert "is 60:1 and the kernel says 60:0; remove it" in said(gpu)[1]
    (host.root / f"{LIBRARIES[1:]}/libnvidia-ml.so.{VERSION}").unlink()
    reason, message = said(common)
    assert reason == FailureReason.DRIVER_FILE_MISSING
    assert f"libnvidia-ml.so.{VERSION} is not there; install" in message
    reason, message = said(driver.common(VERSION))
    assert reason == FailureReason.DRIVER_FILE_MISSING
    assert f"libnvidia-ml.so.{VERSION} is not there; install" in message
    host.library("libnvidia-ml")
    (host.root / "usr/bin/nvidia-smi").unlink()
    assert "nvidia-smi is not there any more" in said(common)[1]
    assert driver.problem(driver.common(VERSION)) is None
    host.put("/usr/bin/nvidia-smi")
    (host.root / HOOK[1:]).chmod(0o644)
    assert "cdi.hook" in said(common)[1]


def test_after_an_upgrade_the_old_edits_do_not_pass(host: FakeDriver) -> None:
    driver = host.open()
    old = driver.common(VERSION)
    host.version = "570.86.15"
    host.kernel()
    failed = driver.problem(old)
    assert failed is not None
    assert failed.reason == FailureReason.DRIVER_FILE_MISSING
    assert "570.86.15" in failed.message


def test_a_node_whose_module_got_another_major_is_stale(host: FakeDriver) -> None:
    driver = host.open()
    common = driver.common(VERSION)
    before = driver.fingerprint()
    host.majors["nvidia-uvm"] = 59
    host.kernel()
    failed = driver.problem(common)
    assert failed is not None
    assert f"is {MEMORY_MAJOR}:0 and the kernel says 59:0" in failed.message
    assert driver.fingerprint() != before
    host.control()
    assert driver.problem(common) is None
    assert driver.common(VERSION) == common


def test_an_unloaded_driver_is_a_problem_of_every_node(host: FakeDriver) -> None:
    driver = host.open()
    gpu = driver.gpu(0, "")
    host.majors.clear()
    host.kernel()
    failed = driver.problem(gpu)
    assert failed is not None
    assert "no loaded module serves it" in failed.message


def test_a_hook_that_was_set_must_be_there_and_never_means_never(host: FakeDriver) -> None:
    host.hook()
    assert host.open("never").common(VERSION).hooks == ()
    driver = host.open("/opt/hook")
    common = driver.common(VERSION)
    assert {hook.path for hook in common.hooks} == {f"{host.root}/opt/hook"}
    failed = driver.problem(common)
    assert failed is not None
    assert failed.reason == FailureReason.DRIVER_FILE_MISSING
    host.hook(path="/opt/hook")
    assert driver.problem(driver.common(VERSION)) is None


def test_commands_that_the_hook_program_does_not_know_are_not_called(host: FakeDriver) -> None:
    host.hook()
    driver = host.open()
    commands = [hook.args[1] for hook in driver.common(VERSION).hooks]
    assert commands == ["create-symlinks", "update-ldcache"]
    host.write(f"{HOOK}.real", b"\0update-application-profile\0")
    host.hook("a wrapper")
    commands = [hook.args[1] for hook in driver.common(VERSION).hooks]
    assert commands == ["create-symlinks", "update-ldcache", "update-application-profile"]


def test_a_hook_program_that_was_written_over_is_looked_at_again(host: FakeDriver) -> None:
    host.hook()
    host.settle()
    driver = host.open()
    assert len(driver.common(VERSION).hooks) == 2
    host.hook("enable-cuda-compat")
    os.utime(host.root / HOOK[1:], ns=(10**18, 10**18 + 1))
    assert len(driver.common(VERSION).hooks) == 3


def test_ubuntus_real_linker_configuration_is_called(host: FakeDriver) -> None:
    host.hook()
    host.write("/sbin/ldconfig.real")
    [call] = [h for h in host.open().common(VERSION).hooks if h.args[1] == "update-ldcache"]
    assert call.args[2:4] == ("--ldconfig-path", "/sbin/ldconfig.real")


CHANGES = {
    "driver version": lambda host: host.upgrade("570.86.15"),
    "boot": lambda host: host.write("/proc/sys/kernel/random/boot_id", "boot-2\n"),
    "a library": lambda host: host.library("libnvidia-cfg"),
    "a library gone": lambda host: host.remove_libraries(),
    "a program": lambda host: host.put("/usr/bin/nvidia-debugdump"),
    "a folder of configurations": lambda host: host.put("/etc/vulkan/icd.d/nvidia_icd.json"),
    "a socket": lambda host: host.listen("/run/nvidia-fabricmanager/socket"),
    "a GPU's node": lambda host: host.node("/dev/nvidia5", 60, 5),
    "a node's number": lambda host: host.node("/dev/nvidia0", 60, 9),
    "a capability's node": lambda host: host.mig(0, 1, 0, 12),
    "the list of capabilities": lambda host: host.write(
        "/proc/driver/nvidia-caps/mig-minors", "gpu0/gi1/access 12\n"
    ),
    "the hook program": lambda host: host.hook(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_differs_when_the_edits_may(host: FakeDriver, change: str) -> None:
    driver = host.open()
    before = driver.fingerprint()
    assert driver.fingerprint() == before
    CHANGES[change](host)
    after = driver.fingerprint()
    assert after != before
    assert driver.fingerprint() == after


def test_a_library_that_every_program_needs_is_named_even_when_it_is_missing(
    host: FakeDriver,
) -> None:
    """Packages were upgraded under a loaded module: nothing starts, rather than without CUDA."""
    host.remove_libraries()
    driver = host.open()
    seen = sources(driver.common(VERSION), host.root)
    assert {f"/usr/lib64/{stem}.so.{VERSION}" for stem in ("libcuda", "libnvidia-ml")} <= set(seen)


def test_nothing_incomplete_is_remembered(host: FakeDriver) -> None:
    host.remove_libraries()
    driver = host.open()
    assert driver.problem(driver.common(VERSION)) is not None
    host.install()
    assert driver.problem(driver.common(VERSION)) is None


def test_a_quiet_host_is_scanned_once(host: FakeDriver) -> None:
    host.settle()
    driver = host.open()
    first = driver.common(VERSION)
    assert driver.common(VERSION).mounts is first.mounts
    host.put("/usr/bin/nvidia-imex")
    assert driver.common(VERSION).mounts is not first.mounts


def test_a_folder_that_changed_a_moment_ago_is_looked_into_again(host: FakeDriver) -> None:
    """A second change within the clock's tick leaves the folder's time as it was."""
    host.settle()
    folder = host.root / "usr/bin"
    os.utime(folder)
    before = folder.stat().st_mtime_ns
    driver = host.open()
    assert "/usr/bin/nvidia-imex" not in sources(driver.common(VERSION), host.root)
    host.put("/usr/bin/nvidia-imex")
    os.utime(folder, ns=(before, before))
    assert "/usr/bin/nvidia-imex" in sources(driver.common(VERSION), host.root)


def test_folders_that_bear_a_time_to_come_are_scanned_twice_and_then_no_more(
    host: FakeDriver,
) -> None:
    host.settle()
    ahead = time.time_ns() + 10**18
    os.utime(host.root / "usr/bin", ns=(ahead, ahead))
    driver = host.open()

    def rests() -> bool:
        return driver.common(VERSION).mounts is driver.common(VERSION).mounts

    end = time.monotonic() + 20
    while not rests():
        assert time.monotonic() < end
    host.put("/usr/bin/nvidia-imex")
    assert "/usr/bin/nvidia-imex" in sources(driver.common(VERSION), host.root)


@pytest.mark.parametrize("hook", ["auto", HOOK])
@pytest.mark.parametrize("name", [b"we\xff", b"we\nird"])
def test_links_through_names_that_cannot_be_printed_say_the_librarys_own(
    host: FakeDriver, hook: str, name: bytes
) -> None:
    if hook == HOOK:
        host.hook()
    folder = os.fsencode(f"{host.root}{LIBRARIES}/")
    os.unlink(folder + b"libcuda.so.1")
    os.symlink(f"libcuda.so.{VERSION}".encode(), folder + name)
    os.symlink(name, folder + b"libcuda.so.1")
    edits = host.open(hook).common(VERSION)
    words = [word for made in edits.hooks for word in made.args]
    assert all(word.isprintable() for word in words)
    assert all(m.host_path.isprintable() and m.container_path.isprintable() for m in edits.mounts)
    said = f"{LIBRARIES}/libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1"
    assert said in words or f"{LIBRARIES}/libcuda.so.1" in sources(edits, host.root)


def test_threads_that_ask_at_once_get_the_same_answer(host: FakeDriver) -> None:
    driver = host.open()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: driver.common(VERSION), range(32)))
        marks = list(pool.map(lambda _: driver.fingerprint(), range(32)))
    assert all(answer == answers[0] for answer in answers)
    assert all(mark == marks[0] for mark in marks)


def test_scans_leak_no_descriptor(host: FakeDriver) -> None:
    host.hook()
    before = len(os.listdir("/proc/self/fd"))
    for hook in ("auto", "never") * 5:
        driver = host.open(hook)
        driver.problem(driver.common(VERSION))
        driver.fingerprint()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "path",
    [
        "/proc/devices",
        "/proc/driver/nvidia/version",
        "/proc/driver/nvidia-caps/mig-minors",
        "/etc/ld.so.cache",
        "/sys/module/firmware_class/parameters/path",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access",
        HOOK,
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"\xff\xfe" * 3000, b"9" * 3_000_000, b"195 nvidia\n" * 99_999]
)
def test_absurd_files_are_never_more_than_a_problem(
    host: FakeDriver, path: str, content: bytes
) -> None:
    host.write(path, content)
    driver = host.open()
    driver.fingerprint()
    for edits in (driver.common(VERSION), driver.gpu(0, PCI), driver.mig(0, PCI, 1, 0)):
        driver.problem(edits)
        assert all(m.host_path.isprintable() for m in edits.mounts)


def test_missing_links_by_number_are_told(host: FakeDriver) -> None:
    driver = host.open()
    edits = driver.gpu(0, "")
    assert driver.missing_char_links(edits) == (f"{host.root}/dev/char/60:0",)
    folder = host.root / "dev/char"
    folder.mkdir()
    (folder / "60:0").symlink_to("../nvidia0")
    assert driver.missing_char_links(edits) == ()
    host.node("/dev/nvidia0", 60, 4)
    (folder / "60:4").symlink_to("../nvidia1")
    assert driver.missing_char_links(edits) == (f"{host.root}/dev/char/60:4",)
    assert "create-dev-char-symlinks" in CHAR_LINKS_REMEDY


def test_a_mount_of_an_own_version_passes_every_driver(host: FakeDriver) -> None:
    path = f"{host.root}{LIBRARIES}/libnvidia-egl-gbm.so.1.1.2"
    assert host.open().problem(DeviceEdits(mounts=(Mount(path, path, ()),))) is None

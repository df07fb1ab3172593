"""A bootable disk of a Debian suite, made from packages once and kept in the temporary folder.

No initial RAM disk: Debian's cloud kernel has NVMe and ext4 built in. What a host of one program
does not need at boot is masked, since emulated it would take longer than the scenarios.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path(__file__).parent / "boot"
_PACKAGES = (
    "dbus", "kmod", "libpython3-stdlib", "libstdc++6", "libsystemd0", "procps", "python3-minimal",
    "systemd", "systemd-sysv",
)  # fmt: skip
_LEFT_OUT = ("doc", "man", "locale", "info")
_MASKED = (
    "getty@tty1.service",
    "ldconfig.service",
    "proc-sys-fs-binfmt_misc.automount",
    "serial-getty@ttyS0.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-boot-random-seed.service",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-journal-flush.service",
    "systemd-pcrphase.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-tpm2-setup-early.service",
    "systemd-tpm2-setup.service",
    "systemd-udev-load-credentials.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
    "systemd-update-done.service",
    "systemd-update-utmp.service",
)
_MACHINE_ID = "0123456789abcdef0123456789abcdef\n"
_ROOM_MIB = 700


@dataclass(frozen=True, slots=True)
class Image:
    """A kernel and the root disk that goes with it."""

    kernel: Path
    disk: Path


def image(suite: str, packages: tuple[str, ...] = ()) -> Image:
    """The image of a suite with more packages, made when this recipe was not followed yet.

    Takes about 40 s and root's rights, 1 s the next time.
    """
    recipe = hashlib.sha256(repr((suite, packages)).encode())
    for path in (Path(__file__), *sorted(_BOOT.iterdir())):
        recipe.update(path.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"better-compute-vm-{recipe.hexdigest()[:16]}"
    if not kept.exists():
        with tempfile.TemporaryDirectory(prefix="better-compute-image-") as work:
            _build(suite, (*_PACKAGES, *packages), Path(work))
            with contextlib.suppress(OSError):  # somebody was faster
                (Path(work) / "out").rename(kept)
    return Image(kept / "vmlinuz", kept / "root.ext4")


def _build(suite: str, packages: tuple[str, ...], work: Path) -> None:
    archive = _archive()
    root, out = work / "root", work / "out"
    out.mkdir()
    run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=essential",
        f"--include={','.join(packages)}",
        "--aptopt=APT::Install-Recommends \"false\"", "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT),
        suite, str(root), archive,
    )  # fmt: skip
    _add_kernel(suite, archive, work, root, out)
    _configure(root)
    pack(root, out / "root.ext4", _ROOM_MIB)


def _archive() -> str:
    """Where this machine's own apt gets its packages."""
    sites = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages")
    assert sites.strip(), "apt has no package lists; run apt-get update"
    return sites.split()[0]


def _add_kernel(suite: str, archive: str, work: Path, root: Path, out: Path) -> None:
    """Kernel and modules as plain files: the package's scripts would build a RAM disk."""
    apt = work / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "package"):
        (apt / folder).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb {archive} {suite} main\n")
    options = (
        f"-oDir::Etc::sourcelist={apt}/sources.list", "-oDir::Etc::sourceparts=/dev/null",
        f"-oDir::State::lists={apt}/lists", f"-oDir::Cache={apt}/cache",
        "-oAPT::Sandbox::User=root",
    )  # fmt: skip
    run("apt-get", *options, "-qq", "update")
    depends = run("apt-cache", *options, "depends", "linux-image-cloud-amd64")
    [name] = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line]
    run("apt-get", *options, "-qq", "download", name, cwd=apt / "package")
    [package] = (apt / "package").glob("*.deb")
    run("dpkg-deb", "-x", str(package), str(apt / "files"))
    [kernel] = (apt / "files/boot").glob("vmlinuz-*")
    shutil.copy(kernel, out / "vmlinuz")
    [modules] = (apt / "files").glob("**/lib/modules/*")
    shutil.copytree(modules, root / "usr/lib/modules" / modules.name, symlinks=True)
    run("chroot", str(root), "/sbin/depmod", modules.name)


def _configure(root: Path) -> None:
    (root / "etc/hostname").write_text("vm\n")
    (root / "etc/machine-id").write_text(_MACHINE_ID)
    (root / "etc/fstab").write_text("")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    for name in ("etc/.updated", "var/.updated"):
        (root / name).touch()
    units = root / "etc/systemd/system"
    for unit in _MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    for path in _BOOT.iterdir():
        folder = root / "usr/local/sbin" if path.suffix == "" else units
        shutil.copy(path, folder / path.name)


def pack(folder: Path, disk: Path, room_mib: int) -> None:
    """Make an ext4 disk of a folder's files, with so much room left."""
    used = int(run("du", "-sm", str(folder)).split()[0])
    run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(folder), str(disk),
        f"{used * 5 // 4 + room_mib}M")  # fmt: skip


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a program and return what it printed; a failure shows its words."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    where = shutil.which(command[0], path=path)
    assert where is not None, (
        f"{command[0]} is not installed; apt-get install qemu-system-x86 mmdebstrap e2fsprogs"
    )
    done = subprocess.run(
        [where, *command[1:]], cwd=cwd, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout

"""Runs a container with Debian's podman and crun, and reads what it can see.

Two circumstances of test machines are worked around, in a mount namespace of the run's own:
crun refuses a hybrid cgroup hierarchy, and the daemon's specs take the place of /etc/cdi. The
podman of a newer Debian runs from a folder of its own, which takes the place of / there.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BUSYBOX = Path("/bin/busybox")
_APPLETS = ("sh", "env", "ls", "cat", "stat", "find", "sort", "md5sum", "touch", "id")
_NEWER = ("podman", "crun", "conmon", "busybox-static")
_ENTER = """
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then umount -l /sys/fs/cgroup/unified; fi
mount --bind "$1" /etc/cdi
shift
exec "$@"
"""
# A tree without the links that the installer of Debian makes.
_ENTER_OTHER = """
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then umount -l /sys/fs/cgroup/unified; fi
root=$1; specs=$2; shared=$3
shift 3
mount --bind "$root" "$root"
for name in dev proc sys; do mkdir -p "$root/$name"; mount --rbind "/$name" "$root/$name"; done
mkdir -p "$root/etc/cdi" "$root/old" "$root$shared"
mount --rbind "$shared" "$root$shared"
mount --bind "$specs" "$root/etc/cdi"
cd "$root"
pivot_root . old
busybox umount -l old
export PODMAN_IGNORE_CGROUPSV1_WARNING=1
exec "$@"
"""
_LOOK = """
env
echo ====
find /dev -type c | sort | while read -r node; do stat -c '%n %t:%T' "$node"; done
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container saw: its environment, and its character devices as hex ``major:minor``."""

    env: Mapping[str, str]
    devices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Podman:
    """podman with a storage and a root file system of the test's own."""

    folder: Path

    def prepare(self) -> None:
        """Make the root file system: busybox and nothing else."""
        if shutil.which("podman") is None or not _BUSYBOX.exists():
            raise RuntimeError(
                "podman or busybox is not installed: run apt-get install -y"
                " --no-install-recommends podman crun busybox-static"
            )
        root = self.folder / "rootfs"
        for name in ("bin", "dev", "proc", "sys", "etc", "tmp", "run"):
            (root / name).mkdir(parents=True)
        shutil.copy(_BUSYBOX, root / "bin/busybox")
        for applet in _APPLETS:
            (root / "bin" / applet).symlink_to("busybox")
        Path("/etc/cdi").mkdir(exist_ok=True)

    def run(
        self, specs: Path, devices: Sequence[str], script: str = _LOOK
    ) -> subprocess.CompletedProcess[str]:
        """Start a container with these CDI devices; its words are on stdout and stderr."""
        chosen = [word for name in devices for word in ("--device", name)]
        command = [
            "podman", "--root", str(self.folder / "storage"),
            "--runroot", str(self.folder / "runroot"),
            "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "crun",
            "run", "--rm", "--network=host", "--cgroups=disabled",
            "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", *chosen,
            "--rootfs", f"{self.folder / 'rootfs'}:O", "/bin/sh", "-c", script,
        ]  # fmt: skip
        return subprocess.run(
            ["unshare", "-m", "sh", "-ec", *self._enter(specs), *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _enter(self, specs: Path) -> tuple[str, ...]:
        return _ENTER, "enter", str(specs)

    def say(self, specs: Path, devices: Sequence[str], script: str) -> str:
        """What a script in a container with these devices prints; fails with podman's words."""
        done = self.run(specs, devices, script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def look(self, specs: Path, devices: Sequence[str]) -> Seen:
        """What a container with these devices sees; fails with podman's words."""
        env, _, nodes = self.say(specs, devices, _LOOK).partition("====\n")
        return Seen(
            dict(line.split("=", 1) for line in env.splitlines()),
            dict(line.split(" ", 1) for line in nodes.splitlines()),
        )


@dataclass(frozen=True, slots=True)
class NewerPodman(Podman):
    """The podman of another Debian's tree; ``shared`` is seen there under the same path."""

    tree: Path
    shared: Path

    def _enter(self, specs: Path) -> tuple[str, ...]:
        return _ENTER_OTHER, "enter", str(self.tree), str(specs), str(self.shared)


def build_tree(suite: str, folder: Path, packages: tuple[str, ...] = _NEWER) -> None:
    """Unpack packages and what they need from another suite of this machine's Debian archive."""
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError("mmdebstrap is not installed: run apt-get install -y mmdebstrap")
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    subprocess.run(
        [
            "mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(packages)}",
            '--aptopt=APT::Install-Recommends "false"',
            '--aptopt=Acquire::Languages "none"',
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            suite, str(folder), sites[0],
        ],
        check=True,
        timeout=280,
    )  # fmt: skip
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (folder / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    (folder / "usr/bin/sh").symlink_to("busybox")

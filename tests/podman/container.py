"""Runs a container with Debian's podman and crun, and reads what it can see.

Two circumstances of test machines are worked around, in a mount namespace of the run's own:
crun refuses a hybrid cgroup hierarchy, and the daemon's specs take the place of /etc/cdi.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BUSYBOX = Path("/bin/busybox")
_APPLETS = ("sh", "env", "ls", "cat", "stat", "find", "sort")
_ENTER = """
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then umount -l /sys/fs/cgroup/unified; fi
mount --bind "$1" /etc/cdi
shift
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

    def run(self, specs: Path, devices: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Start a container with these CDI devices; its words are on stdout and stderr."""
        chosen = [word for name in devices for word in ("--device", name)]
        command = [
            "podman", "--root", str(self.folder / "storage"),
            "--runroot", str(self.folder / "runroot"),
            "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "crun",
            "run", "--rm", "--network=host", "--cgroups=disabled",
            "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", *chosen,
            "--rootfs", f"{self.folder / 'rootfs'}:O", "/bin/sh", "-c", _LOOK,
        ]  # fmt: skip
        return subprocess.run(
            ["unshare", "-m", "sh", "-ec", _ENTER, "enter", str(specs), *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def look(self, specs: Path, devices: Sequence[str]) -> Seen:
        """What a container with these devices sees; fails with podman's words."""
        done = self.run(specs, devices)
        assert done.returncode == 0, done.stderr
        env, _, nodes = done.stdout.partition("====\n")
        return Seen(
            dict(line.split("=", 1) for line in env.splitlines()),
            dict(line.split(" ", 1) for line in nodes.splitlines()),
        )

"""Builds the control plane's image with podman, without a registry, and runs commands in it.

The base is a Debian made here instead of the one that the Containerfile names, and pip finds its
wheels in a folder. crun refuses a hybrid cgroup hierarchy, which test machines have, so podman runs
in a mount namespace without it.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.package import debian
from tests.package.build import ROOT

# What a base has to bring; yaml is for the tests.
_PACKAGES = "python3,python3-venv,python3-yaml,libstdc++6"
_BASE, _IMAGE = "localhost/base", "localhost/better-compute"
_PIP = "[global]\nno-index = true\nfind-links = /wheels\n"
_ENTER = """
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then umount -l /sys/fs/cgroup/unified; fi
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """The image, in a storage of its own."""

    folder: Path

    @property
    def base(self) -> Path:
        """The root of the Debian that the image is made from."""
        return self.folder / "base"

    def build(self) -> None:
        """Follow the Containerfile. A minute or two."""
        wheels = self.folder / "wheels"
        wheel = [sys.executable, "-m", "pip", "--quiet", "wheel", "--wheel-dir", str(wheels)]
        subprocess.run([*wheel, f"{ROOT}[control,cli]", "hatchling>=1.27"], check=True)
        for own in wheels.glob("better_compute-*"):
            own.unlink()  # has to come out of what the Containerfile copies
        (self.folder / "pip.conf").write_text(_PIP)
        debian.make(self.base, _PACKAGES)
        packed = f'tar -C "{self.base}" -cf "{self.folder}/base.tar" .'
        subprocess.run(["bash", "-ec", packed], check=True)
        self._podman("import", "--quiet", str(self.folder / "base.tar"), _BASE)
        (self.folder / "base.tar").unlink()
        self._podman(
            "build", "--quiet", "--layers=false", "--isolation=chroot", "--network=host",
            f"--build-arg=BASE={_BASE}", f"--volume={wheels}:/wheels:ro",
            f"--volume={self.folder}/pip.conf:/etc/pip.conf:ro", "--tag", _IMAGE,
            "--file", str(ROOT / "packaging/Containerfile"), str(ROOT),
        )  # fmt: skip

    def run(self, command: Sequence[str], *options: str) -> str:
        """Run a command as compose.yaml does, without network; its stdout and stderr in one."""
        return self._podman(
            "run", "--rm", "--network=none", "--cgroups=disabled", "--ulimit=nofile=4096:4096",
            "--ulimit=nproc=4096:4096", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL",
            "--security-opt=no-new-privileges", *options, _IMAGE, *command,
        )  # fmt: skip

    def _podman(self, *arguments: str) -> str:
        storage = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run")]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-ec", _ENTER, "enter", "podman", *storage,
             "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--runtime=crun", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

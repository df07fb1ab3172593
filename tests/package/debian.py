"""A clean Debian in a folder, to install packages in; nothing in it reaches a network."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Beyond the essential packages: what the two packages depend on, and apt.
DEPENDENCIES = "apt,systemd,python3,libsystemd0,libstdc++6"
_NO_ENV: Mapping[str, str] = {}
_ENTER = """
mount -t proc proc "$1/proc"
mount -t tmpfs run "$1/run"
mkdir -p "$1/run/lock"
exec chroot "$@"
"""


def make(folder: Path, packages: str = DEPENDENCIES, suite: str = "bookworm") -> None:
    """Install a Debian from the archive that this machine's own apt uses. Some 20 s.

    ``packages`` go in beyond the essential ones, with commas between.
    """
    if shutil.which("mmdebstrap") is None:
        raise RuntimeError(
            "mmdebstrap is not installed: run apt-get install -y --no-install-recommends mmdebstrap"
        )
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    sites = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    done = subprocess.run(
        [
            "mmdebstrap", "--quiet", "--mode=root", "--variant=essential",
            f"--include={packages}", "--dpkgopt=force-unsafe-io",
            '--aptopt=Acquire::Languages "none"', '--aptopt=APT::Install-Recommends "false"',
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            suite, str(folder), sites[0],
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, slots=True)
class Debian:
    """One such system. Each command has namespaces of its own, and no network."""

    folder: Path

    def run(self, *command: str, check: bool = True, env: Mapping[str, str] = _NO_ENV) -> str:
        """Run a command; its stdout and stderr in one text. ``check``: it has to succeed."""
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-ec", _ENTER, "enter",
             str(self.folder), *command],
            env={"PATH": "/usr/sbin:/usr/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **env},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stdout
        return done.stdout

    def script(self, text: str, check: bool = True, env: Mapping[str, str] = _NO_ENV) -> str:
        """Run a shell script that stops at the first failure."""
        return self.run("sh", "-euc", text, check=check, env=env)

    def path(self, inside: str) -> Path:
        """Where a file of it lies on this machine."""
        return self.folder / inside.lstrip("/")

    def write(self, inside: str, text: str, mode: int = 0o644) -> Path:
        """Make a file, and the folders above it."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def install(self, *debs: Path) -> str:
        """Install packages with apt, which refuses when a dependency is missing."""
        for deb in debs:
            shutil.copy(deb, self.path("/root"))
        try:
            return self.run(
                "apt-get", "-q", "-y", "-o", "APT::Sandbox::User=root", "install",
                *(f"/root/{deb.name}" for deb in debs), env={"DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
        finally:
            for deb in debs:
                self.path(f"/root/{deb.name}").unlink()

    def files(self, package: str) -> Sequence[str]:
        """The paths that a package brought."""
        return [line for line in self.run("dpkg", "-L", package).splitlines() if line != "/."]


@contextmanager
def copied(base: Path, target: Path) -> Iterator[Debian]:
    """A system of one's own, gone afterwards."""
    subprocess.run(["cp", "-a", "--reflink=auto", base, target], check=True)
    try:
        yield Debian(target)
    finally:
        shutil.rmtree(target)

"""Builds the packages, and makes a newer one out of a package for tests of upgrades."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.package import debian

ROOT = Path(__file__).parents[2]
_BUILD_PACKAGES = (
    "python3-venv,python3-dev,gcc,libc6-dev,pkg-config,libsystemd-dev,binutils,dpkg-dev,"
    "ca-certificates"
)
_CONCERNS_PIP = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "HTTP", "http", "NO_PROXY", "no_proxy")
# Folders of this machine that pip's settings may name, and what tells it where others are.
_BUILD = """
for name in /dev /etc/ssl /etc/resolv.conf /etc/hosts /etc/pip.conf "$HOME/.config/pip" \\
  "$HOME/.pip" /opt; do
  [ -e "$name" ] || continue
  if [ -d "$name" ]; then mkdir -p "$1$name"; else mkdir -p "$1${name%/*}"; : >"$1$name"; fi
  mount --rbind "$name" "$1$name"
done
mount -t proc proc "$1/proc"
exec chroot "$1" /sources/packaging/build-deb /out
"""


@dataclass(frozen=True, slots=True)
class Debs:
    """The two packages of one build."""

    daemon: Path
    control: Path


def build(out: Path, root: Path = ROOT, **environment: str) -> Debs:
    """Run ``packaging/build-deb`` of a checkout; fails with its words. Some 30 s."""
    done = subprocess.run(
        [root / "packaging/build-deb", out],
        cwd="/", env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    daemon, control = map(Path, done.stdout.splitlines())
    return Debs(daemon, control)


def build_on(suite: str, scratch: Path) -> Debs:
    """Run ``packaging/build-deb`` on another Debian, in a folder that is made for it.

    It reaches Python packages as this machine does: pip's own settings and certificates go along.
    """
    system, out = scratch / suite, scratch / suite / "out"
    debian.make(system, _BUILD_PACKAGES, suite)
    (system / "sources").mkdir()
    archive = f'git -C "{ROOT}" archive HEAD | tar -xf - -C "{system}/sources"'
    subprocess.run(["bash", "-euo", "pipefail", "-c", archive], check=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(_CONCERNS_PIP)}
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-ec", _BUILD, "build", system],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **kept,
             "SOURCE_DATE_EPOCH": source_date()},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    daemon, control = (out / Path(line).name for line in done.stdout.splitlines()[-2:])
    return Debs(daemon, control)


def source_date(root: Path = ROOT) -> str:
    """The last commit's time, in seconds."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def copy_sources(target: Path) -> None:
    """What git knows of this checkout, changed or not, without its history."""
    target.mkdir()
    command = "git ls-files -coz --exclude-standard | tar --null -T - -cf - | tar -xf - -C "
    subprocess.run(["bash", "-ec", f'{command}"$1"', "copy", target], cwd=ROOT, check=True)


def unpack(deb: Path, target: Path) -> Path:
    """A package's tree, with its control files in ``DEBIAN``."""
    subprocess.run(["dpkg-deb", "-R", deb, target], check=True)
    return target


def next_version(deb: Path, scratch: Path) -> Path:
    """The same package with a version that is one higher, and one file more."""
    tree = unpack(deb, scratch / f"tree-{deb.stem}")
    control = tree / "DEBIAN/control"
    text, changed = re.subn(r"(?m)^(Version: .*)$", r"\1.1", control.read_text())
    assert changed == 1
    control.write_text(text)
    (tree / "usr/share" / field(deb, "Package") / "newer").write_text("newer\n")
    newer = scratch / f"newer-{deb.name}"
    pack = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "-b", str(tree), str(newer)]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    return newer


def field(deb: Path, name: str) -> str:
    """A field of a package's control file."""
    command = ["dpkg-deb", "-f", str(deb), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

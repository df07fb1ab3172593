"""How bcd gets onto the emulated host: the one place that knows it.

The tree and the packages of this very environment are laid into a disk, for the suite whose Python
is of the same version as ours. For Debian 13 in any case the same versions can be fetched as wheels
for its Python; pystemd, of which there are no wheels, is Debian's own there.
"""

import compileall
import py_compile
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.vm.image import run

ROOT = Path(__file__).parents[2]
_PYTHON_OF = {(3, 11): "bookworm", (3, 13): "trixie"}
# What ``fill_for_trixie`` leaves to Debian.
TRIXIE_PACKAGES = ("python3-pystemd",)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_TREE = (
    "bcd",
    "systemd",
    "tests/__init__.py",
    "tests/contracts/__init__.py",
    "tests/contracts/slice_cases.py",
    "tests/vm/__init__.py",
    "tests/vm/guest",
)
_RUN = """\
#!/bin/sh
units=/usr/lib/systemd/system
if [ ! -e $units/bcd.slice ]; then
  cd /payload/tree/systemd
  cp -r *.slice *.slice.d bcd-mps@.service $units/
  systemctl daemon-reload
fi
cd /
export PYTHONPATH=/payload/tree:/payload/site {bytecode}
exec python3 -P -m tests.vm.guest /results
"""


def suite() -> str:
    """The Debian suite whose Python can run what this environment has installed."""
    found = _PYTHON_OF.get(sys.version_info[:2])
    assert found is not None, (
        f"no Debian suite has Python {sys.version_info[0]}.{sys.version_info[1]}"
    )
    return found


def fill(folder: Path) -> None:
    """Lay the tree, its packages and the program that ``run-payload`` starts into a folder."""
    _lay_tree(folder)
    for distribution in _needed("better-compute[systemd]"):
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                target = folder / "site" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), target)
    # Emulated, compiling takes longer than running; nothing there checks the files' times.
    compiled = compileall.compile_dir(
        folder, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    assert compiled, "a package of this environment does not compile"
    _write_program(folder, "PYTHONDONTWRITEBYTECODE=1")


def fill_for_trixie(folder: Path) -> None:
    """The same for Debian 13 with ``TRIXIE_PACKAGES``, whatever runs here; fetches 14 MB."""
    _lay_tree(folder)
    names = [f"{each.name}=={each.version}" for each in _needed("better-compute")]
    run(
        sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile",
        "--only-binary=:all:", "--python-version=3.13", "--implementation=cp",
        *(f"--platform={each}" for each in _PLATFORMS), f"--target={folder / 'site'}", *names,
    )  # fmt: skip
    # Only its own Python can compile; what it compiled serves after the reboot as well.
    _write_program(folder, "PYTHONPYCACHEPREFIX=/var/cache/bytecode")


def _lay_tree(folder: Path) -> None:
    for name in _TREE:
        source, target = ROOT / name, folder / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def _write_program(folder: Path, bytecode: str) -> None:
    program = folder / "run"
    program.write_text(_RUN.format(bytecode=bytecode))
    program.chmod(0o755)


def _needed(text: str) -> list[metadata.Distribution]:
    """Every installed distribution that a requirement needs, without its own."""
    found: dict[str, metadata.Distribution] = {}
    todo = [Requirement(text)]
    while todo:
        wanted = todo.pop()
        try:
            distribution = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError as error:
            raise AssertionError(
                f"{wanted.name} is not installed; pip install -e '.[dev,systemd]' (needs gcc,"
                " pkg-config, python3-dev and libsystemd-dev)"
            ) from error
        found[canonicalize_name(wanted.name)] = distribution
        for line in distribution.requires or ():
            requirement = Requirement(line)
            known = canonicalize_name(requirement.name) in found
            if not known and _applies(requirement, {"", *wanted.extras}):
                todo.append(requirement)
    del found["better-compute"]
    return list(found.values())


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)

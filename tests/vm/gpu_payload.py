"""What an operator's host needs from outside: packages, made-up hardware, an image, a gateway.

bcd itself comes as the package that operators install; of this tree only tests go along.
"""

import json
import shutil
from pathlib import Path

from tests.node.host.driver.fake import GPU_MAJOR, MEMORY_MAJOR, FakeDriver
from tests.nvml.stub import DRIVER, State, build, gpu
from tests.package.build import build as build_packages
from tests.package.build import build_on, next_version
from tests.vm.image import run

ROOT = Path(__file__).parents[2]
# Beside what every emulated host has.
PACKAGES = ("apt", "podman", "crun", "python3")
_GPUS = 4
_TREE = (
    "__init__.py",
    "authority.py",
    "node/__init__.py",
    "node/fake_gateway.py",
    "vm/__init__.py",
    "vm/guest/__init__.py",
    "vm/guest/host.py",
    "vm/guest/gpu_host.py",
    "vm/guest/journey.py",
)
_APPLETS = ("sh", "env", "ls", "cat", "dd", "sleep", "grep")
_RUN = """\
#!/bin/sh
# The scenarios run on the libraries of the package; the first one judges how it was installed.
if [ ! -e /results/installed ]; then
  apt-get install -y /payload/bcd.deb >/results/apt.log 2>&1
  echo $? >/results/installed
fi
cd /
export PYTHONPATH=/payload/tree PYTHONDONTWRITEBYTECODE=1
exec /usr/lib/bcd/bin/python3 -P -m tests.vm.guest.journey /results {annotations}
"""


def fill(folder: Path, annotations: str, suite: str) -> None:
    """Lay everything into a folder; builds the packages, which takes half a minute."""
    folder.mkdir()
    scratch = folder.with_name("scratch")
    scratch.mkdir()
    _packages(folder, scratch, suite)
    _hardware(folder, scratch)
    _image(folder, scratch)
    for name in _TREE:
        target = folder / "tree/tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, target)
    program = folder / "run"
    program.write_text(_RUN.format(annotations=annotations))
    program.chmod(0o755)


def _packages(folder: Path, scratch: Path, suite: str) -> None:
    """Built on the suite that they are installed on, as operators do."""
    own = suite == "bookworm"
    debs = build_packages(scratch / "debs") if own else build_on(suite, scratch)
    shutil.copy(debs.daemon, folder / "bcd.deb")
    shutil.copy(next_version(debs.daemon, scratch), folder / "newer.deb")


def _hardware(folder: Path, scratch: Path) -> None:
    """The driver's files, the state of the NVML stub, and the nodes to make."""
    made = FakeDriver(scratch / "host", version=DRIVER)
    made.install()
    shutil.rmtree(made.root / "run")  # sockets belong to services
    (folder / "proc").mkdir()
    shutil.move(made.root / "proc/driver", folder / "proc/driver")
    shutil.move(made.root / "proc/devices", folder / "proc/devices")
    shutil.rmtree(made.root / "proc")
    shutil.copytree(made.root, folder / "driver", symlinks=True)
    shutil.rmtree(made.root)
    library = build(folder / "nvml", state_file=Path("/var/lib/nvml.state"))
    _as_installed(library / "libnvidia-ml.so.1", folder)
    state = State(gpus=tuple(gpu(number) for number in range(_GPUS)))
    (folder / "nvml/state").write_text(state.text())
    nodes = [(f"nvidia{number}", GPU_MAJOR, number) for number in range(_GPUS)]
    nodes += [("nvidiactl", GPU_MAJOR, 255), ("nvidia-uvm", MEMORY_MAJOR, 0)]
    nodes += [("nvidia-uvm-tools", MEMORY_MAJOR, 1)]
    (folder / "nodes.json").write_text(json.dumps(nodes))


def _as_installed(stub: Path, folder: Path) -> None:
    """The stub takes the place of the driver's own library, with the name of its version."""
    [placed] = (folder / "driver").rglob(f"libnvidia-ml.so.{DRIVER}")
    shutil.copy(stub, placed)
    stub.unlink()


def _image(folder: Path, scratch: Path) -> None:
    """A container's root file system: busybox, and a program that takes huge pages."""
    root = scratch / "rootfs"
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp", "run"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    source = ROOT / "tests/vm/guest/huge.c"
    run("gcc", "-O1", "-static", "-o", str(root / "bin/huge"), str(source))
    run("tar", "-C", str(root), "-cf", str(folder / "busybox.tar"), ".")

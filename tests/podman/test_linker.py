"""A program in a container loads CUDA by its name, though no hook program made links or a cache.

The dynamic linker is the real one; the library is a made one that only says yes.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd.node import cdi
from bcd.node.hold import hold_of
from bcd.node.ports import GpuSnapshot
from tests.node.host.driver.fake import VERSION, FakeDriver
from tests.node.memory import device
from tests.node.world import assignment, node_id
from tests.podman.container import Podman

LIBRARY = "int cuInit(unsigned flags) { return flags ? 1 : 0; }\n"
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) { puts(dlerror()); return 1; }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  return printf("cuInit says %d\\n", init(0)) < 0;
}
"""


def compile_c(source: str, target: Path, *options: str) -> None:
    """Compile a text; fails with the compiler's words."""
    if shutil.which("gcc") is None:
        raise RuntimeError("gcc is not installed: run apt-get install -y gcc libc6-dev")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-x", "c", "-", "-o", str(target), *options]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def podman() -> Iterator[Podman]:
    """A root file system with the program, its dynamic linker and C library."""
    with tempfile.TemporaryDirectory(prefix="bcd-") as folder:
        made = Podman(Path(folder))
        made.prepare()
        program = made.folder / "rootfs/bin/probe"
        compile_c(PROGRAM, program, "-ldl")
        needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        for word in needs.stdout.split():
            if word.startswith("/"):
                place = made.folder / f"rootfs{word}"
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, place)
        yield made


@pytest.mark.parametrize(
    "folder", ["/usr/lib/{}", "/usr/lib/{}/nvidia/current", "/usr/lib64"], ids=range(3)
)
def test_a_program_finds_cuda_without_the_hook_program(podman: Podman, folder: str) -> None:
    """In this Debian's folders, and where other distributions keep libraries."""
    triplet = subprocess.run(
        ["gcc", "-print-multiarch"], capture_output=True, text=True, check=True
    ).stdout.strip()
    folder = folder.format(triplet)
    host = FakeDriver(podman.folder / "host")
    host.control()
    host.gpu(0)
    for stem in ("libcuda", "libnvidia-ml"):
        library = host.root / f"{folder[1:]}/{stem}.so.{VERSION}"
        compile_c(LIBRARY, library, "-shared", "-fPIC", f"-Wl,-soname,{stem}.so.1")
    driver = host.open()
    gpu, common = driver.gpu(0, ""), driver.common(VERSION)
    assert common.hooks == ()
    assert driver.problem(common) is None
    gpus = GpuSnapshot(edits={"GPU-0": gpu}, common=common)
    hold = hold_of(assignment(1, device("GPU-0")))
    specs = podman.folder / "cdi"
    specs.mkdir()
    for file in cdi.render(hold, gpus, node_id(), annotate=True) or ():
        (specs / file.name).write_bytes(file.content)
    assert podman.run(specs, [], "/bin/probe").returncode == 1
    assert podman.say(specs, ["bcd.dev/gpu=GPU-0"], "/bin/probe") == "cuInit says 0\n"

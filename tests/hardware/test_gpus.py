"""A host with NVIDIA GPUs and their driver; root is not needed, idle GPUs are."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bcd.model.report import Failed, FailureReason
from bcd.node.edits import DeviceEdits, DeviceNode
from bcd.node.host.nvml.gpus import NvmlGpus
from bcd.node.settings import NvmlSettings
from tests.hardware.checks import CHECKS, Subject, answering

# A context on the device is a compute process; it ends with its stdin.
_COMPUTE = """
import ctypes, sys
cuda, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
for done in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
             cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)):
    if done:
        sys.exit(f"CUDA error {done}")
print("up", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class DeviceNodes:
    """The nodes in /dev alone."""

    def common(self, driver_version: str) -> DeviceEdits:
        return _nodes("/dev/nvidiactl")

    def gpu(self, minor: int, pci_address: str) -> DeviceEdits:
        return _nodes(f"/dev/nvidia{minor}")

    def mig(self, minor: int, pci_address: str, gi: int, ci: int, *, graphics: bool) -> DeviceEdits:
        return _nodes(f"/dev/nvidia{minor}")

    def problem(self, edits: DeviceEdits) -> Failed | None:
        for node in edits.nodes:
            if not Path(node.host_path).is_char_device():
                return Failed(FailureReason.DEVICE_NODE_MISSING, f"{node.host_path} is no node")
        return None

    def fingerprint(self) -> object:
        return None


def _nodes(path: str) -> DeviceEdits:
    return DeviceEdits(nodes=(DeviceNode(path, path),))


@contextlib.contextmanager
def computing(device_id: str) -> Iterator[None]:
    """A CUDA context on a device."""
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPUTE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"CUDA_VISIBLE_DEVICES": device_id},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield
        process.communicate("")


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    root = Path("/")
    gpus = NvmlGpus(root, DeviceNodes(), NvmlSettings())
    with answering(gpus) as seconds:
        print(f"first answer of NVML: {seconds:.2f} s")
        yield Subject(gpus, root, computing)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_real_gpus(check: object, subject: Subject) -> None:
    assert callable(check)
    check(subject)

"""A made host, and ``bcd run`` on it as an operator runs it: real ports, default settings.

The driver's files and nodes and a large /dev, /sys and library folder are made up; NVML is the
stub in the daemon's own child. Slices need a booted systemd, so holds here have no limits. Needs
root for the device nodes.
"""

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bcd.node.identity import save_identity
from bcd.sim.machine import build_machine
from bcd.wire.node.v1 import inventory_pb2
from tests.bench.measure import cpu_ns
from tests.node.fake_gateway import FakeGateway
from tests.node.host.driver.fake import LIBRARIES, VERSION, standing
from tests.node.process import start
from tests.node.world import node_id
from tests.nvml.captured import DGX_A100, matrix
from tests.nvml.stub import Host, State, build

GPUS = 8
# What else such a host has: libraries, device nodes and PCI functions that are no GPUs.
_OTHER_LIBRARIES, _OTHER_NODES, _OTHER_FUNCTIONS = 3_000, 300, 250
_CONTROLLERS = "cpuset cpu io memory hugetlb pids\n"


def make_host(root: Path) -> Path:
    """Make the host's files; returns the folder of its NVML."""
    build_machine(root, "dgx-h100", seed=node_id(), hostname="host1")
    library = build(root / "var/nvml", state_file=root / "nvml.state")
    gpus = matrix(DGX_A100, switched=True)
    Host(root, library, State(gpus=gpus, driver=VERSION, nvml=f"12.{VERSION}"))
    build_machine(root, "dgx-h100", seed=node_id(), hostname="host1")  # its NUMA nodes again
    driver = standing(root, gpus=GPUS)
    for number in range(_OTHER_LIBRARIES):
        driver.put(f"{LIBRARIES}/libother{number}.so.1.2.{number}")
    for number in range(_OTHER_NODES):
        driver.write(f"/dev/other{number}")
    for number in range(_OTHER_FUNCTIONS):
        driver.write(f"/sys/bus/pci/devices/0001:{number:02x}:00.0/vendor", "0x8086\n")
    driver.write("/run/systemd/private")
    (root / "run/systemd/system").mkdir()
    driver.write("/sys/fs/cgroup/cgroup.controllers", _CONTROLLERS)
    driver.settle()
    return library


@dataclass
class Daemon:
    """The daemon's process and its NVML child, connected, with its GPUs known."""

    process: psutil.Process
    child: psutil.Process
    metrics: str

    def cpu_ns(self) -> tuple[int, int]:
        """What daemon and child used so far; the daemon's other children are none of it."""
        return cpu_ns(self.process.pid), cpu_ns(self.child.pid)

    async def scrape(self) -> None:
        """Fetch the metrics, as a Prometheus on the host does."""
        address = f"http://{self.metrics}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(address).read())
        assert b"bcd_" in page


@asynccontextmanager
async def running_daemon(root: Path, gateway: FakeGateway) -> AsyncIterator[Daemon]:
    """Enrol and run the daemon on a host."""
    library = make_host(root)
    save_identity(root / "var/lib/bcd", gateway.node_credentials(node_id()))
    metrics = f"127.0.0.1:{_free_port()}"
    config = root / "bcd.toml"
    config.write_text(
        f'[gateway]\naddress = "{gateway.address}"\nenroll_address = "{gateway.enroll_address}"\n'
        f'[paths]\nroot = "{root}"\nsocket = "{root}/s"\n[metrics]\nlisten = "{metrics}"\n'
    )
    arguments = ["-m", "bcd.cli.bcd", "run", "--config", str(config)]
    environment = {"LD_LIBRARY_PATH": str(library)}
    started = await start(arguments, root / "errors.log", environment)
    try:
        none = inventory_pb2.Inventory()
        await gateway.until(
            lambda: len(gateway.inventories.get(node_id(), none).devices) == GPUS, 60
        )
        process = psutil.Process(started.pid)
        [child] = process.children()
        yield Daemon(process, child, metrics)
    finally:
        await started.end()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])

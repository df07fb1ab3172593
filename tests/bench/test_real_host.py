"""What binding and idling cost on a host's real ports, beside the floor of the same run.

A bind is measured from the signed desired state's way out of the gateway to the arrival of the
signed, verified report Bound. Its floor is a process on an equal stream that only verifies, signs
and replaces the same files; see ``echo``. The CPU of a bind is that of the daemon and its NVML
child, of the floor that of its process; the gateway's side is in neither.
"""

import asyncio
import time
from pathlib import Path

import pytest

from bcd.model.assignment import Assignment, DesiredState, HostReserve
from bcd.model.report import Bound, Released
from bcd.signing.certificates import Role
from bcd.wire.inventory import decode_inventory
from bcd.wire.node.v1.desired_pb2 import SignedDesiredState
from tests.bench.echo import Stream, echo_stream
from tests.bench.measure import MIB, cpu_ns, percentile, rss_bytes, table
from tests.bench.real_host import GPUS, Daemon, running_daemon
from tests.conftest import Rounds
from tests.node.fake_gateway import FakeGateway
from tests.node.world import assignment, node_id

_WARM_UP = 5  # the first ones load code
_SCRAPE_S = 15
# The acknowledgement is written down a moment after it came.
_SETTLE_S = 0.2


class Binder:
    """Binds and releases half of the host's GPUs, beside a hold on each of the others."""

    def __init__(self, gateway: FakeGateway, daemon: Daemon) -> None:
        self._gateway = gateway
        self._daemon = daemon
        self._generation = 0
        inventory, _ = decode_inventory(gateway.inventories[node_id()])
        half = GPUS // 2
        self.devices, others = inventory.devices[:half], inventory.devices[half:]
        self.others = tuple(
            assignment(10**6 + number, device) for number, device in enumerate(others)
        )

    def frame(self, *holds: Assignment) -> SignedDesiredState:
        """The next signed state."""
        self._generation += 1
        state = DesiredState(
            node_id=node_id(),
            epoch=1,
            generation=self._generation,
            host_reserve=HostReserve(2, 4 << 30),
            assignments=(*self.others, *holds),
        )
        return self._gateway.sign_state(state)

    async def begin(self, *holds: Assignment) -> None:
        """Bind the others, and more."""
        await self.apply(self.frame(*holds), Bound, len(self.others) + len(holds))

    async def apply(self, frame: SignedDesiredState, kind: type, count: int = 1) -> float:
        """Seconds from a state to its reports."""
        self._gateway.reports.clear()
        began = time.perf_counter()
        self._gateway.send(node_id(), frame)
        await self._gateway.until(lambda: len(self._gateway.said(kind)) == count)
        return time.perf_counter() - began

    async def cycle(self, number: int) -> tuple[float, tuple[float, float], float]:
        """(seconds of the bind, CPU seconds of daemon and child in it, CPU seconds in all).

        In all: with the release, and what is written down after both.
        """
        bind, release = self.frame(assignment(number, *self.devices)), self.frame()
        before = self._daemon.cpu_ns()
        seconds = await self.apply(bind, Bound)
        bound = self._daemon.cpu_ns()
        await asyncio.sleep(_SETTLE_S)
        await self.apply(release, Released)
        await asyncio.sleep(_SETTLE_S)
        ended = self._daemon.cpu_ns()
        own, child = ((after - then) / 1e9 for then, after in zip(before, bound, strict=True))
        return seconds, (own, child), (sum(ended) - sum(before)) / 1e9


async def floor(echo: tuple[Stream, int], frame: SignedDesiredState) -> tuple[float, float]:
    """(seconds, CPU seconds of the process) of the least that a bind can be."""
    stream, pid = echo
    message = frame.SerializeToString()
    used = cpu_ns(pid)
    began = time.perf_counter()
    await stream.write(message)
    assert await stream.read()
    ended = time.perf_counter()
    return ended - began, (cpu_ns(pid) - used) / 1e9


@pytest.mark.timeout(900)
async def test_binds_on_real_ports(tmp_path: Path, rounds: Rounds) -> None:
    count = rounds(60, 300)
    gateway = FakeGateway()
    await gateway.start()
    own = gateway.authority.issue(Role.GATEWAY, "echo", names=("localhost",))
    root, bare = tmp_path / "host", tmp_path / "bare"
    bare.mkdir()
    try:
        async with running_daemon(root, gateway) as daemon, echo_stream(own, tmp_path, bare) as to:
            binder = Binder(gateway, daemon)
            await binder.begin()
            binds, floors = [], []
            for number in range(1, _WARM_UP + count + 1):
                binds.append(await binder.cycle(number))
                floors.append(await floor(to, binder.frame()))
    finally:
        await gateway.stop()
    seconds, cpu, whole = zip(*binds[_WARM_UP:], strict=True)
    floor_seconds, floor_cpu = zip(*floors[_WARM_UP:], strict=True)
    p50, floor50 = percentile(seconds, 50) * 1e3, percentile(floor_seconds, 50) * 1e3
    p99, floor99 = percentile(seconds, 99) * 1e3, percentile(floor_seconds, 99) * 1e3
    own_ms, child_ms = (sum(part) / count * 1e3 for part in zip(*cpu, strict=True))
    floor_ms = sum(floor_cpu) / count * 1e3
    table(
        f"desired state sent -> report Bound received, {GPUS // 2} GPUs beside"
        f" {len(binder.others)} holds, {count} times",
        [
            ("p50 / p99", f"{p50:.2f} / {p99:.2f} ms"),
            ("floor p50 / p99", f"{floor50:.2f} / {floor99:.2f} ms"),
            ("p50 over the floor", f"{p50 / floor50:.2f} x"),
            ("CPU of daemon + NVML child each", f"{own_ms:.2f} + {child_ms:.2f} ms"),
            ("floor's CPU each", f"{floor_ms:.2f} ms"),
            ("CPU over the floor", f"{(own_ms + child_ms) / floor_ms:.2f} x"),
            ("CPU with release and all looks", f"{sum(whole) / count * 1e3:.2f} ms"),
        ],
    )


@pytest.mark.timeout(600)
async def test_an_idle_daemon_on_real_ports(tmp_path: Path, rounds: Rounds) -> None:
    idle_s = rounds(45, 240)
    gateway = FakeGateway()
    await gateway.start()
    try:
        async with running_daemon(tmp_path / "host", gateway) as daemon:
            binder = Binder(gateway, daemon)
            await binder.begin(assignment(1, *binder.devices))
            await asyncio.sleep(5)
            before = daemon.cpu_ns()
            scrapes = max(1, idle_s // _SCRAPE_S)
            for _ in range(scrapes):
                await asyncio.sleep(idle_s / scrapes)
                await daemon.scrape()
            own, child = (
                (after - then) / 1e7 / idle_s
                for then, after in zip(before, daemon.cpu_ns(), strict=True)
            )
            rss = rss_bytes(daemon.process.pid) / MIB, rss_bytes(daemon.child.pid) / MIB
    finally:
        await gateway.stop()
    table(
        f"an idle daemon on real ports: {GPUS} GPUs in {len(binder.others) + 1} holds, connected,"
        " metrics fetched",
        [
            ("RSS of daemon + NVML child", f"{rss[0]:.1f} + {rss[1]:.1f} MiB"),
            (f"CPU over {idle_s} s", f"{own:.2f} + {child:.2f} = {own + child:.2f} % of a core"),
        ],
    )

"""``bcd run`` as an operator starts it: a process of its own on the host's hardware."""

from pathlib import Path

import pytest

from bcd.model.assignment import AssignedDevice
from bcd.model.device import DeviceClass
from bcd.model.report import Failed, FailureReason
from tests.node.fake_gateway import FakeGateway
from tests.node.host.driver.fake import FakeDriver
from tests.node.process import start_bcd
from tests.node.world import Site, assignment, limits
from tests.nvml.stub import DRIVER, Host, State, build, gpu

WHOLE = AssignedDevice(gpu(0).uuid, DeviceClass.GPU)
pytestmark = pytest.mark.asyncio(loop_scope="session")


def failures(gateway: FakeGateway) -> list[str]:
    outcomes = [report.outcome for report in gateway.said(Failed)]
    return [outcome.reason for outcome in outcomes if isinstance(outcome, Failed)]


async def test_a_host_without_a_driver_joins_and_refuses_with_the_reason(
    site: Site, gateway: FakeGateway
) -> None:
    unheard = {"LD_LIBRARY_PATH": str(site.root)}
    daemon = await start_bcd(site, unheard, simulated=False)
    await gateway.until(lambda: bool(gateway.inventories))
    assert not gateway.inventories[site.node_id].devices
    assert list(gateway.hellos[0].capabilities) == ["attested-reports"]
    gateway.want(site.node_id, assignment(1, WHOLE), generation=1)
    await gateway.until(lambda: failures(gateway) == [FailureReason.DRIVER_UNAVAILABLE])
    assert await daemon.end() == 0, daemon.log()
    assert "Traceback" not in daemon.log()


async def test_a_host_whose_nodes_are_missing_says_which(
    site: Site, gateway: FakeGateway, tmp_path: Path
) -> None:
    host = Host(site.root, tmp_path, State(gpus=(gpu(0), gpu(1))))
    library = build(tmp_path / "library", state_file=host.file)
    driver = FakeDriver(site.root, version=DRIVER)
    driver.install()
    daemon = await start_bcd(site, {"LD_LIBRARY_PATH": str(library)}, simulated=False)
    await gateway.until(lambda: bool(gateway.inventories[site.node_id].devices)
                        if site.node_id in gateway.inventories else False)  # fmt: skip
    [first, second] = gateway.inventories[site.node_id].devices
    assert (first.id, second.pci_address) == (gpu(0).uuid, gpu(1).address)
    gateway.want(site.node_id, assignment(1, WHOLE), generation=1)
    await gateway.until(lambda: failures(gateway) == [FailureReason.DEVICE_NODE_MISSING])
    gateway.want(site.node_id, assignment(2, WHOLE, limits=limits()), generation=2)
    await gateway.until(lambda: failures(gateway)[-1:] == [FailureReason.LIMITS_UNSUPPORTED])
    assert await daemon.end() == 0, daemon.log()

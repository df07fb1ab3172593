"""The operator's commands beside a running daemon on simulated hardware."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from bcd.model.report import Bound
from tests.node.fake_gateway import FakeGateway
from tests.node.process import start_bcd
from tests.node.world import Site, alloc_id, assignment, limits

HOME = Path(__file__).parents[2]


async def bcd(site: Site, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb on the site's host to its end."""
    config = site.root / "bcd.toml"
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "bcd.cli.bcd", verb, "--config", str(config), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(HOME)},
    )


async def test_a_simulated_host_that_works_passes_the_doctor(
    site: Site, gateway: FakeGateway
) -> None:
    gateway.want(site.node_id, assignment(1, site.devices()[0], limits=limits()), generation=1)
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.said(Bound)))
    done = await bcd(site, "doctor", "-o", "json")
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert [f for f in found.values() if f["level"] == "failed"] == []
    assert (done.returncode, done.stderr) == (0, "")
    assert found["holds"]["found"] == "1 on disk, each with its parts"
    assert found["session"]["found"] == "stands"
    assert found["driver"]["level"] == "simulated"
    assert await daemon.end() == 0
    done = await bcd(site, "doctor")
    assert done.returncode == 1
    assert "1 failed" in done.stderr


async def test_holds_show_what_failed_and_exec_uses_what_stands(
    site: Site, gateway: FakeGateway
) -> None:
    gpus = site.devices()
    (site.root / "faults.toml").write_text("[xid]\n7 = 79\n")
    wanted = (
        assignment(1, gpus[0]),
        assignment(2, gpus[1], limits=limits()),
        assignment(3, gpus[7]),
    )
    gateway.want(site.node_id, *wanted, generation=1)
    daemon = await start_bcd(site)
    await gateway.until(lambda: len(gateway.said(Bound)) == 2)
    document = json.loads((await bcd(site, "holds", "-o", "json")).stdout)
    assert document["daemon"] is True
    assert [hold["state"] for hold in document["holds"]] == ["bound", "bound", "failed"]
    assert document["holds"][2]["reason"] == "device-unhealthy"
    text = (await bcd(site, "holds")).stdout
    assert "  because  device-unhealthy: " in text
    words = (str(alloc_id(1)), "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (await bcd(site, "exec", *words)).stdout == f"{gpus[0].id}\n"
    refused = await bcd(site, "exec", str(alloc_id(2)), "--", "true")
    assert (refused.returncode, "simulated host" in refused.stderr) == (1, True)
    assert await daemon.end() == 0
    document = json.loads((await bcd(site, "holds", "-o", "json")).stdout)
    assert [hold["state"] for hold in document["holds"]] == ["bound", "bound"]

"""``bcd-gateway run`` as a process of its own, under the restricted role."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bcd.store import sessions
from bcd.wire.node.v1 import gateway_pb2 as pb
from tests.gateway.conftest import Site
from tests.gateway.node import TestNode
from tests.postgres import Cluster


@dataclass
class Running:
    """A gateway process and the port that it said it listens on."""

    process: asyncio.subprocess.Process
    node_port: int
    log: list[str]

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and wait; the rest of the log is kept."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            self.log += (await self.process.stderr.read()).decode().splitlines()
            return await self.process.wait()


def write_config(site: Site, url: str, node_listen: str = "127.0.0.1:0") -> Path:
    path = site.folder / "gateway.toml"
    path.write_text(
        f'database = "{url}"\nstate = "{site.folder}"\n[gateway]\n'
        f'node_listen = "{node_listen}"\nenrolment_listen = "127.0.0.1:0"\n'
    )
    return path


async def launch(config: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("bcd-gateway")),
        "run",
        f"--config={config}",
        stderr=asyncio.subprocess.PIPE,
    )


@contextlib.asynccontextmanager
async def running(config: Path) -> AsyncIterator[Running]:
    process = await launch(config)
    assert process.stderr is not None
    log: list[str] = []
    try:
        async with asyncio.timeout(60):
            while True:
                line = (await process.stderr.readline()).decode()
                assert line, log
                log.append(line)
                entry = json.loads(line)
                if entry["message"] == "gateway ready":
                    break
        yield Running(process, entry["node_port"], log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_terminated_gateway_sends_its_nodes_away_and_exits_with_0(
    site: Site, database_url: str, postgresql: Cluster
) -> None:
    config = write_config(site, postgresql.gateway_url(database_url))
    node_id, credentials = await site.add_node()
    async with (
        running(config) as gateway,
        TestNode(gateway.node_port, credentials, node_id) as node,
    ):
        await node.welcome()
        ending = asyncio.create_task(gateway.end(signal.SIGTERM))
        assert (await node.goaway()).reason == pb.GOAWAY_REASON_SHUTDOWN
        assert await ending == 0
    assert "Traceback" not in "".join(gateway.log)
    session = await site.database.read(sessions.get, node_id)
    assert session is not None
    assert not session.connected


async def test_sighup_reads_the_level_again(
    site: Site, database_url: str, postgresql: Cluster
) -> None:
    config = write_config(site, postgresql.gateway_url(database_url))
    async with running(config) as gateway:
        stderr = gateway.process.stderr
        assert stderr is not None
        changed = config.read_text().replace("[gateway]", "[gateway]\ntick_ms = 1000")
        for text, words in (
            ("[gateway", "settings stay as they were"),
            (f'log_level = "info"\n{changed}', "takes effect with a restart only"),
            (f'log_level = "error"\n{changed}', ""),
        ):
            config.write_text(text)
            gateway.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(30):
                while words and words not in (await stderr.readline()).decode():
                    pass
        assert await gateway.end(signal.SIGTERM) == 0
    assert "gateway stopped" not in "".join(gateway.log), "the level is error now"


async def test_a_killed_gateway_is_followed_by_another_that_fences_nobody(
    site: Site, database_url: str, postgresql: Cluster
) -> None:
    config = write_config(site, postgresql.gateway_url(database_url))
    node_id, credentials = await site.add_node()
    async with (
        running(config) as gateway,
        TestNode(gateway.node_port, credentials, node_id) as node,
    ):
        await node.welcome()
        await gateway.end(signal.SIGKILL)
        await node.ended()
    async with (
        running(config) as gateway,
        TestNode(gateway.node_port, credentials, node_id) as node,
    ):
        assert (await node.welcome()).session_epoch == 2


async def test_a_taken_port_is_named_in_one_sentence(
    site: Site, database_url: str, postgresql: Cluster
) -> None:
    url = postgresql.gateway_url(database_url)
    async with running(write_config(site, url)) as gateway:
        taken = f"127.0.0.1:{gateway.node_port}"
        process = await launch(write_config(site, url, taken))
        assert process.stderr is not None
        async with asyncio.timeout(30):
            said = (await process.stderr.read()).decode()
            assert await process.wait() == 1
    assert f"bcd-gateway: gateway.node_listen: cannot listen on {taken}" in said
    assert "Traceback" not in said


async def test_a_database_without_schema_is_named_in_one_sentence(
    site: Site, postgresql: Cluster
) -> None:
    process = await launch(write_config(site, postgresql.empty_database()))
    assert process.stderr is not None
    async with asyncio.timeout(30):
        said = (await process.stderr.read()).decode()
        assert await process.wait() == 1
    assert "start the placer of the same release" in said
    assert "Traceback" not in said

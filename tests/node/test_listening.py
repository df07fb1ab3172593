"""What the daemon serves costs it nothing else: no port or socket of it is worth a hold."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bcd.durable import may_pass
from bcd.model.errors import BcdError, BrokenFile, Unavailable
from bcd.model.report import Bound
from bcd.node.condition import NodeCondition
from bcd.node.connections import MAX_CONNECTIONS
from bcd.node.host.folder import unusable
from bcd.node.listening import Listening
from bcd.node.scrape import ScrapeServer
from bcd.node.settings import MetricsSettings
from bcd.node.status import StatusServer, ask
from bcd.signing.keyfile import CREDENTIALS, load_credentials
from tests.node.clock import HandClock
from tests.node.fake_gateway import FakeGateway
from tests.node.world import Site, assignment, eventually, running


async def test_a_metrics_port_of_somebody_else_costs_no_hold_and_is_had_once_it_is_free(
    site: Site, gateway: FakeGateway
) -> None:
    gpus = site.devices()
    gateway.want(site.node_id, assignment(1, gpus[0]), generation=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        site.settings = msgspec.structs.replace(
            site.settings, metrics=MetricsSettings(listen=address)
        )
        site.clock = clock = HandClock()
        daemon = site.open()
        async with running(daemon):
            await gateway.until(lambda: bool(gateway.said(Bound)))
            [trouble] = daemon.conditions
            assert trouble.type == "MetricsNotServed"
            assert address in trouble.message
            assert daemon.status()["conditions"][0]["type"] == "MetricsNotServed"
            taken.close()
            async with asyncio.timeout(20):
                while daemon.conditions:
                    await clock.advance(5.0, settle_s=0.01)


class Sulky:
    """A server that starts at the given try."""

    def __init__(self, starts_at: int) -> None:
        self.tries = 0
        self._starts_at = starts_at

    async def start(self) -> NodeCondition | None:
        self.tries += 1
        return None if self.tries >= self._starts_at else NodeCondition("T", "s", "no room")

    async def stop(self) -> None:
        self.tries = 0


async def test_one_that_cannot_be_had_keeps_no_other_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, late, soon = HandClock(), Sulky(3), Sulky(1)
    listening = Listening((late, soon), clock)
    with caplog.at_level(logging.INFO, "bcd.node.listening"):
        task = asyncio.create_task(listening.run())
        await clock.advance(0, settle_s=0.01)
        assert (late.tries, soon.tries) == (1, 1)
        assert [trouble.message for trouble in listening.conditions] == ["no room"]
        while not task.done():
            await clock.advance(5, settle_s=0.01)
    assert (late.tries, soon.tries) == (3, 1)
    assert listening.conditions == ()
    assert [r.message for r in caplog.records] == [
        "cannot listen; holds stay",
        "listens after all",
    ]


async def test_a_socket_without_its_folder_is_made_once_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    server = StatusServer(tmp_path / "run/bcd.sock", {"status": lambda: "fine"})
    trouble = await server.start()
    assert trouble is not None
    assert f"{tmp_path}/run/bcd.sock cannot be made (" in trouble.message
    (tmp_path / "run").unlink()
    assert await server.start() is None
    assert await asyncio.to_thread(ask, tmp_path / "run/bcd.sock", "status") == "fine"
    await server.stop()
    await server.stop()
    assert not (tmp_path / "run/bcd.sock").exists()


async def test_a_question_that_never_ends_or_is_unknown_costs_the_next_one_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    server = StatusServer(path, {"status": lambda: "fine"})
    assert await server.start() is None
    idle = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS + 1)]
    assert await asyncio.to_thread(ask, path, "status") == "fine"
    assert await asyncio.to_thread(ask, path, "what") == {"error": "unknown question"}
    with pytest.raises(Unavailable):
        await asyncio.to_thread(ask, path, "status" * 99)
    for _, writer in idle:
        writer.close()
    await server.stop()


def status_server(tmp_path: Path) -> tuple[StatusServer, Callable[[], object]]:
    path = tmp_path / "s"
    return StatusServer(path, {}), lambda: asyncio.open_unix_connection(path)


def scrape_server(_: Path) -> tuple[ScrapeServer, Callable[[], object]]:
    server = ScrapeServer("127.0.0.1:0", str)
    return server, lambda: asyncio.open_connection("127.0.0.1", server.port)


@pytest.mark.parametrize("make", [status_server, scrape_server])
def test_the_end_with_a_connection_open_says_nothing(
    tmp_path: Path,
    make: Callable[[Path], tuple[StatusServer | ScrapeServer, Callable[[], object]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def life() -> None:
        server, connect = make(tmp_path)
        assert await server.start() is None
        reader, writer = await connect()  # type: ignore[misc]
        writer.write(b"sta")
        await eventually(lambda: len(server._connections._open) == 1)
        await server.stop()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    asyncio.run(life())
    assert caplog.records == []


# What ends a start, and whether its unit tries again.


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        *((getattr(errno, n), Unavailable) for n in ("ENOSPC", "EROFS", "EMFILE", "EIO", "EDQUOT")),
        *((getattr(errno, n), BrokenFile) for n in ("ENOTDIR", "EISDIR", "EACCES", "EFBIG")),
    ],
)
def test_what_may_pass_is_tried_again_and_what_lies_there_is_looked_at(
    number: int, kind: type[BcdError]
) -> None:
    error = OSError(number, os.strerror(number), "/var/lib/bcd/x")
    assert may_pass(error) is (kind is Unavailable)
    found = unusable(error)
    assert type(found) is kind
    assert found.message.startswith("/var/lib/bcd/x: cannot be used")


def test_credentials_that_cannot_be_read_now_are_not_called_broken(tmp_path: Path) -> None:
    os.symlink("/proc/self/mem", tmp_path / CREDENTIALS)  # whose first page answers EIO
    with pytest.raises(Unavailable, match=r"credentials\.pem: cannot be read now"):
        load_credentials(tmp_path, "x")

"""The daemon's metrics: the text format read back strictly, and the port that serves it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from bcd.model.report import Bound, Failed
from bcd.node.connections import MAX_CONNECTIONS
from bcd.node.exposition import Family, Histogram, Kind, Sample, exposition
from bcd.node.metrics import BOUNDS_S, PassTimes
from bcd.node.scrape import ScrapeServer
from bcd.node.settings import MetricsSettings
from tests.node.clock import HandClock
from tests.node.exposition import read
from tests.node.fake_gateway import FakeGateway
from tests.node.world import Site, assignment, eventually, running

HOSTILE = ['a"b', "back\\slash", "line\nbreak", "\\n", "{}=,", "ü\N{SNOWMAN}", ""]


def gauge(*samples: Sample, help_: str = "Text.") -> Family:
    return Family(name="bcd_test", kind=Kind.GAUGE, help=help_, samples=samples)


@pytest.mark.parametrize("text", HOSTILE)
def test_labels_and_help_come_back_as_they_were(text: str) -> None:
    page = exposition([gauge(Sample(1, {"a": text, "b": "2"}), help_=text)])
    family = read(page)["bcd_test"]
    assert family.value(a=text, b="2") == 1
    assert family.help == text


def test_half_a_surrogate_pair_does_not_spoil_the_page() -> None:
    page = exposition([gauge(Sample(1, {"a": "\ud800"}))])
    assert read(page.encode().decode())["bcd_test"].value(a="?") == 1


def test_numbers_of_every_size_are_readable() -> None:
    values = [0.0, 3, -1.5, 1e-9, 1.7e300, float("inf"), float("-inf")]
    page = exposition([gauge(*(Sample(v, {"n": str(n)}) for n, v in enumerate(values)))])
    family = read(page)["bcd_test"]
    assert [family.value(n=str(n)) for n in range(len(values))] == values


def test_a_family_without_samples_is_announced() -> None:
    assert read(exposition([gauge()]))["bcd_test"].samples == {}


@pytest.mark.parametrize(
    "page",
    [
        "bcd_a 1\n",
        "# HELP bcd_a A.\n# TYPE bcd_a gauge\nbcd_a 1\nbcd_a 2\n",
        "# HELP bcd_a A.\n# TYPE bcd_a gauge\nbcd_b 1\n",
        '# HELP bcd_a A.\n# TYPE bcd_a gauge\nbcd_a{x="a"b"} 1\n',
        "# HELP bcd_a A.\n# TYPE bcd_a gauge\nbcd_a one\n",
        "# HELP bcd_a A.\n# TYPE bcd_a counter\n",
        "# HELP bcd_a A.\n# TYPE bcd_a gauge\n\n",
        "# TYPE bcd_a gauge\n",
        "# HELP bcd_a A.\n# TYPE bcd_a gauge\nbcd_a 1",
    ],
)
def test_the_reader_refuses_what_the_format_forbids(page: str) -> None:
    with pytest.raises(AssertionError):
        read(page)


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.5), (2, 0, 3), 12.5)
    family = Family(name="bcd_t", kind=Kind.HISTOGRAM, help="T.", samples=histogram.samples())
    found = read(exposition([family]))["bcd_t"]
    assert [found.value("_bucket", le=le) for le in ("1", "2.5", "+Inf")] == [2, 2, 5]
    assert (found.value("_sum"), found.value("_count")) == (12.5, 5)


async def test_passes_are_timed_however_they_end() -> None:
    clock = HandClock(wall_ms=5_000)
    times = PassTimes(clock)
    assert times.ended_ms == 0
    for seconds in (0.0, BOUNDS_S[0], 3.0, 10_000.0):
        with contextlib.suppress(ZeroDivisionError), times.measured():
            await clock.advance(seconds)
            _ = 1 / 0
    histogram = times.histogram()
    assert sum(histogram.counts) == 4
    assert (histogram.counts[0], histogram.counts[-1]) == (2, 1)
    assert histogram.total == pytest.approx(10_003.005)
    assert times.ended_ms == clock.wall_ms()


# The page over HTTP.


@pytest_asyncio.fixture(loop_scope="session")
async def port() -> AsyncIterator[int]:
    """A server with a short page."""
    server = ScrapeServer("127.0.0.1:0", lambda: "# page\n")
    await server.start()
    yield server.port
    await server.stop()


async def asked(port: int, request: bytes) -> tuple[str, str, str]:
    """(status line, headers, body) of the answer; empty when the connection closed unanswered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        try:
            answer = (await reader.read()).decode()
        except ConnectionError:
            answer = ""
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    status, _, headers = head.partition("\r\n")
    return status, headers, body


async def test_the_page_is_served_with_its_type_and_length(port: int) -> None:
    status, headers, body = await asked(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in headers
    assert f"Content-Length: {len(body)}" in headers
    assert body == "# page\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"\x16\x03\x01\x00\xff\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000, "400"),
    ],
)
async def test_every_other_request_gets_its_answer(port: int, request_: bytes, status: str) -> None:
    assert (await asked(port, request_))[0].split(" ")[1:2] == [status]


async def test_idle_connections_beyond_the_bound_cost_a_scraper_nothing(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
    status, _, body = await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (status, body) == ("HTTP/1.1 200 OK", "# page\n")
    oldest = held[0][0]
    async with asyncio.timeout(20):
        assert await oldest.read() == b""
    for _, writer in held:
        writer.close()


async def test_a_burst_of_connections_leaves_none_open(port: int) -> None:
    burst = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MAX_CONNECTIONS)]
    for connection in burst:  # the server had no turn so far, and now accepts all of them at once
        connection.setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        for connection in burst:
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(connection, 1) == b""
            connection.close()


async def test_a_name_that_is_none_is_no_end_either() -> None:
    trouble = await ScrapeServer(f"{'a' * 70}.example:1", str).start()
    assert trouble is not None
    assert "label" in trouble.message


async def test_a_connection_that_says_nothing_is_closed_by_itself(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metr")
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_a_port_that_is_taken_is_named_with_the_remedy(port: int) -> None:
    trouble = await ScrapeServer(f"127.0.0.1:{port}", str).start()
    assert trouble is not None
    assert f"metrics.listen: 127.0.0.1:{port} cannot be had (" in trouble.message
    assert "set another port" in trouble.message


# A daemon's page.


async def test_a_daemon_tells_of_holds_devices_passes_and_session(
    site: Site, gateway: FakeGateway
) -> None:
    gpus = site.devices()
    (site.root / "faults.toml").write_text("[xid]\n7 = 79\n")
    site.settings = msgspec.structs.replace(
        site.settings, metrics=MetricsSettings(listen="127.0.0.1:0")
    )
    daemon = site.open()
    async with running(daemon):
        gateway.want(site.node_id, assignment(1, gpus[0]), assignment(2, gpus[7]), generation=1)
        await gateway.until(lambda: bool(gateway.said(Bound) and gateway.said(Failed)))
        await eventually(lambda: daemon.status()["reports"]["waiting"] == 0)
        [server] = [s for s in daemon._listening.servers if isinstance(s, ScrapeServer)]
        status, _, body = await asked(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    found = read(body)
    holds = {state: found["bcd_holds"].value(state=state) for state in ("bound", "failed")}
    assert holds == {"bound": 1, "failed": 1}
    assert found["bcd_hold_failures"].value(reason="device-unhealthy") == 1
    assert found["bcd_devices"].value(class_="gpu", health="healthy") == 7
    assert found["bcd_devices"].value(class_="gpu", health="unhealthy") == 1
    assert found["bcd_session_connected"].value() == 1
    assert found["bcd_reports_waiting"].value() == 0
    assert 0 < found["bcd_certificate_seconds_left"].value() <= 24 * 3600
    passes = found["bcd_passes_total"].value()
    assert passes == found["bcd_pass_duration_seconds"].value("_count") > 0
    assert found["bcd_passes_failed_total"].value() == 0
    assert found["bcd_sessions_total"].value() == 1
    assert found["bcd_last_pass_timestamp_seconds"].value() > 1_700_000_000
    assert found["bcd_build_info"].samples


async def test_no_port_is_opened_unless_it_is_asked_for(site: Site) -> None:
    daemon = site.open()
    assert daemon._listening.servers == ()
    daemon.stop()
    await daemon.run()

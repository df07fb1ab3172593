"""The link: renewals without a gap, and the patience of somebody who is not alone."""

import asyncio

import pytest

from bcd.model.report import Bound
from bcd.model.units import DAY_MS
from bcd.node.daemon import Daemon
from bcd.node.identity import load_identity
from bcd.node.link import Link
from bcd.node.session import GoneAway, Lost
from bcd.node.settings import GatewaySettings
from bcd.wire.node.v1 import gateway_pb2
from tests.node.clock import HandClock
from tests.node.fake_gateway import LONG_BEFORE_MS, FakeGateway
from tests.node.world import Site, assignment, eventually, running


def link(**changes: object) -> Link:
    """A link that never runs, with the highest draw of its dice."""
    made = Link.__new__(Link)
    fields = {"spread_seconds": 10.0, "max_backoff_seconds": 30.0} | changes
    made.settings = GatewaySettings(address="g:1", enroll_address="g:2", **fields)  # type: ignore[arg-type]
    made.jitter = lambda low, high: high
    return made


def gone(retry_after_ms: int) -> GoneAway:
    return GoneAway(
        reason=gateway_pb2.GOAWAY_REASON_SHUTDOWN,
        retry_after_ms=retry_after_ms,
        message="",
        process_instance="",
    )


def test_dials_back_off_twice_as_far_each_time_up_to_the_limit() -> None:
    waits = [link()._delay(False, Lost("x"), attempt) for attempt in range(9)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_the_whole_wait_is_drawn_from_zero_up() -> None:
    made = link()
    made.jitter = lambda low, high: low
    assert made._delay(False, Lost("x"), 5) == 0.0


def test_after_a_session_that_stood_the_first_retry_is_spread_wide() -> None:
    assert link()._delay(True, Lost("x"), 0) == 10.0
    assert link()._delay(True, gone(0), 0) == 10.0


def test_a_gateway_that_sends_a_node_away_again_and_again_is_asked_less_often() -> None:
    waits = [link()._delay(True, gone(0), attempt) for attempt in range(1, 9)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_gateways_retry_after_is_a_floor_with_a_spread_on_top() -> None:
    made = link()
    assert made._delay(True, gone(4_000), 0) == 8.0
    assert made._delay(True, gone(60_000), 0) == 70.0
    made.jitter = lambda low, high: low
    assert made._delay(True, gone(4_000), 0) == 4.0


async def test_a_fault_in_the_link_is_logged_and_the_daemon_goes_on(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = site.open()
    honest = daemon.hello
    faults = [RuntimeError("a bug"), KeyError("another")]

    def hello() -> gateway_pb2.Hello:
        if faults:
            raise faults.pop()
        return honest()

    daemon.hello = hello  # type: ignore[method-assign]
    async with running(daemon) as task:
        await gateway.until(lambda: site.node_id in gateway.streams)
        assert not task.done()
    assert caplog.messages.count("the link failed; holds stay, it is tried again") == 2


@pytest.mark.parametrize("answer", [b"\xff", b"", b"garbage" * 99])
async def test_a_renewal_that_is_answered_with_junk_is_tried_again(
    site: Site, gateway: FakeGateway, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.answer = answer
    gateway.on_hello = lambda _: gateway_pb2.ConnectResponse(
        goaway=gateway_pb2.Goaway(reason=gateway_pb2.GOAWAY_REASON_CERTIFICATE)
    )
    daemon = site.open()
    async with running(daemon) as task:
        await gateway.until(lambda: gateway.renewals > 1)
        gateway.answer = None
        gateway.on_hello = lambda _: None
        await gateway.until(lambda: site.node_id in gateway.streams)
        assert not task.done()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.fixture
def site(site: Site, gateway: FakeGateway) -> Site:
    """Days pass in here: heartbeats are rare, and renewed certificates begin long ago."""
    gateway.heartbeat_interval_ms = 300_000
    gateway.backdate_ms = LONG_BEFORE_MS
    return site


async def reach_renewal(daemon: Daemon, clock: HandClock) -> None:
    """Hours in a moment, then the seconds around the renewal slowly enough for the network."""
    due_s = (daemon.identity.renew_at_ms() - clock.wall_ms()) / 1000
    await clock.advance(due_s - 5, settle_s=0.0005)
    await seconds(clock, 10)


async def seconds(clock: HandClock, count: int) -> None:
    for _ in range(count):
        await clock.advance(1, settle_s=0.01)


async def test_a_certificate_is_renewed_at_half_its_life_and_proven_before_it_is_used(
    site: Site, gateway: FakeGateway
) -> None:
    site.clock = clock = HandClock()
    daemon = site.open()
    old = daemon.identity.current
    async with running(daemon):
        gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
        await gateway.until(lambda: bool(gateway.said(Bound)))
        await reach_renewal(daemon, clock)
        await gateway.until(lambda: len({r.key_id for r in gateway.reports}) == 2)
        assert (gateway.renewals, len(gateway.hellos)) == (1, 2)
        assert daemon.identity.candidate is None
        assert daemon.identity.current is not old
        await eventually(lambda: bool(daemon.status()["gateway"]["connected"]))
    # The first session was left only when the second stood, and by no other process.
    assert [a == b for a, b in gateway.fencings] == [True]
    assert load_identity(site.state).current.leaf == daemon.identity.current.leaf


async def test_a_candidate_that_is_not_taken_leaves_the_old_session_alone(
    site: Site, gateway: FakeGateway
) -> None:
    site.clock = clock = HandClock()
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: bool(gateway.inventories))
        gateway.on_hello = lambda _: gateway_pb2.ConnectResponse(
            goaway=gateway_pb2.Goaway(reason=gateway_pb2.GOAWAY_REASON_CERTIFICATE)
        )
        old = daemon.identity.current
        await reach_renewal(daemon, clock)
        await gateway.until(lambda: len(gateway.hellos) >= 2)
        assert site.node_id in gateway.streams
        assert daemon.identity.current is old
        gateway.on_hello = lambda _: None
        await seconds(clock, 80)
        await gateway.until(lambda: bool(gateway.fencings))
        await eventually(lambda: daemon.identity.current is not old)


def forget_candidate(site: Site) -> None:
    """From here on the candidate cannot be renamed."""
    (site.state / "candidate/credentials.pem").unlink()


async def test_a_proven_certificate_that_cannot_be_written_costs_no_session(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    load_identity(site.state).offer(gateway.node_credentials(site.node_id))
    site.clock = clock = HandClock()
    daemon = site.open()
    forget_candidate(site)
    async with running(daemon):
        await gateway.until(lambda: len(gateway.hellos) == 2)
        await seconds(clock, 30)
        assert len(gateway.hellos) == 2
        assert site.node_id in gateway.streams
    assert "proven certificate cannot be kept" in caplog.messages


async def test_a_kill_between_renewal_and_proof_leaves_both_identities_usable(
    site: Site, gateway: FakeGateway
) -> None:
    identity = load_identity(site.state)
    identity.offer(gateway.node_credentials(site.node_id))
    daemon = site.open()
    assert daemon.identity.candidate is not None
    async with running(daemon):
        await gateway.until(lambda: len(gateway.hellos) == 2)
        await eventually(lambda: daemon.identity.candidate is None)
    assert load_identity(site.state).current.leaf != identity.current.leaf


async def test_a_gateway_that_refuses_the_certificate_makes_the_node_renew_at_once(
    site: Site, gateway: FakeGateway
) -> None:
    refusals = [
        gateway_pb2.ConnectResponse(
            goaway=gateway_pb2.Goaway(reason=gateway_pb2.GOAWAY_REASON_CERTIFICATE)
        )
    ]
    gateway.on_hello = lambda _: refusals.pop() if refusals else None
    async with running(site.open()):
        await gateway.until(lambda: bool(gateway.inventories))
    assert gateway.renewals == 1


async def test_a_certificate_that_expired_too_long_ago_asks_for_a_new_token(
    site: Site, gateway: FakeGateway
) -> None:
    site.clock = clock = HandClock()
    clock.jump(clock.wall_ms() + 9 * DAY_MS)
    daemon = site.open()
    async with running(daemon):
        await eventually(lambda: "bcd enroll" in daemon.status()["gateway"]["problem"])
    problem = daemon.status()["gateway"]["problem"]
    assert f"token join --node {site.node_id}" in problem
    assert "clock" in problem
    assert (gateway.hellos, gateway.renewals) == ([], 0)


async def test_a_short_lived_certificate_does_not_make_renewals_follow_each_other(
    gateway: FakeGateway, site: Site
) -> None:
    site.clock = clock = HandClock()
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: bool(gateway.inventories))
        await reach_renewal(daemon, clock)
        await gateway.until(lambda: len(gateway.hellos) == 2)
        assert daemon.identity.renew_at_ms() < clock.wall_ms()
        await seconds(clock, 40)
        assert gateway.renewals == 1
        await seconds(clock, 30)
        await gateway.until(lambda: len(gateway.hellos) == 3)
        assert gateway.renewals == 2


async def test_every_lost_session_is_followed_by_another(site: Site, gateway: FakeGateway) -> None:
    site.clock = clock = HandClock()
    async with running(site.open()):
        for sessions in range(1, 5):
            async with asyncio.timeout(20):
                while len(gateway.hellos) < sessions:
                    await seconds(clock, 1)
            await gateway.until(lambda: site.node_id in gateway.streams)
            await clock.advance(30 * sessions, settle_s=0.0005)
            gateway.streams[site.node_id].end()
            await gateway.until(lambda: not gateway.streams)
    assert len(gateway.hellos) == 4

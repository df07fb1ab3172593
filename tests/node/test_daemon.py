"""A daemon beside a gateway, over real mTLS: what it says, does and keeps, session by session."""

import json
import logging
import socket
import threading
from typing import Any

import msgspec
import pytest

from bcd.cli import bcd_run
from bcd.model.host import HostFacts
from bcd.model.report import Bound, Failed, FailureReason, Released
from bcd.node import desired
from bcd.node.daemon import EXIT_SUPERSEDED
from bcd.node.desired import Refusal
from bcd.node.settings import LogSettings
from bcd.signing.certificates import Role, pin_of
from bcd.wire.inventory import decode_inventory
from bcd.wire.node.v1 import gateway_pb2
from tests.authority import Authority
from tests.node.clock import HandClock
from tests.node.fake_gateway import FakeGateway
from tests.node.world import Site, alloc_id, assignment, eventually, limits, node_id, running

MAIN = f"bcd-{alloc_id(1)}.json"


async def bound(site: Site, gateway: FakeGateway, generation: int = 1) -> None:
    """The host's first GPU is held by the first allocation, and that is known."""
    gpu = site.devices()[0]
    gateway.want(site.node_id, assignment(1, gpu, limits=limits()), generation=generation)
    await gateway.until(lambda: bool(gateway.said(Bound)))


async def test_hello_says_who_what_and_which(site: Site, gateway: FakeGateway) -> None:
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: bool(gateway.inventories))
    [hello] = gateway.hellos
    assert hello.node_id == site.node_id
    assert (hello.protocol_version, hello.min_protocol_version) == (1, 1)
    assert set(hello.capabilities) == {"attested-reports", "devices.limits"}
    assert hello.process_instance == daemon.instance
    assert hello.boot_id == (site.root / "proc/sys/kernel/random/boot_id").read_text().strip()
    assert hello.inventory_hash == gateway.inventories[site.node_id].hash


async def test_the_inventory_is_sent_once_and_again_when_it_changed(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()):
        await gateway.until(lambda: bool(gateway.inventories))
        first = gateway.inventories.pop(site.node_id)
        inventory, problems = decode_inventory(first)
        assert (len(inventory.devices), problems) == (8, ())
        (site.root / "faults.toml").write_text("[xid]\n3 = 79\n")
        await gateway.until(lambda: bool(gateway.inventories))
    second = gateway.inventories[site.node_id]
    assert second.hash != first.hash
    assert [d.health.reason for d in second.devices if d.health.reason] == ["Xid 79"]


async def test_a_gateway_that_has_the_inventory_gets_none(site: Site, gateway: FakeGateway) -> None:
    async with running(site.open()):
        await gateway.until(lambda: bool(gateway.inventories))
    known = gateway.inventories[site.node_id]
    async with running(site.open()):
        await bound(site, gateway)
    assert gateway.inventories[site.node_id] is known


async def test_an_assignment_becomes_a_hold_and_a_signed_report(
    site: Site, gateway: FakeGateway
) -> None:
    gpus = site.devices()[:2]
    async with running(site.open()):
        wanted = gateway.want(
            site.node_id, assignment(1, *gpus, limits=limits(cpus="0-3")), generation=1
        )
        await gateway.until(lambda: bool(gateway.said(Bound) and gateway.acks))
    [report] = gateway.said(Bound)
    assert report.allocation_id == alloc_id(1)
    assert report.outcome == Bound(
        tuple(f"bcd.dev/gpu={gpu.id}" for gpu in gpus),
        str(site.env / f"{alloc_id(1)}.env"),
        f"bcd-alloc-{alloc_id(1)}.slice",
    )
    assert site.specs() == [MAIN]
    assert site.envs() == [f"{alloc_id(1)}.env"]
    assert site.slices() == [f"bcd-alloc-{alloc_id(1)}.slice"]
    [ack] = gateway.acks
    assert (ack.epoch, ack.generation) == wanted.version
    assert ack.status == gateway_pb2.ACK_STATUS_APPLIED


async def test_stopping_says_goodbye_and_leaves_every_hold(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()) as task:
        await bound(site, gateway)
    assert task.result() == 0
    assert gateway.goodbyes == ["stopped"]
    assert (site.specs(), len(site.envs()), len(site.slices())) == ([MAIN], 1, 1)


async def test_a_release_is_reported_when_everything_is_gone(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()):
        await bound(site, gateway)
        gateway.want(site.node_id, generation=2)
        await gateway.until(lambda: bool(gateway.said(Released)))
        assert (site.specs(), site.envs()) == ([], [])
        await eventually(lambda: site.slices() == [])
    assert [r.outcome for r in gateway.said(Released)] == [Released(slice_empty=True)]


async def test_a_hold_that_cannot_be_made_is_reported_and_the_rest_stands(
    site: Site, gateway: FakeGateway
) -> None:
    gpus = site.devices()
    (site.root / "faults.toml").write_text("[xid]\n0 = 79\n")
    async with running(site.open()):
        gateway.want(site.node_id, assignment(1, gpus[0]), assignment(2, gpus[1]), generation=1)
        await gateway.until(lambda: bool(gateway.said(Failed) and gateway.said(Bound)))
        await gateway.until(lambda: bool(gateway.acks))
        [failed] = gateway.said(Failed)
        assert isinstance(failed.outcome, Failed)
        assert (failed.allocation_id, failed.outcome.reason) == (
            alloc_id(1),
            FailureReason.DEVICE_UNHEALTHY,
        )
        assert gateway.acks[-1].status == gateway_pb2.ACK_STATUS_PARTIAL
        assert [e.allocation_id for e in gateway.acks[-1].errors] == [alloc_id(1)]
        (site.root / "faults.toml").unlink()
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
        await gateway.until(lambda: gateway.acks[-1].status == gateway_pb2.ACK_STATUS_APPLIED)


async def test_a_new_session_gets_every_hold_under_new_numbers(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()):
        await bound(site, gateway)
        gateway.streams[site.node_id].end()
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
    first, second = gateway.said(Bound)
    assert second.number > first.number
    assert second.outcome == first.outcome
    assert len(gateway.hellos) == 2
    assert gateway.hellos[1].applied_generation == 1


async def test_what_was_not_acknowledged_is_sent_again(site: Site, gateway: FakeGateway) -> None:
    gateway.acknowledge = False
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        gateway.want(site.node_id, generation=2)
        await gateway.until(lambda: bool(gateway.said(Released)))
    assert daemon.status()["reports"]["waiting"] == 1
    gateway.acknowledge = True
    gateway.reports.clear()
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: bool(gateway.said(Released)))
        await eventually(lambda: daemon.status()["reports"]["waiting"] == 0)
    assert len(gateway.reports) == 1


STATUSES = {
    gateway_pb2.REPORT_ACK_STATUS_IGNORED: "ignored",
    gateway_pb2.REPORT_ACK_STATUS_REJECTED: "rejected",
}


@pytest.mark.parametrize("status", STATUSES)
async def test_a_report_that_is_not_stored_is_logged_and_not_repeated(
    site: Site,
    gateway: FakeGateway,
    status: gateway_pb2.ReportAckStatus.ValueType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway.report_status = status
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        await eventually(lambda: daemon.status()["reports"]["waiting"] == 0)
    assert daemon.counters["reports not stored"] == 1
    said = [vars(record) for record in caplog.records if record.message == "report not stored"]
    assert [line["status"] for line in said] == [STATUSES[status]]


async def test_an_answer_to_a_report_that_was_replaced_is_logged_too(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(site.open()):
        await gateway.until(lambda: site.node_id in gateway.streams)
        gateway.streams[site.node_id].send(
            report_ack=gateway_pb2.ReportAck(
                number=1, status=gateway_pb2.REPORT_ACK_STATUS_REJECTED, reason="no\nsuch"
            )
        )
        await eventually(lambda: "report not stored" in caplog.messages)
    assert [vars(r)["reason"] for r in caplog.records if "reason" in vars(r)] == ["no\ufffdsuch"]


async def test_a_restart_changes_nothing_and_reports_what_stands(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()):
        await bound(site, gateway)
    before = (site.cdi / MAIN).stat()
    async with running(site.open()):
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
    assert (site.cdi / MAIN).stat().st_mtime_ns == before.st_mtime_ns
    assert gateway.hellos[1].applied_generation == 1
    assert gateway.hellos[1].applied_hash == gateway.acks[0].hash


async def test_after_a_reboot_without_gateway_everything_stands_again(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()):
        await bound(site, gateway)
    await gateway.stop()
    for path in (*site.env.iterdir(), *(site.root / "run/bcd-sim/slices").iterdir()):
        path.unlink()
    (site.root / "proc/sys/kernel/random/boot_id").write_text("another-boot\n")
    async with running(site.open()):
        await eventually(lambda: bool(site.envs() and site.slices()))
    await gateway.start()
    async with running(site.open()):
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
    assert gateway.said(Bound)[-1].boot_id == "another-boot"


async def test_what_a_person_removes_is_back_before_the_next_tick(
    site: Site, gateway: FakeGateway
) -> None:
    async with running(site.open()):
        await bound(site, gateway)
        (site.cdi / MAIN).unlink()
        (site.env / f"{alloc_id(1)}.env").write_text("X=1\n")
        await eventually(lambda: site.specs() == [MAIN])
    assert b"CUDA_VISIBLE_DEVICES" in (site.env / f"{alloc_id(1)}.env").read_bytes()


# Desired states that do not count.


def forgeries(gateway: FakeGateway, site: Site) -> dict[Refusal, Any]:
    """One frame for every reason, each on a path of its own to generation 9."""
    wanted = assignment(2, site.devices()[1])
    genuine = gateway.sign_state(gateway.want(site.node_id, wanted, generation=9))
    forged = type(genuine).FromString(genuine.SerializeToString())
    forged.envelope.signature = bytes(reversed(forged.envelope.signature))
    unsigned = type(genuine).FromString(genuine.SerializeToString())
    unsigned.envelope.signature = b""
    foreign = Authority("test.example").issue(Role.COMMAND, "command1")
    state = gateway.want(site.node_id, wanted, generation=9)
    other = gateway.want(node_id(7), wanted, generation=9)
    older = gateway.want(site.node_id, wanted, generation=1, epoch=0)
    return {
        Refusal.BAD_SIGNATURE: forged,
        Refusal.UNSIGNED: unsigned,
        Refusal.FOREIGN_CHAIN: gateway.sign_state(state, foreign),
        Refusal.WRONG_ROLE: gateway.sign_state(state, gateway.node_credentials(site.node_id)),
        Refusal.WRONG_NODE: gateway.sign_state(other),
        Refusal.OLDER: gateway.sign_state(older),
    }


async def test_no_forged_state_is_applied_and_each_is_answered_logged_and_counted(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    frames = forgeries(gateway, site)
    gateway.desired.clear()
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        await gateway.until(lambda: bool(gateway.acks))
        persisted = (site.state / "desired.bin").read_bytes()
        for reason, frame in frames.items():
            gateway.acks.clear()
            gateway.send(site.node_id, frame)
            await gateway.until(lambda: bool(gateway.acks))
            [ack] = gateway.acks
            assert ack.status == gateway_pb2.ACK_STATUS_REJECTED
            assert [error.reason for error in ack.errors] == [reason]
        assert site.specs() == [MAIN]
        assert (site.state / "desired.bin").read_bytes() == persisted
    assert daemon.counters["refused desired states"] == len(frames)
    lines = [r for r in caplog.records if r.getMessage() == "desired state refused"]
    assert [getattr(line, "reason", "") for line in lines] == [str(r) for r in frames]


async def test_a_re_delivered_state_is_acknowledged_again(site: Site, gateway: FakeGateway) -> None:
    async with running(site.open()):
        await bound(site, gateway)
        await gateway.until(lambda: bool(gateway.acks))
        gateway.acks.clear()
        gateway.send(site.node_id, gateway.desired[site.node_id])
        await gateway.until(lambda: bool(gateway.acks))
    assert gateway.acks[0].status == gateway_pb2.ACK_STATUS_APPLIED


async def test_of_states_in_a_burst_the_newest_is_what_stands(
    site: Site, gateway: FakeGateway
) -> None:
    gpus = site.devices()
    async with running(site.open()):
        await gateway.until(lambda: site.node_id in gateway.streams)
        for generation in range(1, 30):
            wanted = assignment(generation, gpus[generation % 8])
            gateway.want(site.node_id, wanted, generation=generation)
        await gateway.until(lambda: any(a.generation == 29 for a in gateway.acks))
        assert site.specs() == [f"bcd-{alloc_id(29)}.json"]
    assert len(gateway.acks) < 29


# Ends of sessions.


async def test_a_second_daemon_with_this_identity_ends_this_one_for_good(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = site.open()
    async with running(daemon) as task:
        await bound(site, gateway)
        gateway.streams[site.node_id].send(
            goaway=gateway_pb2.Goaway(
                reason=gateway_pb2.GOAWAY_REASON_SUPERSEDED, process_instance="another"
            )
        )
        assert await task == EXIT_SUPERSEDED
    assert site.specs() == [MAIN]
    assert any("another daemon" in message for message in caplog.messages)


@pytest.mark.parametrize("instance", ["own", ""])
async def test_superseded_by_itself_is_only_an_end(
    site: Site, gateway: FakeGateway, instance: str
) -> None:
    daemon = site.open()
    async with running(daemon) as task:
        await bound(site, gateway)
        goaway = gateway_pb2.Goaway(
            reason=gateway_pb2.GOAWAY_REASON_SUPERSEDED,
            process_instance=daemon.instance if instance else "",
        )
        gateway.streams[site.node_id].send(goaway=goaway)
        await gateway.until(lambda: len(gateway.hellos) == 2)
        assert not task.done()


async def test_a_goaways_retry_after_is_respected(gateway: FakeGateway, site: Site) -> None:
    site.clock = clock = HandClock()
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: site.node_id in gateway.streams)
        gateway.streams[site.node_id].send(
            goaway=gateway_pb2.Goaway(
                reason=gateway_pb2.GOAWAY_REASON_SHUTDOWN, retry_after_ms=60_000
            )
        )
        gateway.streams[site.node_id].end()
        await eventually(lambda: "shutdown" in daemon.status()["gateway"]["problem"])
        await clock.advance(59, settle_s=0.005)
        assert len(gateway.hellos) == 1
        await clock.advance(3, settle_s=0.005)
        await gateway.until(lambda: len(gateway.hellos) == 2)


async def test_heartbeats_come_at_the_interval_of_the_welcome(
    gateway: FakeGateway, site: Site
) -> None:
    gateway.heartbeat_interval_ms = 10_000
    site.clock = clock = HandClock()
    async with running(site.open()):
        await gateway.until(lambda: bool(gateway.inventories))
        for count in range(1, 4):
            await clock.advance(10, settle_s=0.002)
            await gateway.until(lambda count=count: gateway.heartbeats == count)  # type: ignore[misc]


async def test_a_gateway_that_never_welcomes_is_left_after_a_while(
    gateway: FakeGateway, site: Site
) -> None:
    site.clock = clock = HandClock()
    answers: list[Any] = [gateway_pb2.ConnectResponse(report_ack=gateway_pb2.ReportAck())]
    gateway.on_hello = lambda _: answers.pop() if answers else None
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: len(gateway.hellos) == 1)
        await eventually(lambda: "no Welcome" in daemon.status()["gateway"]["problem"])
        await clock.advance(1, settle_s=0.01)
        await gateway.until(lambda: bool(gateway.inventories))


async def test_a_port_that_takes_connections_and_says_nothing_is_left_after_a_while(
    gateway: FakeGateway, site: Site
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel takes connections alone
    port = silent.getsockname()[1]
    address = msgspec.structs.replace(site.settings.gateway, address=f"127.0.0.1:{port}")
    site.settings = msgspec.structs.replace(site.settings, gateway=address)
    site.clock = clock = HandClock()
    daemon = site.open()
    async with running(daemon):
        for _ in range(3):  # every dial ends, so that there is a next one
            daemon.link.problem = ""
            await eventually(lambda: len(clock._sleepers) > 1)
            await clock.advance(16, settle_s=0.02)
            await eventually(lambda: "did not answer" in daemon.status()["gateway"]["problem"])
            await clock.advance(1, settle_s=0.02)
    silent.close()


async def test_a_gateway_of_another_protocol_is_named_in_the_status(
    gateway: FakeGateway, site: Site
) -> None:
    gateway.on_hello = lambda _: gateway_pb2.ConnectResponse(
        welcome=gateway_pb2.Welcome(protocol_version=9)
    )
    daemon = site.open()
    async with running(daemon):
        await eventually(lambda: "protocol 9" in daemon.status()["gateway"]["problem"])


async def test_messages_of_later_versions_are_counted_and_ignored(
    site: Site, gateway: FakeGateway
) -> None:
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: site.node_id in gateway.streams)
        later = gateway_pb2.ConnectResponse.FromString(b"\x92\x03\x02hi")
        gateway.streams[site.node_id].out.put_nowait(later)
        await bound(site, gateway)
    assert daemon.counters["unknown"] == 1
    assert len(gateway.hellos) == 1


async def test_an_oversized_frame_ends_the_session_and_nothing_else(
    site: Site, gateway: FakeGateway
) -> None:
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        frame = gateway.desired[site.node_id]
        huge = type(frame).FromString(frame.SerializeToString())
        huge.certificate = b"\0" * (2 << 20)
        gateway.streams[site.node_id].send(desired_state=huge)
        await gateway.until(lambda: len(gateway.hellos) == 2)
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
    assert site.specs() == [MAIN]


@pytest.mark.parametrize("first", [True, False])
async def test_a_frame_that_is_no_message_ends_the_session_with_a_sentence(
    site: Site, gateway: FakeGateway, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    junk: list[Any] = [b"\xff\x1b junk"] if first else []
    gateway.on_hello = lambda _: junk.pop() if junk else None
    daemon = site.open()
    async with running(daemon):
        if not first:
            await gateway.until(lambda: site.node_id in gateway.streams)
            gateway.streams[site.node_id].out.put_nowait(b"\xff\x1b junk")
        await gateway.until(lambda: len(gateway.hellos) == 2)
    assert "no message of the protocol" in problems(caplog)[0]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_gateway_that_ends_the_stream_is_said_so(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(site.open()):
        await gateway.until(lambda: site.node_id in gateway.streams)
        gateway.streams[site.node_id].end()
        await gateway.until(lambda: len(gateway.hellos) == 2)
    assert problems(caplog) == ["the gateway ended the stream"]


async def test_what_a_gateway_says_is_kept_as_one_plain_line(
    site: Site, gateway: FakeGateway
) -> None:
    gateway.on_hello = lambda _: gateway_pb2.ConnectResponse(
        goaway=gateway_pb2.Goaway(message="go\x1b[2J\naway")
    )
    daemon = site.open()
    async with running(daemon):
        await eventually(lambda: "away" in daemon.status()["gateway"]["problem"])
        assert daemon.status()["gateway"]["problem"].isprintable()


async def test_a_gateway_cannot_send_a_host_away_for_more_than_an_hour(
    site: Site, gateway: FakeGateway
) -> None:
    site.clock = clock = HandClock()
    answers = [gateway_pb2.ConnectResponse(goaway=gateway_pb2.Goaway(retry_after_ms=2**32 - 1))]
    gateway.on_hello = lambda _: answers.pop() if answers else None
    daemon = site.open()
    async with running(daemon):
        await eventually(lambda: "ended the session" in daemon.status()["gateway"]["problem"])
        await clock.advance(3_590, settle_s=0.002)
        assert len(gateway.hellos) == 1
        await clock.advance(20, settle_s=0.005)
        await gateway.until(lambda: len(gateway.hellos) == 2)


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the node was not connected, in order."""
    return [vars(record)["problem"] for record in caplog.records if "problem" in vars(record)]


async def test_a_gateway_of_another_authority_is_never_believed(
    gateway: FakeGateway, site: Site
) -> None:
    stranger = FakeGateway()
    await stranger.start()
    addresses = msgspec.structs.replace(
        site.settings.gateway,
        address=stranger.address,
        enroll_address=stranger.enroll_address,
    )
    site.settings = msgspec.structs.replace(site.settings, gateway=addresses)
    daemon = site.open()
    async with running(daemon):
        await eventually(lambda: "unavailable" in daemon.status()["gateway"]["problem"])
    assert stranger.hellos == []
    assert pin_of(stranger.authority.certificate) != pin_of(gateway.authority.certificate)
    await stranger.stop()


# What people see.


async def test_a_state_that_cannot_be_written_is_said_and_taken_when_it_can(
    site: Site, gateway: FakeGateway
) -> None:
    daemon = site.open()
    blocked = site.root / "elsewhere"
    async with running(daemon):
        await gateway.until(lambda: site.node_id in gateway.streams)
        site.state.rename(blocked)
        gpu = site.devices()[0]
        gateway.want(site.node_id, assignment(1, gpu), generation=1)
        await eventually(lambda: [c.type for c in daemon.conditions] == ["StateNotWritten"])
        assert f"{site.state}/desired.bin: No such file" in daemon.conditions[0].message
        assert (site.specs(), gateway.acks) == ([], [])
        blocked.rename(site.state)
        await gateway.until(lambda: bool(gateway.said(Bound) and gateway.acks))
        assert daemon.conditions == ()


async def test_while_a_state_cannot_be_written_the_holds_of_the_last_one_are_kept_up(
    site: Site, gateway: FakeGateway
) -> None:
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        await eventually(lambda: daemon.status()["reports"]["waiting"] == 0)
        site.state.rename(site.root / "elsewhere")
        gateway.want(site.node_id, generation=2)
        await eventually(lambda: [c.type for c in daemon.conditions] == ["StateNotWritten"])
        (site.cdi / MAIN).unlink()
        await eventually(lambda: site.specs() == [MAIN])
        assert [ack.generation for ack in gateway.acks] == [1]


async def test_reports_that_cannot_be_written_are_queued_when_they_can(
    site: Site, gateway: FakeGateway
) -> None:
    daemon = site.open()
    blocked = site.root / "elsewhere"
    async with running(daemon):
        await bound(site, gateway)
        await eventually(lambda: daemon.status()["reports"]["waiting"] == 0)
        site.state.rename(blocked)
        gateway.streams[site.node_id].end()
        await eventually(lambda: [c.type for c in daemon.conditions] == ["ReportsNotWritten"])
        blocked.rename(site.state)
        await gateway.until(lambda: len(gateway.said(Bound)) == 2)
        await eventually(lambda: daemon.conditions == ())


async def test_a_state_that_nobody_can_judge_is_refused_and_forgotten(
    site: Site, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = site.open()
    monkeypatch.setattr(desired, "_verify", lambda *_: 1 / 0)
    async with running(daemon):
        gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=7)
        await gateway.until(lambda: bool(gateway.acks))
        assert [error.reason for error in gateway.acks[0].errors] == [Refusal.NOT_JUDGED]
        assert gateway.acks[0].generation == 7
        monkeypatch.undo()
        await bound(site, gateway)
    assert daemon.counters["failed passes"] == 0


async def test_a_folder_that_cannot_be_read_fails_the_pass_in_one_line(
    site: Site, gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        site.cdi.rename(site.root / "elsewhere")
        site.cdi.write_bytes(b"")
        await eventually(lambda: [c.type for c in daemon.conditions] == ["PassFailed"])
        assert daemon.conditions[0].subject == str(site.cdi)
        assert "no folder; holds stay" in daemon.conditions[0].message
        site.cdi.unlink()
        (site.root / "elsewhere").rename(site.cdi)
        await eventually(lambda: daemon.conditions == ())
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert failed
    assert not [record for record in failed if record.exc_info]


async def test_ready_waits_for_the_first_pass_that_ends_well(
    site: Site, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr("bcd.node.daemon.notify", heard.append)
    daemon = site.open()
    with monkeypatch.context() as broken:
        broken.setattr(daemon.ports.host, "facts", lambda: 1 / 0)
        async with running(daemon):
            await gateway.until(lambda: site.node_id in gateway.streams)
            assert "READY=1" not in heard
            broken.undo()
            await eventually(lambda: "READY=1" in heard)
    assert heard.count("READY=1") == 1


async def test_a_first_pass_that_takes_long_keeps_nobody_from_starting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr("bcd.node.daemon.notify", heard.append)
    site.clock = clock = HandClock()
    daemon = site.open()
    looking, slow, facts = threading.Event(), threading.Event(), daemon.ports.host.facts

    def wait_and_look() -> HostFacts:
        looking.set()
        slow.wait(20)
        return facts()

    monkeypatch.setattr(daemon.ports.host, "facts", wait_and_look)
    async with running(daemon):
        await eventually(looking.is_set)
        await clock.advance(59, settle_s=0.05)
        assert heard == []
        await clock.advance(2, settle_s=0.05)
        assert heard == ["READY=1"]
        slow.set()
        await eventually(lambda: daemon.last_pass != "")
    assert heard.count("READY=1") == 1


async def test_a_hold_waits_while_its_device_is_in_use_and_is_made_when_it_is_free(
    site: Site, gateway: FakeGateway
) -> None:
    daemon = site.open()
    faults = site.root / "faults.toml"
    async with running(daemon):
        await gateway.until(lambda: bool(gateway.inventories))
        faults.write_text('in_use = ["0"]\n')
        await gateway.until(lambda: gateway.inventories[site.node_id].devices[0].in_use)
        gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
        await eventually(lambda: bool(daemon.waiting))
        [waiting] = [hold for hold in daemon.status()["holds"] if hold["state"] == "waiting"]
        assert "computes on" in waiting["message"]
        assert gateway.reports == []
        faults.write_text("in_use = []\n")
        await gateway.until(lambda: bool(gateway.said(Bound)))
        await gateway.until(lambda: not gateway.inventories[site.node_id].devices[0].in_use)


async def test_a_changed_gateway_is_told_with_every_reload_and_not_shown_as_in_effect(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = site.open()
    elsewhere = msgspec.structs.replace(site.settings.gateway, address="elsewhere:1")
    changed = msgspec.structs.replace(
        site.settings, gateway=elsewhere, log=LogSettings(level="warning")
    )
    for _ in range(2):
        bcd_run._take_over(daemon, changed)
    assert [m for m in caplog.messages if "with a restart only" in m] == caplog.messages
    assert len(caplog.messages) == 2
    assert daemon.status()["gateway"]["address"] == site.settings.gateway.address
    daemon.stop()
    await daemon.run()


async def test_a_true_fault_in_a_pass_is_logged_whole_and_the_next_one_mends_it(
    site: Site,
    gateway: FakeGateway,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    daemon = site.open()
    async with running(daemon):
        await gateway.until(lambda: site.node_id in gateway.streams)
        with monkeypatch.context() as broken:
            broken.setattr(daemon.ports.host, "facts", lambda: 1 / 0)
            gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
            await eventually(lambda: [c.type for c in daemon.conditions] == ["PassFailed"])
        await gateway.until(lambda: bool(gateway.said(Bound) and gateway.acks))
    assert next(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)


async def test_status_and_inventory_are_plain_documents(site: Site, gateway: FakeGateway) -> None:
    daemon = site.open()
    async with running(daemon):
        await bound(site, gateway)
        await eventually(lambda: daemon.status()["reports"]["waiting"] == 0)
        status = json.loads(json.dumps(daemon.status()))
        inventory = json.loads(json.dumps(daemon.inventory_document()))
    assert status["nodeId"] == site.node_id
    assert status["gateway"]["connected"]
    assert [hold["state"] for hold in status["holds"]] == ["bound"]
    assert status["desired"] == {"epoch": 1, "generation": 1}
    assert len(inventory["devices"]) == 8

"""Daemons of version 1 keep working: today's code reads the bytes that they send."""

import pytest

from bcd.gateway.hello import Greeting, Peer, read_hello
from bcd.gateway.intake import read_ack
from bcd.gateway.reports import read_report
from bcd.model.ids import NodeId
from bcd.model.report import Bound
from bcd.store.reports import Received
from bcd.wire.desired import decode_desired
from bcd.wire.inventory import decode_inventory
from bcd.wire.node.v1 import enrollment_pb2
from bcd.wire.node.v1 import gateway_pb2 as pb
from bcd.wire.report import decode_report
from tests.wire.frozen import ALLOCATION, DATA, ENVELOPE, FRAMES, NODE, STATE

# Fields and an arm of a daemon that is newer than we are.
NEWER_FIELD = bytes([0xF8, 0x3E, 0x01])
NEWER_ARM = bytes([0x9A, 0x3E, 0x02, 0x08, 0x01])


def frozen(name: str) -> bytes:
    return (DATA / f"{name}.bin").read_bytes()


def frame(name: str) -> pb.ConnectRequest:
    return pb.ConnectRequest.FromString(frozen(name))


def test_every_frame_is_frozen() -> None:
    assert {path.stem for path in DATA.glob("*.bin")} == set(FRAMES)


@pytest.mark.parametrize("name", FRAMES)
def test_frozen_bytes_mean_what_they_meant(name: str) -> None:
    kind = type(FRAMES[name])
    assert kind.FromString(frozen(name)) == FRAMES[name]
    assert kind.FromString(frozen(name) + NEWER_FIELD).SerializeToString() == (
        FRAMES[name].SerializeToString() + NEWER_FIELD
    )


def test_an_old_hello_is_welcome() -> None:
    peer = Peer(node_id=NodeId(NODE), serial="1", not_after_ms=1)
    greeting = read_hello(frame("hello").hello, peer)
    assert greeting == Greeting(
        process_instance="01890a5d-ac96-774b-bcce-b302099a8057",
        boot_id="0f1e2d3c-0000-4000-8000-000000000001",
        daemon_version="0.1.0",
        protocol_version=1,
        capabilities=("attested-reports", "devices.limits"),
        applied=(1, 7, "ab" * 32),
        inventory_hash="cd" * 32,
    )


def test_an_old_inventory_is_read() -> None:
    inventory, problems = decode_inventory(frame("inventory").inventory)
    assert problems == ()
    assert inventory.host.numa_nodes[0].huge_pages[0].total == 16
    assert (inventory.devices[0].numa_node, inventory.devices[0].health.state) == (0, "healthy")


def test_an_old_report_is_filed_and_read() -> None:
    received = read_report(NodeId(NODE), frame("report").report)
    assert isinstance(received, Received)
    assert (received.number, received.allocation_id) == (12, ALLOCATION)
    assert received.envelope == ENVELOPE.SerializeToString()
    outcome = decode_report(frame("report").report.payload).outcome
    assert isinstance(outcome, Bound)
    assert outcome.cdi_devices == ("bcd.dev/gpu=GPU-0",)


def test_an_old_answer_is_recorded() -> None:
    ack = read_ack(frame("ack").ack)
    assert ack is not None
    assert (ack.generation, ack.status) == (7, "partial")
    assert ack.errors == ((ALLOCATION, "device-unhealthy"),)


def test_an_old_enrolment_is_carried() -> None:
    request = enrollment_pb2.EnrollRequest.FromString(frozen("enroll"))
    assert (request.token_id, len(request.hmac)) == ("jt1", 32)


def test_a_state_of_this_version_is_what_an_old_daemon_read() -> None:
    state = decode_desired(frozen("desired-state"))
    assert state.generation == STATE.generation
    assert state.assignments[0].limits is not None
    assert state.assignments[0].limits.cpus == "0-6"


def test_a_newer_arm_is_a_frame_of_no_kind() -> None:
    assert pb.ConnectRequest.FromString(NEWER_ARM).WhichOneof("message") is None
    both = pb.ConnectRequest.FromString(frozen("heartbeat") + NEWER_ARM)
    assert both.WhichOneof("message") == "heartbeat"

"""Desired states: only what the control plane signed for this node, and nothing older, counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcd.model.assignment import DesiredState, HostReserve
from bcd.model.errors import BrokenFile
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.node.desired import FILE, Accepted, Refusal, Refused, Trust, judge, load, persist
from bcd.signing.certificates import Role, to_der
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keyfile import Credentials
from bcd.wire.desired import encode_desired
from bcd.wire.node.v1 import desired_pb2 as pb
from tests.authority import Authority, now_ms
from tests.node.memory import WHOLE
from tests.node.world import assignment, node_id

AUTHORITY = Authority()
COMMAND = AUTHORITY.issue(Role.COMMAND, "command1")
TRUST = Trust(node_id(), AUTHORITY.domain, (AUTHORITY.certificate,))


def state(generation: int = 5, epoch: int = 1, **changes: Any) -> DesiredState:
    fields: dict[str, Any] = {
        "node_id": node_id(),
        "epoch": epoch,
        "generation": generation,
        "host_reserve": HostReserve(2, 4 << 30),
        "assignments": (assignment(1, WHOLE[0]),),
    }
    return DesiredState(**(fields | changes))


def frame(
    wanted: DesiredState | None = None,
    command: Credentials = COMMAND,
    purpose: PayloadType = PayloadType.DESIRED_STATE,
    payload: bytes | None = None,
) -> pb.SignedDesiredState:
    content = encode_desired(wanted or state()) if payload is None else payload
    return pb.SignedDesiredState(
        envelope=seal(command.key, purpose, content), certificate=to_der(command.leaf)
    )


def accepted(wanted: DesiredState | None = None) -> Accepted:
    verdict = judge(frame(wanted), TRUST, None, now_ms())
    assert isinstance(verdict, Accepted), verdict
    return verdict


def refusal(sent: pb.SignedDesiredState, at_ms: int | None = None) -> Refusal:
    verdict = judge(sent, TRUST, accepted(state(generation=4)), at_ms or now_ms())
    assert isinstance(verdict, Refused), verdict
    return verdict.reason


def changed(change: Callable[[pb.SignedDesiredState], None]) -> pb.SignedDesiredState:
    sent = frame()
    change(sent)
    return sent


def test_a_signed_state_of_this_node_counts() -> None:
    assert accepted().state == state()


def test_a_state_with_a_changed_byte_has_a_bad_signature() -> None:
    sent = frame()
    sent.envelope.payload = encode_desired(state(generation=6))
    assert refusal(sent) is Refusal.BAD_SIGNATURE


def test_a_signature_for_another_purpose_does_not_count() -> None:
    assert refusal(frame(purpose=PayloadType.ATTESTED_REPORT)) is Refusal.BAD_SIGNATURE
    sent = frame(purpose=PayloadType.RENEWAL)
    sent.envelope.payload_type = PayloadType.DESIRED_STATE
    assert refusal(sent) is Refusal.BAD_SIGNATURE


@pytest.mark.parametrize("part", ["signature", "certificate", "both"])
def test_an_unsigned_state_is_refused(part: str) -> None:
    sent = frame()
    if part != "certificate":
        sent.envelope.signature = b""
    if part != "signature":
        sent.certificate = b""
    assert refusal(sent) is Refusal.UNSIGNED


def test_another_authoritys_command_key_does_not_count() -> None:
    foreign = Authority().issue(Role.COMMAND, "command1")
    assert refusal(frame(command=foreign)) is Refusal.FOREIGN_CHAIN


def test_a_certificate_that_is_none_is_refused() -> None:
    sent = changed(lambda s: setattr(s, "certificate", b"\x30\x82garbage"))
    assert refusal(sent) is Refusal.FOREIGN_CHAIN


@pytest.mark.parametrize("role", [Role.NODE, Role.GATEWAY, Role.PLACER])
def test_only_a_command_certificate_commands(role: Role) -> None:
    assert refusal(frame(command=AUTHORITY.issue(role, "x"))) is Refusal.WRONG_ROLE


def test_a_certificate_of_another_trust_domain_does_not_count() -> None:
    AUTHORITY.domain, domain = "other.example", AUTHORITY.domain
    try:
        stranger = AUTHORITY.issue(Role.COMMAND, "command1")
    finally:
        AUTHORITY.domain = domain
    assert refusal(frame(command=stranger)) is Refusal.WRONG_DOMAIN


@pytest.mark.parametrize("shift_ms", [-2 * HOUR_MS, 2 * DAY_MS])
def test_an_expired_or_future_command_certificate_does_not_count(shift_ms: int) -> None:
    assert refusal(frame(), now_ms() + shift_ms) is Refusal.NOT_VALID_NOW


def test_another_nodes_state_does_not_count() -> None:
    assert refusal(frame(state(node_id=node_id(2)))) is Refusal.WRONG_NODE


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"", b"\0" * (2 << 20)])
def test_a_signed_payload_that_is_no_state_is_malformed(payload: bytes) -> None:
    reason = refusal(frame(payload=payload))
    assert reason in (Refusal.MALFORMED, Refusal.WRONG_NODE)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "alloc_x\0", "alloc_\n", "", "alloc_" + "x" * 26]
)
def test_a_state_with_a_hostile_allocation_id_is_refused_whole(name: str) -> None:
    content = pb.DesiredState(
        node_id=node_id(),
        control_epoch=1,
        generation=9,
        assignments=[
            pb.Assignment(
                allocation_id=name,
                devices=[pb.AssignedDevice(id="GPU-0", device_class="gpu")],
                binding=pb.BINDING_HOLD,
            )
        ],
    )
    assert refusal(frame(payload=content.SerializeToString())) is Refusal.MALFORMED


@pytest.mark.parametrize("version", [(1, 3), (0, 9), (0, 4)])
def test_an_older_state_does_not_count(version: tuple[int, int]) -> None:
    epoch, generation = version
    assert refusal(frame(state(generation=generation, epoch=epoch))) is Refusal.OLDER


def test_a_raised_epoch_counts_whatever_its_generation() -> None:
    verdict = judge(frame(state(generation=1, epoch=2)), TRUST, accepted(), now_ms())
    assert isinstance(verdict, Accepted)


def test_the_accepted_state_again_is_the_accepted_one() -> None:
    first = accepted()
    assert judge(frame(), TRUST, first, now_ms()) is first


def test_the_accepted_state_again_needs_no_valid_certificate_any_more() -> None:
    first = accepted()
    assert judge(frame(), TRUST, first, now_ms() + 30 * DAY_MS) is first


def test_another_state_of_the_same_generation_is_refused() -> None:
    verdict = judge(frame(state(assignments=())), TRUST, accepted(), now_ms())
    assert isinstance(verdict, Refused)
    assert verdict.reason is Refusal.DIFFERENT


def test_a_refusal_names_what_was_refused() -> None:
    verdict = judge(frame(state(generation=3)), TRUST, accepted(), now_ms())
    assert isinstance(verdict, Refused)
    assert (verdict.epoch, verdict.generation) == (1, 3)
    assert len(verdict.hash) == 64


def test_the_accepted_state_is_there_after_a_restart(tmp_path: Path) -> None:
    first = accepted()
    persist(tmp_path, first)
    assert load(tmp_path, TRUST) == first


def test_there_need_not_be_a_state(tmp_path: Path) -> None:
    assert load(tmp_path, TRUST) is None


def test_a_command_certificate_may_expire_while_its_state_is_kept(tmp_path: Path) -> None:
    long_ago = AUTHORITY.issue(
        Role.COMMAND,
        "command1",
        not_before_ms=now_ms() - 3 * HOUR_MS,
        not_after_ms=now_ms() - 2 * HOUR_MS,
    )
    verdict = judge(frame(command=long_ago), TRUST, None, now_ms() - 150 * 60_000)
    assert isinstance(verdict, Accepted)
    persist(tmp_path, verdict)
    assert load(tmp_path, TRUST) == verdict


@pytest.mark.parametrize("content", [b"\xff", b"", b"garbage" * 100])
def test_a_corrupt_state_file_is_named_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BrokenFile, match=r"desired\.bin.*holds are untouched; move it away"):
        load(tmp_path, TRUST)


def test_a_state_file_of_another_node_is_refused(tmp_path: Path) -> None:
    persist(tmp_path, accepted())
    with pytest.raises(BrokenFile, match=rf"another node.*token join --node {node_id()}"):
        load(tmp_path, Trust(node_id(2), TRUST.domain, TRUST.bundle))

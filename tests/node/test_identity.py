"""The node's identity: whole at every instant of a renewal, and never taken from a bad file."""

import os
from pathlib import Path

import pytest

from bcd.model.errors import BadConfiguration, BrokenFile
from bcd.model.units import DAY_MS, HOUR_MS
from bcd.node.identity import is_valid, load_identity, save_identity
from bcd.signing.certificates import Role, validity_ms
from bcd.signing.keyfile import CREDENTIALS, Credentials
from tests.authority import Authority, now_ms
from tests.node.world import node_id

AUTHORITY = Authority()


def issue(number: int = 1, role: str = Role.NODE) -> Credentials:
    return AUTHORITY.issue(role, node_id(number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_identity(tmp_path, issue())
    return tmp_path


def serial(credentials: Credentials | None) -> int | None:
    return None if credentials is None else credentials.leaf.serial_number


def test_an_identity_says_who_and_whom_to_trust(folder: Path) -> None:
    identity = load_identity(folder)
    assert identity.node_id == node_id()
    trust = identity.trust()
    assert (trust.node_id, trust.domain) == (node_id(), AUTHORITY.domain)
    assert trust.bundle == (AUTHORITY.certificate,)


def test_the_key_is_for_root_alone(folder: Path) -> None:
    assert (folder / CREDENTIALS).stat().st_mode & 0o777 == 0o600


def test_a_host_that_never_enrolled_is_told_to(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="not enrolled; run bcd enroll"):
        load_identity(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_corrupt_identity_is_named_with_its_remedy(folder: Path, content: bytes) -> None:
    (folder / CREDENTIALS).write_bytes(content)
    os.chmod(folder / CREDENTIALS, 0o600)
    with pytest.raises(BrokenFile, match=r"credentials\.pem.*holds are untouched"):
        load_identity(folder)


def test_a_lost_identity_is_told_to_join_again_as_the_same_node(folder: Path) -> None:
    (folder / CREDENTIALS).write_bytes(b"")
    with pytest.raises(BrokenFile, match="token join --node ID"):
        load_identity(folder)


def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    os.chmod(folder / CREDENTIALS, 0o644)
    with pytest.raises(BrokenFile, match="chmod 600"):
        load_identity(folder)


def test_a_folder_in_its_place_is_named(folder: Path) -> None:
    (folder / CREDENTIALS).unlink()
    (folder / CREDENTIALS).mkdir()
    with pytest.raises(BrokenFile, match="cannot be read"):
        load_identity(folder)


def test_another_roles_certificate_is_no_nodes(tmp_path: Path) -> None:
    save_identity(tmp_path, AUTHORITY.gateway())
    with pytest.raises(BrokenFile, match="certificate of a node"):
        load_identity(tmp_path)


def test_a_candidate_is_kept_beside_until_it_is_promoted(folder: Path) -> None:
    identity = load_identity(folder)
    first, second = identity.current, issue()
    identity.offer(second)
    again = load_identity(folder)
    assert (serial(again.current), serial(again.candidate)) == (serial(first), serial(second))
    again.promote()
    assert (serial(again.current), again.candidate) == (serial(second), None)
    last = load_identity(folder)
    assert (serial(last.current), last.candidate) == (serial(second), None)


def test_a_discarded_candidate_leaves_the_identity(folder: Path) -> None:
    identity = load_identity(folder)
    identity.offer(issue())
    identity.discard()
    again = load_identity(folder)
    assert (serial(again.current), again.candidate) == (serial(identity.current), None)


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_broken_candidate_costs_nothing(folder: Path, content: bytes) -> None:
    identity = load_identity(folder)
    identity.offer(issue())
    (folder / "candidate" / CREDENTIALS).write_bytes(content)
    again = load_identity(folder)
    assert (serial(again.current), again.candidate) == (serial(identity.current), None)
    assert not (folder / "candidate").exists()


def test_another_nodes_candidate_is_never_promoted(folder: Path) -> None:
    load_identity(folder).offer(issue(number=2))
    assert load_identity(folder).candidate is None


def test_renewal_is_due_around_half_of_the_life(folder: Path) -> None:
    since_ms, until_ms = validity_ms(load_identity(folder).current.leaf)
    due = {load_identity(folder).renew_at_ms() - since_ms for _ in range(50)}
    half = (until_ms - since_ms) / 2
    assert len(due) > 10
    assert all(0.9 * half <= at <= 1.1 * half for at in due)


def test_an_expired_certificate_renews_within_the_grace_only(tmp_path: Path) -> None:
    expired = AUTHORITY.issue(
        Role.NODE, node_id(), not_before_ms=now_ms() - DAY_MS, not_after_ms=now_ms() - HOUR_MS
    )
    save_identity(tmp_path, expired)
    identity = load_identity(tmp_path)
    assert not is_valid(identity.current, now_ms())
    assert identity.renewable(now_ms())
    assert identity.renewable(now_ms() + 6 * DAY_MS)
    assert not identity.renewable(now_ms() + 7 * DAY_MS)

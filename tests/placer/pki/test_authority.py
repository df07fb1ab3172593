"""What the CA issues: lives, names and records."""

import pytest

from bcd.placer.pki.authority import names_of, role_of
from bcd.signing.certificates import Role, chain_problem, serial_hex, to_der, validity_ms
from bcd.signing.keys import generate_key, key_id
from tests.placer.world import DOMAIN, new_authority

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("role", "days"),
    [
        (Role.NODE, 1),
        (Role.NODE_TENANT, 1),
        (Role.GATEWAY, 7),
        (Role.PLACER, 30),
        (Role.COMMAND, 90),
    ],
)
def test_each_role_has_its_own_life_and_is_backdated_by_an_hour(role: Role, days: int) -> None:
    issued = new_authority(NOW).issue((role, "x1"), generate_key().public_key(), NOW)
    assert validity_ms(issued.certificate) == (NOW - HOUR_MS, NOW + days * DAY_MS)
    assert role_of(issued.certificate) == (role, "x1")


def test_the_record_is_that_of_the_certificate() -> None:
    key = generate_key()
    issued = new_authority(NOW).issue((Role.NODE, "n"), key.public_key(), NOW)
    row, certificate = issued.row, issued.certificate
    assert row.der == to_der(certificate)
    assert row.serial == serial_hex(certificate)
    assert row.key_id == key_id(key.public_key())
    assert row.not_after_ms == validity_ms(certificate)[1]
    assert (row.role, row.subject_id, row.revoked) == ("node", "n", False)


def test_serial_numbers_differ() -> None:
    authority, key = new_authority(NOW), generate_key().public_key()
    serials = {authority.issue((Role.NODE, "n"), key, NOW).row.serial for _ in range(32)}
    assert len(serials) == 32


def test_what_it_issues_chains_to_it_in_time_and_to_no_other() -> None:
    authority = new_authority(NOW)
    leaf = authority.issue((Role.NODE, "n"), generate_key().public_key(), NOW).certificate
    assert chain_problem(leaf, authority.bundle, NOW) is None
    assert chain_problem(leaf, new_authority(NOW).bundle, NOW) is not None
    assert chain_problem(leaf, authority.bundle, NOW + DAY_MS + 1_000) is not None
    assert chain_problem(leaf, authority.bundle, NOW - HOUR_MS - 1_000) is not None


def test_names_are_those_that_it_is_dialled_by() -> None:
    names = ("gw.example", "10.0.0.7", "fd00::1")
    authority = new_authority(NOW)
    leaf = authority.issue((Role.GATEWAY, "g"), generate_key().public_key(), NOW, names)
    assert names_of(leaf.certificate) == names
    bare = authority.issue((Role.NODE, "n"), generate_key().public_key(), NOW)
    assert names_of(bare.certificate) == ()


def test_a_certificate_of_a_role_that_does_not_exist_has_none() -> None:
    assert role_of(new_authority(NOW).certificate) is None
    assert new_authority(NOW).domain == DOMAIN

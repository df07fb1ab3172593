"""Certificates: whose they are, whether they chain, and requests that prove a key."""

import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from bcd.model.units import DAY_MS, HOUR_MS
from bcd.signing import keys
from bcd.signing.certificates import (
    Role,
    SpiffeId,
    chain_problem,
    is_trust_domain,
    key_of_csr,
    make_csr,
    parse_certificate,
    parse_certificates,
    pin_of,
    public_key,
    serial_hex,
    spiffe_id,
    to_der,
    to_pem,
    validity_ms,
)
from tests.authority import Authority, now_ms

NODE = "node_01h2xcejqtf2nbrexx3vqjhp41"


def with_names(*names: x509.GeneralName) -> x509.Certificate:
    """A self-signed certificate with any alternative names."""
    key = keys.generate_key()
    authority = Authority()
    before, after = (
        authority.certificate.not_valid_before_utc,
        authority.certificate.not_valid_after_utc,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(before)
        .not_valid_after(after)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return builder.sign(key, hashes.SHA256())


def test_a_leaf_says_whose_it_is_and_how_long() -> None:
    authority = Authority()
    start = now_ms() // 1000 * 1000
    credentials = authority.issue(
        Role.NODE, NODE, not_before_ms=start - HOUR_MS, not_after_ms=start + DAY_MS
    )
    assert spiffe_id(credentials.leaf) == SpiffeId(authority.domain, "node", NODE)
    assert str(spiffe_id(credentials.leaf)) == f"spiffe://{authority.domain}/node/{NODE}"
    assert validity_ms(credentials.leaf) == (start - HOUR_MS, start + DAY_MS)
    assert int(serial_hex(credentials.leaf), 16) == credentials.leaf.serial_number
    assert parse_certificate(to_der(credentials.leaf)) == credentials.leaf


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://d/node",
        "spiffe://d/node/",
        "spiffe://d//id",
        "spiffe://D/node/id",
        "spiffe://d/node/a/b",
        "spiffe://d/node/../x",
        "spiffe://d/node/id?x=1",
        "spiffe://d/node/id#x",
        "spiffe://d/Node/id",
        "spiffe://d/node/id ",
        "spiffe://user@d/node/id",
        "spiffe://d:1/node/id",
        "https://d/node/id",
        "spiffe:///node/id",
        "spiffe://d/node/" + "x" * 129,
    ],
)
def test_malformed_spiffe_ids_name_nobody(uri: str) -> None:
    assert spiffe_id(with_names(x509.UniformResourceIdentifier(uri))) is None


def test_exactly_one_uri_names_somebody() -> None:
    one = x509.UniformResourceIdentifier("spiffe://d/node/a")
    other = x509.UniformResourceIdentifier("spiffe://d/node/b")
    assert spiffe_id(with_names(one)) == SpiffeId("d", "node", "a")
    assert spiffe_id(with_names(one, x509.DNSName("x"))) == SpiffeId("d", "node", "a")
    assert spiffe_id(with_names(one, other)) is None
    assert spiffe_id(with_names(x509.DNSName("spiffe"))) is None
    assert spiffe_id(with_names()) is None


@pytest.mark.parametrize("domain", ["a", "a.b", "gpu-1.example.com", "0x"])
def test_trust_domains(domain: str) -> None:
    assert is_trust_domain(domain)


@pytest.mark.parametrize("domain", ["", "A", ".a", "a.", "-a", "a b", "a/b", "a\n", "ä", "a" * 300])
def test_other_texts_are_no_trust_domains(domain: str) -> None:
    assert not is_trust_domain(domain)


def test_a_leaf_chains_to_its_own_ca_only() -> None:
    authority, other = Authority(), Authority()
    leaf = authority.issue(Role.NODE, NODE).leaf
    assert chain_problem(leaf, [authority.certificate], now_ms()) is None
    assert chain_problem(leaf, [other.certificate, authority.certificate], now_ms()) is None
    assert chain_problem(leaf, [other.certificate], now_ms()) is not None


@pytest.mark.parametrize("role", Role)
def test_leafs_of_every_role_chain(role: Role) -> None:
    authority = Authority()
    leaf = authority.issue(role, "x", names=("host", "10.0.0.1", "::1")).leaf
    assert chain_problem(leaf, [authority.certificate], now_ms()) is None


def test_a_leaf_chains_within_its_life_only() -> None:
    authority = Authority()
    leaf = authority.issue(Role.NODE, NODE).leaf
    before_ms, after_ms = validity_ms(leaf)
    for moment, fits in (
        (before_ms - 1000, False),
        (before_ms, True),
        (after_ms, True),
        (after_ms + 1000, False),
    ):
        assert (chain_problem(leaf, [authority.certificate], moment) is None) is fits


def test_a_leaf_does_not_sign_other_leafs() -> None:
    authority = Authority()
    middle = authority.issue(Role.NODE, NODE)
    forger = Authority(key=middle.key)
    forger.certificate = middle.leaf
    forged = forger.issue(Role.PLACER, "x").leaf
    assert chain_problem(forged, [authority.certificate], now_ms()) is not None
    assert chain_problem(forged, [authority.certificate, middle.leaf], now_ms()) is not None


def test_only_what_is_dialled_by_name_may_be_a_server() -> None:
    authority = Authority()
    for names, usages in (
        ((), {ExtendedKeyUsageOID.CLIENT_AUTH}),
        (("host",), {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}),
    ):
        leaf = authority.issue(Role.GATEWAY, "gw", names=names).leaf
        extension = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        assert set(extension.value) == usages


def test_names_stand_in_the_certificate_as_dns_names_or_addresses() -> None:
    leaf = Authority().issue(Role.GATEWAY, "gw", names=("gw.example", "10.0.0.1", "::1")).leaf
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gw.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]


def test_a_request_proves_its_key() -> None:
    key = keys.generate_key()
    assert keys.key_id(key_of_csr(make_csr(key))) == keys.key_id(key.public_key())


def csr_of(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP256K1()),
        rsa.generate_private_key(65537, 2048),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["p384", "secp256k1", "rsa", "ed25519"],
)
def test_a_request_for_another_kind_of_key_is_refused(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
) -> None:
    with pytest.raises(ValueError, match="P-256"):
        key_of_csr(csr_of(key))


def test_a_request_that_was_touched_is_refused() -> None:
    csr = bytearray(make_csr(keys.generate_key()))
    csr[-1] ^= 1
    with pytest.raises(ValueError):
        key_of_csr(bytes(csr))
    for junk in (b"", b"junk", bytes(csr[:50])):
        with pytest.raises(ValueError):
            key_of_csr(junk)


@pytest.mark.parametrize("der", [b"", b"junk", b"\x30\x82\xff\xff"])
def test_junk_is_no_certificate(der: bytes) -> None:
    with pytest.raises(ValueError):
        parse_certificate(der)


def on_another_curve(der: bytes) -> bytes:
    """The same with a curve that nobody has, of the same length."""
    p256, unknown = bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d03017f")
    assert p256 in der
    return der.replace(p256, unknown)


def test_a_key_on_a_curve_that_nobody_knows_is_a_value_error() -> None:
    der = on_another_curve(Authority().der)
    with pytest.raises(ValueError):
        parse_certificate(der)
    with pytest.raises(ValueError):
        parse_certificates(pem_of(der))
    csr = make_csr(keys.generate_key())
    with pytest.raises(ValueError):
        key_of_csr(
            csr.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d03017f"))
        )


def pem_of(der: bytes) -> bytes:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n".encode()


@pytest.mark.filterwarnings("ignore")
def test_a_certificate_with_any_byte_changed_is_read_or_a_value_error() -> None:
    """What was read raises nowhere later either, also not as an authority."""
    authority = Authority()
    der = to_der(authority.issue(Role.GATEWAY, NODE, names=("gw.example", "10.0.0.1")).leaf)
    for place in range(len(der)):
        for bit in (0x01, 0x10, 0x80):
            changed = bytearray(der)
            changed[place] ^= bit
            try:
                found = parse_certificate(bytes(changed))
                public_key(found)
            except ValueError:
                continue
            spiffe_id(found)
            chain_problem(found, [authority.certificate], now_ms())
            chain_problem(authority.certificate, [found], now_ms())


def test_only_elliptic_keys_are_taken_from_certificates() -> None:
    leaf = Authority().issue(Role.NODE, NODE).leaf
    assert keys.key_id(public_key(leaf))


def test_a_pin_is_the_hash_of_the_ca() -> None:
    authority = Authority()
    assert pin_of(authority.certificate) == authority.certificate.fingerprint(hashes.SHA256()).hex()
    assert pin_of(authority.certificate) != pin_of(Authority().certificate)


def test_pem_keeps_the_order() -> None:
    chain = [Authority().certificate for _ in range(3)]
    assert list(parse_certificates(to_pem(chain))) == chain

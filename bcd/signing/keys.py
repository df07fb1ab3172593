"""ECDSA P-256 keys. gRPC's TLS and the X.509 verifier refuse Ed25519, so there is one kind."""

import hashlib

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_ECDSA_SHA256 = ec.ECDSA(hashes.SHA256())


def generate_key() -> ec.EllipticCurvePrivateKey:
    """Make a new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """Lower-case hex SHA-256 of the DER SubjectPublicKeyInfo."""
    info = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(info).hexdigest()


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """An ASN.1 DER signature, SHA-256."""
    return key.sign(message, _ECDSA_SHA256)


def verify(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    """Whether the signature is this key's over the message; malformed ones are not."""
    try:
        key.verify(signature, message, _ECDSA_SHA256)
    except InvalidSignature:
        return False
    return True


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Unencrypted PKCS #8."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a P-256 key; raises ValueError saying what is wrong, never what is in it."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("is not an unencrypted PEM private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("is not an ECDSA P-256 key")
    return key

"""How a stream begins: whose certificate it is, what its Hello says, and the session it opens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bcd.gateway import ending
from bcd.gateway.ending import Ending
from bcd.model.ids import NodeId, is_plain_name, is_type_id
from bcd.signing.certificates import (
    WORKLOAD_ROLES,
    parse_certificates,
    serial_hex,
    spiffe_id,
    validity_ms,
)
from bcd.store import certificates, inventories, nodes, sessions
from bcd.store.database import Transaction
from bcd.store.sessions import Opening
from bcd.wire import bounds
from bcd.wire.node.v1 import gateway_pb2 as pb

MAX_CAPABILITIES = 64
_MAX_TEXT = 128

StateVersion = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Whom the certificate names, and how long it may say so."""

    node_id: NodeId
    serial: str
    not_after_ms: int


def identify(auth: Mapping[str, Iterable[bytes]], domain: str, now_ms: int) -> Peer | Ending:
    """Read the peer's certificate, which TLS has checked against the trusted CAs.

    ``auth`` is gRPC's authentication context. The role, the trust domain and the form of the
    id are what TLS does not know of.
    """
    certificate = next(iter(auth.get("x509_pem_cert", ())), None)
    if certificate is None:
        return ending.bad_certificate("no client certificate was shown")
    try:
        leaf = parse_certificates(certificate)[0]
    except ValueError as error:
        return ending.bad_certificate(f"the certificate cannot be read ({error})")
    subject = spiffe_id(leaf)
    if subject is None or subject.domain != domain:
        return ending.bad_certificate(f"the certificate is not of the trust domain {domain}")
    if subject.role not in WORKLOAD_ROLES:
        return ending.bad_certificate(f"a certificate of role {subject.role} runs no workloads")
    if not is_type_id("node", subject.id):
        return ending.bad_certificate("the certificate does not name a node")
    _, not_after_ms = validity_ms(leaf)
    if not_after_ms <= now_ms:
        return ending.bad_certificate("the certificate has expired")
    return Peer(node_id=NodeId(subject.id), serial=serial_hex(leaf), not_after_ms=not_after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """A Hello within bounds; ``applied`` is the newest desired state that the node has."""

    process_instance: str
    boot_id: str
    daemon_version: str
    protocol_version: int
    capabilities: tuple[str, ...]
    applied: StateVersion
    inventory_hash: str


def read_hello(hello: pb.Hello, peer: Peer) -> Greeting | Ending:
    """Check a Hello against the certificate and choose the protocol's version."""
    if hello.node_id != peer.node_id:
        return ending.bad_certificate("the certificate is another node's")
    version = min(hello.protocol_version, bounds.PROTOCOL_VERSION)
    if version < max(hello.min_protocol_version, bounds.MIN_PROTOCOL_VERSION):
        return ending.bad_protocol(
            f"no common version: the node speaks {hello.min_protocol_version}"
            f" to {hello.protocol_version}"
        )
    problem = _problem(hello)
    if problem:
        return ending.bad_protocol(problem)
    return Greeting(
        process_instance=hello.process_instance,
        boot_id=hello.boot_id,
        daemon_version=hello.daemon_version,
        protocol_version=version,
        capabilities=tuple(hello.capabilities),
        applied=(hello.applied_epoch, hello.applied_generation, hello.applied_hash),
        inventory_hash=hello.inventory_hash,
    )


def _problem(hello: pb.Hello) -> str:
    texts = {
        "process_instance": hello.process_instance,
        "boot_id": hello.boot_id,
        "daemon_version": hello.daemon_version,
        "applied_hash": hello.applied_hash,
        "inventory_hash": hello.inventory_hash,
    }
    for name, text in texts.items():
        if len(text) > _MAX_TEXT or not text.isprintable():
            return f"{name} is too long or not printable"
    if not hello.process_instance:
        return "process_instance is empty"
    if len(hello.capabilities) > MAX_CAPABILITIES:
        return f"there are more than {MAX_CAPABILITIES} capabilities"
    if not all(is_plain_name(name) for name in hello.capabilities):
        return "a capability is not a name of letters, digits, dots, dashes and underscores"
    return ""


@dataclass(frozen=True, slots=True)
class Admission:
    """The session that a Hello opened; ``stored_inventory`` is the hash on record."""

    epoch: int
    stored_inventory: str
    now_ms: int


def admit(
    tx: Transaction, opening: Opening, serial: str, capabilities: Sequence[str]
) -> Admission | None:
    """Open a session and write the node's capabilities; None for a revoked certificate.

    Raises ConstraintViolated when the node was removed.
    """
    if certificates.is_revoked(tx, serial):
        return None
    epoch = sessions.open_session(tx, opening)
    nodes.replace_capabilities(tx, opening.node_id, capabilities)
    stored = inventories.stored_hash(tx, opening.node_id)
    return Admission(epoch, stored, tx.now_ms())

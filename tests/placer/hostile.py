"""A gateway that was taken over: it writes what it likes into the rows that a gateway may write."""

from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric import ec

from bcd.model.ids import NodeId
from bcd.model.report import Report
from bcd.placer.pki.authority import Authority
from bcd.signing.certificates import Role
from bcd.signing.envelope import PayloadType, seal
from bcd.signing.keys import generate_key, key_id
from bcd.store import certificates
from bcd.store.database import Database, Transaction
from bcd.wire.node.v1 import envelope_pb2 as pb
from bcd.wire.report import encode_report

DAY_MS = 86_400_000


@dataclass
class HostileGateway:
    """Writes reports as rows, past every check that an honest gateway makes."""

    database: Database
    node_id: NodeId
    written: int = 0

    async def write(self, frame: bytes, allocation_id: str, key: str, number: int = 0) -> None:
        """One report under the node's name."""
        self.written += 1

        def insert(tx: Transaction) -> None:
            tx.run(
                "INSERT INTO reports (node_id, key_id, number, digest, allocation_id, envelope,"
                " session_epoch, received_ms) VALUES (:node_id, :key_id, :number, :digest,"
                " :allocation_id, :envelope, 1, 0)",
                digest=str(self.written),
                node_id=self.node_id,
                key_id=key,
                number=number or 1_000 + self.written,
                allocation_id=allocation_id,
                envelope=frame,
            )

        await self.database.write(insert)

    async def relay(self, envelope: pb.Envelope, allocation_id: str, number: int = 0) -> None:
        """One report in an envelope."""
        frame = envelope.SerializeToString()
        await self.write(frame, allocation_id, envelope.key_id, number)


def sealed(
    key: ec.EllipticCurvePrivateKey,
    report: Report,
    purpose: PayloadType = PayloadType.ATTESTED_REPORT,
) -> pb.Envelope:
    """A report signed with any key for any purpose."""
    return seal(key, purpose, encode_report(report))


def claiming(envelope: pb.Envelope, key: ec.EllipticCurvePrivateKey) -> pb.Envelope:
    """The envelope with another key's id put on it."""
    forged = pb.Envelope()
    forged.CopyFrom(envelope)
    forged.key_id = key_id(key.public_key())
    return forged


async def another_key(
    database: Database,
    authority: Authority,
    subject: tuple[Role, str],
    issued_ago_ms: int = 0,
) -> ec.EllipticCurvePrivateKey:
    """A key whose certificate the CA really issued, that long ago."""
    key = generate_key()

    def record(tx: Transaction) -> None:
        now_ms = tx.now_ms() - issued_ago_ms
        certificates.record(tx, authority.issue(subject, key.public_key(), now_ms).row)

    await database.write(record)
    return key


def renumbered(report: Report, number: int) -> Report:
    """The report under another number."""
    return replace(report, number=number)

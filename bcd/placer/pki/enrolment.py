"""Answers enrolments and renewals that gateways relay; trusts nothing but tokens and old keys."""

import hashlib
import re
from dataclasses import dataclass
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from bcd.model.ids import is_type_id
from bcd.model.units import DAY_MS
from bcd.placer.loops import each
from bcd.placer.pki.authority import Authority, names_of, requested_key, role_of
from bcd.placer.pki.join import authentic
from bcd.signing import certificates as x509_profile
from bcd.signing.envelope import PayloadType, opens
from bcd.signing.keys import key_id
from bcd.store import certificates, enrolments, events, nodes, pools, work
from bcd.store.certificates import IssuedCertificate
from bcd.store.database import Database, Transaction
from bcd.store.enrolments import Answer, Enrolment
from bcd.wire.node.v1 import enrollment_pb2 as pb
from bcd.wire.node.v1 import envelope_pb2

M = TypeVar("M", pb.EnrollRequest, pb.RenewRequest, pb.Renewal)

_KEY_ID = re.compile(r"[0-9a-f]{64}\Z")
_BATCH = 64
_BROKEN = Answer(None, "the request cannot be processed; the placer's log has the cause")
# A clock that is further off fails at the gateway's certificate, which lives for 7 days, anyway. A
# host that was away signs when it is back.
_MAX_SKEW_MS = 7 * DAY_MS
_RENEWABLE = x509_profile.WORKLOAD_ROLES | {x509_profile.Role.GATEWAY}


class Refused(Exception):
    """Why a request gets no certificate; ``subject_id`` is whose it claims to be, if known."""

    def __init__(self, reason: str, subject_id: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.subject_id = subject_id


@dataclass(frozen=True, slots=True)
class Enroller:
    """The CA as enrolment needs it."""

    authority: Authority

    def answer(self, tx: Transaction, request: Enrolment) -> None:
        """Answer one request, with credentials or a refusal that is also an event."""
        try:
            certificate = (
                self._join(tx, request.body)
                if request.kind == "join"
                else self._renew(tx, request.body)
            )
        except Refused as refused:
            if refused.subject_id:
                events.emit(
                    tx,
                    f"node/{refused.subject_id}",
                    "node.enrolment-rejected",
                    {"nodeId": refused.subject_id, "reason": refused.reason},
                )
            enrolments.answer(tx, request.id, Answer(None, refused.reason))
            return
        credentials = pb.Credentials(
            id=certificate.subject_id,
            chain=[certificate.der],
            bundle=[x509_profile.to_der(ca) for ca in self.authority.bundle],
        )
        enrolments.answer(tx, request.id, Answer(credentials.SerializeToString(), None))

    def _join(self, tx: Transaction, body: bytes) -> IssuedCertificate:
        message = _parsed(pb.EnrollRequest(), body)
        known = is_type_id("join", message.token_id)
        token = enrolments.lock_token(tx, message.token_id) if known else None
        if token is None:
            raise Refused("the join token is not known; make a new one")
        if not authentic(token, message.csr, message.hmac):
            raise Refused("the request was not made with the join token's secret", token.node_id)
        if token.expires_ms <= tx.now_ms():
            raise Refused("the join token has expired; make a new one", token.node_id)
        csr_hash = hashlib.sha256(message.csr).hexdigest()
        if token.used_csr not in (None, csr_hash):
            raise Refused("the join token was used already; make a new one", token.node_id)
        subject = (x509_profile.Role(token.role), token.node_id)
        key = _key_of(message.csr, token.node_id)
        again = token.used_csr == csr_hash
        certificate = self._certificate(tx, subject, key, again=again)
        enrolments.use_token(tx, token.id, csr_hash)
        held = pools.lock(tx, token.pool_id)
        nodes.enrol(tx, token.node_id, token.pool_id, token.role, trusted=token.trusted)
        pools.note_changes(tx, held, [token.node_id], "node")
        work.poke(tx, held.pool.id, held.now_ms)
        return certificate

    def _renew(self, tx: Transaction, body: bytes) -> IssuedCertificate:
        message = _parsed(pb.RenewRequest(), body)
        old = self._signer(tx, message.envelope)
        certificate = x509_profile.parse_certificate(old.der)
        subject = role_of(certificate)
        if subject is None or subject[0] not in _RENEWABLE:
            raise Refused("a certificate of this role cannot be renewed", old.subject_id)
        renewal = _parsed(pb.Renewal(), message.envelope.payload)
        if abs(renewal.signed_at_ms - tx.now_ms()) > _MAX_SKEW_MS:
            # Nobody is named: an old recording may come as often as somebody likes.
            raise Refused("the renewal was signed more than a week from now; set the host's clock")
        key = _key_of(renewal.csr, old.subject_id)
        if key_id(key) == old.key_id:
            raise Refused("a renewal needs a new key", old.subject_id)
        return self._certificate(tx, subject, key, names_of(certificate), again=True)

    def _signer(self, tx: Transaction, envelope: envelope_pb2.Envelope) -> IssuedCertificate:
        known = certificates.by_key(tx, envelope.key_id) if _KEY_ID.match(envelope.key_id) else ()
        if not known:
            raise Refused("the renewal's key is not known; join again with a new token")
        old = known[0]
        key = x509_profile.public_key(x509_profile.parse_certificate(old.der))
        if key_id(key) != envelope.key_id or not opens(envelope, PayloadType.RENEWAL, key):
            raise Refused("the renewal's signature does not hold", old.subject_id)
        if any(certificate.revoked for certificate in known):
            raise Refused("the certificate was revoked", old.subject_id)
        if old.not_after_ms + x509_profile.OFFLINE_GRACE_MS <= tx.now_ms():
            raise Refused(
                "the certificate expired longer ago than the offline grace; join again with a"
                " new token",
                old.subject_id,
            )
        return old

    def _certificate(
        self,
        tx: Transaction,
        subject: tuple[x509_profile.Role, str],
        key: ec.EllipticCurvePublicKey,
        names: tuple[str, ...] = (),
        *,
        again: bool,
    ) -> IssuedCertificate:
        """A certificate for the key; the one that lives, when it may be asked for ``again``."""
        for known in certificates.by_key(tx, key_id(key)) if again else ():
            if (known.role, known.subject_id) == subject:
                if known.revoked:
                    raise Refused("the certificate was revoked", known.subject_id)
                if known.not_after_ms > tx.now_ms():
                    return known
        issued = self.authority.issue(subject, key, tx.now_ms(), names)
        certificates.record(tx, issued.row)
        return issued.row


def _key_of(csr: bytes, subject_id: str) -> ec.EllipticCurvePublicKey:
    try:
        return requested_key(csr)
    except ValueError as error:
        raise Refused(f"the certificate request is not sound: {error}", subject_id) from error


def _parsed(message: M, body: bytes) -> M:
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise Refused("the request does not parse") from error
    return message


class EnrolmentKeeper:
    """Answers what gateways relay."""

    def __init__(self, database: Database, enroller: Enroller) -> None:
        self._database = database
        self._enroller = enroller

    async def answer_pass(self) -> float | None:
        """Answer every request that waits, each in a transaction of its own.

        One that breaks the answering is refused, so that it breaks nothing a second time.
        """
        waiting = await self._database.write(enrolments.claim, _BATCH)
        broken = await each("answering an enrolment", [w.id for w in waiting], self._answer)
        for enrolment_id in broken:
            await self._database.write(enrolments.answer, enrolment_id, _BROKEN)
        return 0.0 if len(waiting) == _BATCH else None

    async def _answer(self, enrolment_id: str) -> None:
        await self._database.write(self._answer_one, enrolment_id)

    def _answer_one(self, tx: Transaction, enrolment_id: str) -> None:
        request = enrolments.take(tx, enrolment_id)
        if request is not None:
            self._enroller.answer(tx, request)

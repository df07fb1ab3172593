"""Answers enrolments, renews the placer's own certificates, and throws old rows away."""

import logging
from pathlib import Path

import grpc

from bcd.model.units import DAY_MS, MINUTE_MS
from bcd.placer.lifecycle.assign import assign
from bcd.placer.pki.authority import Authority, names_of
from bcd.placer.pki.command import CommandSigner
from bcd.placer.pki.enrolment import Enroller
from bcd.signing.certificates import OFFLINE_GRACE_MS, Role, pin_of, to_der, validity_ms
from bcd.signing.keyfile import CREDENTIALS, Credentials, load_credentials, save_credentials
from bcd.store import (
    certificates,
    control,
    desired_states,
    enrolments,
    nodes,
    pools,
    reports,
    reservations,
)
from bcd.store.database import Database, Transaction

logger = logging.getLogger(__name__)

_BATCH = 16
_RE_SIGN_BATCH = 64
_DRAFT_LIFE_MS = DAY_MS
_REPORT_LIFE_MS = 7 * DAY_MS
_ENROLMENT_LIFE_MS = 10 * MINUTE_MS


class OwnCredentials:
    """A key and certificate of the placer's own, renewed at half its life with a new key."""

    def __init__(
        self, folder: Path, authority: Authority, subject: tuple[Role, str], names: tuple[str, ...]
    ) -> None:
        self._folder = folder
        self._authority = authority
        self._subject = subject
        self._names = names
        self.current: Credentials | None = None

    def renew_if_due(self, tx: Transaction) -> Credentials | None:
        """The new credentials when the old ones were missing, misnamed or past half their life."""
        if self.current is None and (self._folder / CREDENTIALS).exists():
            self.current = load_credentials(
                self._folder, "remove it: the placer makes another at its next start"
            )
        now_ms = tx.now_ms()
        if self.current is not None:
            start_ms, end_ms = validity_ms(self.current.leaf)
            named = set(names_of(self.current.leaf)) == set(self._names)
            if named and now_ms < (start_ms + end_ms) // 2:
                return None
        credentials, row = self._authority.credentials_for(self._subject, now_ms, self._names)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_credentials(self._folder, credentials)
        certificates.record(tx, row)
        self.current = credentials
        return credentials


class EnrolmentKeeper:
    """Answers what gateways relay."""

    def __init__(self, database: Database, enroller: Enroller) -> None:
        self._database = database
        self._enroller = enroller

    async def answer_pass(self) -> float | None:
        """Answer every request that waits, each in a transaction of its own."""
        while await self._database.write(self._answer_one):
            pass
        return None

    def _answer_one(self, tx: Transaction) -> bool:
        waiting = enrolments.claim(tx, 1)
        for request in waiting:
            self._enroller.answer(tx, request)
        return bool(waiting)


class Upkeep:
    """Keeps the placer's certificates fresh, states signed by them, and the database lean."""

    def __init__(
        self,
        database: Database,
        signer: CommandSigner,
        command: OwnCredentials,
        api_tls: OwnCredentials,
    ) -> None:
        self._database = database
        self._signer = signer
        self._command = command
        self._api_tls = api_tls

    async def pass_once(self) -> float | None:
        """One pass."""
        renewed = await self._database.write(self._command.renew_if_due)
        if renewed is not None:
            self._signer.replace(renewed)
        await self._database.write(self._api_tls.renew_if_due)
        while await self._database.write(self._sign_again):
            pass
        await self._database.write(_prune)
        return None

    def _sign_again(self, tx: Transaction) -> bool:
        """Sign states that an older key or epoch signed; False when none is left."""
        stale = desired_states.signed_otherwise(tx, self._signer.key_id, control.epoch(tx))
        for node_id in stale[:_RE_SIGN_BATCH]:
            held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
            assign(tx, self._signer, held.pool.policy, [node_id])
        return bool(stale)


def _prune(tx: Transaction) -> None:
    now_ms = tx.now_ms()
    reservations.sweep_drafts(tx, now_ms - _DRAFT_LIFE_MS)
    reports.prune(tx, now_ms - _REPORT_LIFE_MS)
    enrolments.prune(tx, now_ms - _ENROLMENT_LIFE_MS)
    certificates.prune(tx, now_ms - OFFLINE_GRACE_MS - DAY_MS)


def trust_authority(tx: Transaction, authority: Authority) -> None:
    """Put the CA into the bundle that gateways read."""
    certificates.trust(tx, pin_of(authority.certificate), to_der(authority.certificate))


def tls_configuration(
    credentials: Credentials,
) -> grpc.ServerCertificateConfiguration:
    """The API server's certificate, for handshakes from now on."""
    pair = (credentials.key_pem, credentials.chain_pem)
    return grpc.ssl_server_certificate_configuration([pair], None)

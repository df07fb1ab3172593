"""Keeps the control plane fresh: its certificates, the states signed with them, a lean database."""

from bcd.model.units import DAY_MS, MINUTE_MS
from bcd.placer.admission import unused
from bcd.placer.events.feed import KEPT_DAYS
from bcd.placer.lifecycle.assign import assign
from bcd.placer.pki.authority import Authority
from bcd.placer.pki.command import CommandSigner
from bcd.placer.pki.own import OwnCredentials
from bcd.signing.certificates import OFFLINE_GRACE_MS, pin_of, to_der
from bcd.store import (
    certificates,
    control,
    deliveries,
    desired_states,
    enrolments,
    events,
    nodes,
    pools,
    refusals,
    reports,
)
from bcd.store.database import Database, Transaction

_RE_SIGN_BATCH = 64
# A command key is renewed at half of its 90 days.
_SIGNED_FOR_MS = 30 * DAY_MS
_DRAFT_LIFE_MS = DAY_MS
_DENIED_LIFE_MS = 7 * DAY_MS
_REPORT_LIFE_MS = 7 * DAY_MS
_ENROLMENT_LIFE_MS = 10 * MINUTE_MS
_DEAD_LETTER_LIFE_MS = 30 * DAY_MS


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
        forgotten = -1
        while (newest := await self._database.write(_forget_events)) > forgotten:
            forgotten = newest
        return None

    def _sign_again(self, tx: Transaction) -> bool:
        """Sign states whose signature will not hold for long; False when none is left."""
        until_ms = tx.now_ms() + _SIGNED_FOR_MS
        stale = desired_states.signed_stale(tx, control.epoch(tx), until_ms)
        for node_id in stale[:_RE_SIGN_BATCH]:
            held = pools.lock(tx, nodes.get(tx, node_id).pool_id)
            assign(tx, self._signer, held.pool.policy, [node_id])
        return bool(stale)


def _prune(tx: Transaction) -> None:
    now_ms = tx.now_ms()
    refusals.sweep_drafts(tx, now_ms - _DRAFT_LIFE_MS)
    unused.trim(tx, now_ms)
    refusals.sweep_denied(tx, now_ms - _DENIED_LIFE_MS)
    reports.prune(tx, now_ms - _REPORT_LIFE_MS)
    enrolments.prune(tx, now_ms - _ENROLMENT_LIFE_MS)
    certificates.prune(tx, now_ms - OFFLINE_GRACE_MS - DAY_MS)


def _forget_events(tx: Transaction) -> int:
    """What is forgotten is gone for watchers too; a dead letter keeps its event."""
    now_ms = tx.now_ms()
    deliveries.forget(tx, now_ms - _DEAD_LETTER_LIFE_MS)
    return events.forget(tx, now_ms - KEPT_DAYS * DAY_MS)


def trust_authority(tx: Transaction, authority: Authority) -> None:
    """Put the CA into the bundle that gateways read."""
    certificates.trust(tx, pin_of(authority.certificate), to_der(authority.certificate))

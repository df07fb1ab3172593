"""The node's key and certificate: loaded, renewed at half their life, replaced without a gap.

A renewal's result is saved as a candidate, proven by a session that the gateway accepts, and
only then promoted; a crash anywhere in between leaves a usable identity. ``link`` decides when.
"""

import logging
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from bcd.durable import sync_folder
from bcd.model.errors import BadConfiguration, BrokenFile
from bcd.model.ids import NodeId
from bcd.node.desired import Trust
from bcd.node.rejoin import JOIN_AGAIN_AS_BEFORE
from bcd.signing.certificates import (
    OFFLINE_GRACE_MS,
    WORKLOAD_ROLES,
    SpiffeId,
    spiffe_id,
    validity_ms,
)
from bcd.signing.keyfile import CREDENTIALS, Credentials, load_credentials, save_credentials

log = logging.getLogger(__name__)

_CANDIDATE = "candidate"
_REMEDY = f"holds are untouched; restore the file, or move it away and {JOIN_AGAIN_AS_BEFORE}"
# Renewals of a fleet that enrolled together spread over a fifth of the half life.
_JITTER = 0.1


@dataclass(slots=True)
class Identity:
    """Who this node is; ``current`` signs reports, ``candidate`` waits to be proven."""

    folder: Path
    current: Credentials
    candidate: Credentials | None
    subject: SpiffeId
    _renew_at: float

    @property
    def node_id(self) -> NodeId:
        """The id in the certificate."""
        return NodeId(self.subject.id)

    def trust(self) -> Trust:
        """What desired states are judged against."""
        return Trust(self.node_id, self.subject.domain, self.current.bundle)

    def renew_at_ms(self) -> int:
        """When the current certificate is due for renewal: half of its life, with some jitter."""
        since_ms, until_ms = validity_ms(self.current.leaf)
        return int(since_ms + (until_ms - since_ms) * self._renew_at)

    def renewable(self, now_ms: int) -> bool:
        """Whether the certificate may still renew; afterwards only a new join token helps."""
        return now_ms < validity_ms(self.current.leaf)[1] + OFFLINE_GRACE_MS

    def offer(self, credentials: Credentials) -> None:
        """Keep a renewal's result as the candidate, durably; raises OSError."""
        folder = self.folder / _CANDIDATE
        folder.mkdir(mode=0o700, exist_ok=True)
        save_credentials(folder, credentials)
        sync_folder(self.folder)
        self.candidate = credentials

    def promote(self) -> None:
        """Make the proven candidate the identity, durably; raises OSError."""
        if self.candidate is None:
            return
        os.replace(self.folder / _CANDIDATE / CREDENTIALS, self.folder / CREDENTIALS)
        sync_folder(self.folder)
        self.current, self.candidate = self.candidate, None
        self._renew_at = _half_life()

    def discard(self) -> None:
        """Forget a candidate that the gateway does not take."""
        self.candidate = None
        shutil.rmtree(self.folder / _CANDIDATE, ignore_errors=True)


def load_identity(folder: Path) -> Identity:
    """Read the identity from the daemon's folder.

    Raises BadConfiguration when the host was never enrolled, BrokenFile when the file is
    unusable. A broken candidate is dropped: the identity that it would have replaced is whole.
    """
    try:
        current = load_credentials(folder, _REMEDY)
    except FileNotFoundError as error:
        raise BadConfiguration(
            f"{folder / CREDENTIALS}: this host is not enrolled; run bcd enroll with a join token"
        ) from error
    except OSError as error:
        raise BrokenFile(
            str(folder / CREDENTIALS), f"cannot be read ({error.strerror})", _REMEDY
        ) from error
    subject = spiffe_id(current.leaf)
    if subject is None or subject.role not in WORKLOAD_ROLES:
        raise BrokenFile(
            str(folder / CREDENTIALS), "does not hold the certificate of a node", _REMEDY
        )
    identity = Identity(folder, current, None, subject, _half_life())
    try:
        candidate = load_credentials(folder / _CANDIDATE, _REMEDY)
    except (FileNotFoundError, NotADirectoryError):
        return identity
    except (BrokenFile, OSError) as error:
        log.warning("unusable candidate credentials dropped", extra={"problem": str(error)})
        identity.discard()
        return identity
    if spiffe_id(candidate.leaf) == subject:
        identity.candidate = candidate
    else:
        identity.discard()
    return identity


def save_identity(folder: Path, credentials: Credentials) -> None:
    """Write the first identity of a host; raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(folder / _CANDIDATE, ignore_errors=True)
    save_credentials(folder, credentials)


def is_valid(credentials: Credentials, now_ms: int) -> bool:
    """Whether the certificate has not expired by our clock; a future one may be clock skew."""
    return now_ms < validity_ms(credentials.leaf)[1]


def _half_life() -> float:
    return 0.5 * (1 + random.uniform(-_JITTER, _JITTER))  # noqa: S311 - spreads load, no secret

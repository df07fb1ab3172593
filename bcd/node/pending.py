"""The attempt to enrol, on disk: asked for again, with the same key, after a crash or a timeout.

A join token serves one request. When its answer is lost, the control plane answers that same
request again, but no other; so ``bcd enroll`` keeps its key and request until it has the answer.
"""

from pathlib import Path

import msgspec

from bcd.durable import remove_file, replace_file
from bcd.node.enrolment import Attempt, new_attempt
from bcd.signing.keys import key_from_pem, key_to_pem

_FILE = "enrolling.json"
_MAX_BYTES = 16 * 1024


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is on disk; readable by the owner only."""

    token_id: str
    key_pem: str
    csr: bytes


def attempt_for(token_id: str, state: Path) -> Attempt:
    """The attempt that this token was used for before, or a new one, durably kept.

    A file of another token, or one that cannot be read, is replaced: nothing depends on it.
    """
    kept = _load(state)
    if kept is not None and kept.token_id == token_id:
        try:
            return Attempt(key_from_pem(kept.key_pem.encode()), kept.csr)
        except ValueError:
            pass  # a new attempt then
    attempt = new_attempt()
    fresh = _Kept(token_id, key_to_pem(attempt.key).decode(), attempt.csr)
    replace_file(state / _FILE, msgspec.json.encode(fresh))
    return attempt


def forget_attempt(state: Path) -> None:
    """The answer is safe."""
    remove_file(state / _FILE)


def _load(state: Path) -> _Kept | None:
    try:
        with (state / _FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=_Kept)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None

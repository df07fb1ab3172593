"""Signed reports that the control plane has not acknowledged, and the next report's number.

One file, replaced whole and synced before anything in it is sent. Numbers only grow, also
across keys and across an outbox that was lost or restored from a backup: a start goes on from the
wall clock's milliseconds, or from the file's number where that is higher, since a host signs less
than a report a millisecond. The control plane takes an older number for a replay, and only there.
A release waits in it, held, until the hold's files are gone. Thread-safe: a pass adds from a
worker thread while the session sends and acknowledges on the loop.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from bcd.durable import replace_file
from bcd.model.errors import BrokenFile
from bcd.model.ids import AllocationId
from bcd.model.report import Outcome, Released

FILE = "outbox.bin"
_MAGIC = b"bcd-outbox 1\n"
_DIGEST_BYTES = 32
_MAX_BYTES = 64 << 20

# Signs one outcome under one number; returns the serialised envelope.
Sign = Callable[[AllocationId, Outcome, int], bytes]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One signed report; ``slice_empty`` is what a release says, None for other outcomes."""

    number: int
    allocation_id: AllocationId
    envelope: bytes
    slice_empty: bool | None = None
    held: bool = False


class _Content(msgspec.Struct):
    next_number: int
    entries: list[Entry]


class Outbox:
    """The durable queue of reports; the newest outcome of an allocation replaces older ones."""

    def __init__(self, path: Path, content: _Content) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._next = content.next_number
        self._entries = {entry.number: entry for entry in content.entries}
        # Numbers up to this one may have been sent, so a freed release must be above it.
        self._sendable = content.next_number - 1
        self._dirty = False

    @classmethod
    def load(cls, folder: Path, now_ms: int) -> "Outbox":
        """Read the outbox, or begin one; raises BrokenFile for a file that is not whole.

        Numbers go on from ``now_ms`` at least.
        """
        path = folder / FILE
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return cls(path, _Content(now_ms, []))
        payload = raw[len(_MAGIC) + _DIGEST_BYTES :]
        digest = raw[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]
        if not raw.startswith(_MAGIC) or hashlib.sha256(payload).digest() != digest:
            raise _broken(path, "is damaged or of another version")
        try:
            content = msgspec.msgpack.decode(payload, type=_Content)
        except msgspec.DecodeError as error:
            raise _broken(path, f"cannot be read: {error}") from error
        content.next_number = max(content.next_number, now_ms)
        return cls(path, content)

    def add(
        self,
        outcomes: Iterable[tuple[AllocationId, Outcome]],
        sign: Sign,
        *,
        held: bool = False,
    ) -> int:
        """Sign outcomes under the next numbers and make them durable in one write.

        Returns how many. Raises OSError, and then nothing has changed.
        """
        with self._lock:
            entries, number = dict(self._entries), self._next
            added = 0
            for allocation_id, outcome in outcomes:
                entries = {n: e for n, e in entries.items() if e.allocation_id != allocation_id}
                entries[number] = Entry(
                    number=number,
                    allocation_id=allocation_id,
                    envelope=sign(allocation_id, outcome, number),
                    slice_empty=outcome.slice_empty if isinstance(outcome, Released) else None,
                    held=held,
                )
                number += 1
                added += 1
            if added:
                self._write(entries, number)
                if not held:
                    self._sendable = number - 1
            return added

    def free(self, allocation_id: AllocationId, sign: Sign) -> None:
        """Let a held release be sent, under a new number when later ones may have gone out.

        Raises OSError, and then it stays held. The flag itself needs no write: after a crash
        the next pass frees it again.
        """
        with self._lock:
            entry = next(
                (e for e in self._entries.values() if e.held and e.allocation_id == allocation_id),
                None,
            )
            if entry is None:
                return
            entries = dict(self._entries)
            del entries[entry.number]
            number = entry.number
            if number <= self._sendable:
                number = self._next
                envelope = sign(allocation_id, Released(bool(entry.slice_empty)), number)
                entry = msgspec.structs.replace(entry, number=number, envelope=envelope)
            entries[number] = msgspec.structs.replace(entry, held=False)
            if number == self._next:
                self._write(entries, number + 1)
            else:
                self._entries = entries
            self._sendable = max(self._sendable, number)

    def pending(self) -> Sequence[Entry]:
        """What may be sent, ascending by number."""
        with self._lock:
            return [self._entries[n] for n in sorted(self._entries) if not self._entries[n].held]

    def owed(self) -> tuple[frozenset[AllocationId], frozenset[AllocationId]]:
        """Allocations with a release in here, and those of them whose release is held."""
        with self._lock:
            releases = [e for e in self._entries.values() if e.slice_empty is not None]
            return (
                frozenset(e.allocation_id for e in releases),
                frozenset(e.allocation_id for e in releases if e.held),
            )

    def acknowledge(self, number: int) -> bool:
        """Forget a report; False when it is not in here. Durable with ``flush``."""
        with self._lock:
            known = self._entries.pop(number, None) is not None
            self._dirty = self._dirty or known
            return known

    def flush(self) -> bool:
        """Write down what was acknowledged; False when there was nothing. Raises OSError.

        Losing it in a crash only sends a report twice.
        """
        with self._lock:
            if not self._dirty:
                return False
            self._write(self._entries, self._next)
            return True

    @property
    def dirty(self) -> bool:
        """Whether ``flush`` has something to write."""
        return self._dirty

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_number(self) -> int:
        """The number that the next report gets."""
        return self._next

    def _write(self, entries: dict[int, Entry], next_number: int) -> None:
        payload = msgspec.msgpack.encode(_Content(next_number, list(entries.values())))
        digest = hashlib.sha256(payload).digest()
        replace_file(self._path, b"".join((_MAGIC, digest, payload)))
        self._entries, self._next, self._dirty = entries, next_number, False


def _broken(path: Path, problem: str) -> BrokenFile:
    return BrokenFile(
        str(path),
        problem,
        f"holds are untouched; move it away (mv {path} {path}.broken) and start again:"
        " all holds are reported anew",
    )

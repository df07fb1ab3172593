"""What the daemon and its NVML child say to each other: msgpack, each with its length before it.

The daemon asks one thing at a time; the child answers in order and may send ``Event`` and
``Progress`` in between. A message that is too long or malformed ends the child.
"""

import struct
from collections.abc import Iterator

import msgspec

MAX_BYTES = 4 << 20
# As NVML counts them: hosts have at most 16 GPUs, and a GPU at most 7 instances.
MAX_GPUS = 256
MAX_MIGS = 64

_LENGTH = struct.Struct(">I")


class Read(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Ask for a ``Reading``; processes named in ``ignored`` do not make a device busy."""

    ignored: tuple[str, ...] = ()


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Ask for a ``Pong``, so that a hang is noticed between two readings."""


class Count(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Ask for ``Counts`` of the compute processes on these devices."""

    ids: tuple[str, ...]
    ignored: tuple[str, ...] = ()


Request = Read | Ping | Count


class Link(msgspec.Struct, frozen=True, array_like=True):
    """The far end of an active NVLink: NVML's device type, and the PCI address of a GPU there."""

    remote_type: int
    remote_address: str


class Fabric(msgspec.Struct, frozen=True, array_like=True):
    """What nvmlDeviceGetGpuFabricInfoV says; ``cluster`` in hex."""

    state: int
    status: int
    cluster: str
    clique: int
    health_mask: int


class MigReading(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One MIG instance; ``processes`` is None when NVML would not say."""

    uuid: str
    gi: int
    ci: int
    profile: str
    memory_bytes: int
    processes: int | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One GPU by NVML's index. ``error`` says that it is lost or wants a reset.

    ``uuid`` is empty for a GPU that would not even say who it is. ``address`` is the PCI address
    as sysfs writes it. ``persistence`` is None when unknown. ``p2p`` are the indices of the GPUs
    that NVLink peer-to-peer is possible with, None when NVML would not say. ``remapped`` are
    (pending, failed); ``recovery`` is the recovery action, 0 for none; ``uncorrected`` the count
    of uncorrected ECC errors since the driver was loaded.
    """

    index: int
    error: str = ""
    uuid: str = ""
    name: str = ""
    minor: int = -1
    address: str = ""
    memory_bytes: int = 0
    mig_enabled: bool = False
    migs: tuple[MigReading, ...] = ()
    persistence: bool | None = None
    compute_mode: int = 0
    links: tuple[Link, ...] = ()
    fabric: Fabric | None = None
    p2p: tuple[int, ...] | None = None
    remapped: tuple[bool, bool] = (False, False)
    recovery: int = 0
    uncorrected: int | None = None
    processes: int | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """NVML has started. ``library`` is the path of the loaded file; versions may be empty."""

    driver: str
    nvml: str
    cuda: str
    library: str


class Reading(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Every GPU, ascending by index."""

    gpus: tuple[GpuReading, ...]


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """NVML answered."""


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Devices with a compute process."""

    busy: tuple[str, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The call that is under way: each has a deadline of its own."""

    call: str


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """NVML's event type with its data; ``gi`` and ``ci`` are None for the whole GPU.

    ``uuid`` is empty when the GPU could not be told.
    """

    uuid: str
    kind: int
    data: int
    gi: int | None = None
    ci: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """NVML cannot be used: its error code (below zero: ours), and a text for people.

    ``nvml`` and ``library`` are the version and path of the library, where they can be told.
    """

    code: int
    text: str
    nvml: str = ""
    library: str = ""


Answer = Ready | Reading | Pong | Counts | Progress | Event | Failure

HANGS = -1
ENDED = -2


class Malformed(ValueError):
    """Bytes that are no message; the text says why."""


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


def frame(message: Request | Answer) -> bytes:
    """A message with its length before it."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Inbox:
    """Puts frames together again from whatever pieces a pipe hands over."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, piece: bytes) -> Iterator[bytes]:
        """The bodies that are complete now; raises Malformed for a length beyond all bounds."""
        self._bytes += piece
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > MAX_BYTES:
                raise Malformed(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield body


def request(body: bytes) -> Request:
    """Decode what the daemon says; raises Malformed."""
    try:
        return _requests.decode(body)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from error


def answer(body: bytes) -> Answer:
    """Decode what the child says; raises Malformed."""
    try:
        return _answers.decode(body)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from error

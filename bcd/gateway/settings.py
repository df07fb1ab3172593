"""What an operator sets: the gateway's part, and the file of ``bcd-gateway`` alone."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bcd.model.address import DialledName, Listen

Period = Annotated[int, msgspec.Meta(ge=10, le=3_600_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway listens and how long it waits; the placer's file may carry it as a section.

    Addresses are ``host:port``; port 0 takes a free one.
    """

    node_listen: Listen = "[::]:7443"
    enrolment_listen: Listen = "[::]:7444"
    heartbeat_interval_ms: Period = 10_000
    heartbeat_ttl_ms: Period = 30_000
    hello_timeout_ms: Period = 10_000
    write_timeout_ms: Period = 10_000
    # Wake-ups may be lost: everything they tell of is read again this often.
    tick_ms: Period = 30_000
    enrolment_timeout_ms: Period = 20_000
    max_sessions: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10_000
    max_enrolments: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 64
    stop_grace_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 5_000

    def __post_init__(self) -> None:
        """Check what types cannot say."""
        if self.heartbeat_ttl_ms < 2 * self.heartbeat_interval_ms:
            raise ValueError("heartbeat_ttl_ms must be at least twice heartbeat_interval_ms")


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of ``bcd-gateway`` alone.

    ``state`` is the folder of its key and certificate, ``names`` the DNS names and addresses that
    nodes dial, ``id`` the name in its certificate, the host's when empty.
    """

    database: str
    state: Path = Path("/var/lib/bcd-gateway")
    names: tuple[DialledName, ...] = ()
    id: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    gateway: Settings = Settings()

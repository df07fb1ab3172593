"""What an operator sets: the gateway's part, and the file of ``bcd-gateway`` alone."""

from pathlib import Path

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway listens and how long it waits; the placer's file may carry it as a section.

    Addresses are ``host:port``; port 0 takes a free one.
    """

    node_listen: str = "[::]:7443"
    enrolment_listen: str = "[::]:7444"
    heartbeat_interval_ms: int = 10_000
    heartbeat_ttl_ms: int = 30_000
    hello_timeout_ms: int = 10_000
    write_timeout_ms: int = 10_000
    # Wake-ups may be lost: everything they tell of is read again this often.
    tick_ms: int = 30_000
    enrolment_timeout_ms: int = 20_000
    max_sessions: int = 10_000
    max_enrolments: int = 64
    stop_grace_ms: int = 5_000


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of ``bcd-gateway`` alone.

    ``state`` is the folder of its key and certificate, ``names`` the DNS names and addresses that
    nodes dial, ``id`` the name in its certificate, the host's when empty.
    """

    database: str
    state: Path = Path("/var/lib/bcd-gateway")
    names: tuple[str, ...] = ()
    id: str = ""
    log_level: str = "info"
    gateway: Settings = Settings()

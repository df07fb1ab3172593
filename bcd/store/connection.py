"""Connections to PostgreSQL: how they are made, given up, and when the server counts as away."""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from bcd.store.database import StoreUnavailable

Connection = psycopg.Connection[dict[str, Any]]

# Where the URL does not say otherwise: a host that vanished is noticed within half a minute.
_CONNECT_DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_STATEMENT_TIMEOUT = "30s"
# SQLSTATEs that speak of the server and not of the statement: connection exception, read-only
# transaction (a standby), insufficient resources, operator intervention, system and internal error.
_AWAY = ("08", "25006", "53", "57", "58", "XX")


def is_away(error: psycopg.Error) -> bool:
    """Whether the server failed, and not the statement."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return True
    return (error.sqlstate or "").startswith(_AWAY)


def break_off(connection: Connection) -> None:
    """Make a thread that waits for the server's answer give up."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as wire,
    ):
        wire.shutdown(socket.SHUT_RDWR)


def connect(url: str) -> Connection:
    """Raises StoreUnavailable when the server does not answer."""
    given = conninfo_to_dict(url)
    defaults = {name: value for name, value in _CONNECT_DEFAULTS.items() if name not in given}
    try:
        return psycopg.connect(
            url, row_factory=dict_row, cursor_factory=psycopg.RawCursor, **defaults
        )
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"cannot connect to PostgreSQL: {error}") from error


def connect_bounded(url: str) -> Connection:
    """A connection on which no statement takes for ever."""
    connection = connect(url)
    try:
        connection.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT}'".encode())
        connection.commit()
    except psycopg.Error as error:  # a pooler without a server takes connections too
        connection.close()
        raise StoreUnavailable(f"cannot connect to PostgreSQL: {error}") from error
    return connection

"""``bcd enroll``: turns a one-time join token into this host's identity."""

import asyncio
import os
import sys
from pathlib import Path

from bcd.cli.program import load_settings
from bcd.model.errors import BadConfiguration
from bcd.node.enrolment import JoinToken, enroll, parse_token
from bcd.node.host.clock import SystemClock
from bcd.node.host.folder import claim
from bcd.node.identity import save_identity
from bcd.node.pending import attempt_for, forget_attempt
from bcd.node.settings import Settings, paths_of
from bcd.signing.certificates import spiffe_id
from bcd.signing.keyfile import CREDENTIALS

_MAX_TOKEN_BYTES = 1024


def run(config: Path, token_file: str, gateway: str | None) -> int:
    """Enrol; raises BcdError naming what to do when that fails."""
    settings = load_settings(config, Settings)
    state = paths_of(settings.paths).state
    claimed = claim(state)  # a running daemon must not find its identity changed
    try:
        if (state / CREDENTIALS).exists():
            raise BadConfiguration(
                f"{state / CREDENTIALS}: this host is enrolled already; to give it another"
                " identity, move that file away first"
            )
        token = _read_token(token_file)
        address = gateway or settings.gateway.enroll_address
        attempt = attempt_for(token.id, state)
        credentials = asyncio.run(enroll(address, token, SystemClock().wall_ms(), attempt))
        save_identity(state, credentials)
        forget_attempt(state)
    finally:
        os.close(claimed)
    print(f"enrolled as {spiffe_id(credentials.leaf)}; now start the daemon: bcd run")
    return 0


def _read_token(token_file: str) -> JoinToken:
    try:
        if token_file == "-":  # noqa: S105 - a file name
            text = sys.stdin.read(_MAX_TOKEN_BYTES)
        else:
            with open(token_file, encoding="ascii", errors="replace") as file:
                text = file.read(_MAX_TOKEN_BYTES)
    except OSError as error:
        raise BadConfiguration(
            f"{token_file}: the join token cannot be read ({error.strerror})"
        ) from error
    return parse_token(text)

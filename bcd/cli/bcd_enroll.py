"""``bcd enroll``: turns a one-time join token into this host's identity."""

import asyncio
import os
from pathlib import Path

from bcd.cli.program import load_settings, read_secret
from bcd.model.errors import BadConfiguration
from bcd.node.enrolment import enroll, parse_token
from bcd.node.host.clock import SystemClock
from bcd.node.host.folder import claim
from bcd.node.identity import load_identity, save_identity
from bcd.node.pending import attempt_for, forget_attempt
from bcd.node.rejoin import join_again
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
                f"{state / CREDENTIALS}: this host is enrolled already; if that identity is of"
                f" no use any more, move that file away and"
                f" {join_again(load_identity(state).node_id)}"
            )
        token = parse_token(read_secret(token_file, _MAX_TOKEN_BYTES))
        address = gateway or settings.gateway.enroll_address
        attempt = attempt_for(token.id, state)
        credentials = asyncio.run(enroll(address, token, SystemClock().wall_ms(), attempt))
        save_identity(state, credentials)
        forget_attempt(state)
    finally:
        os.close(claimed)
    print(f"enrolled as {spiffe_id(credentials.leaf)}; now start the daemon: bcd run")
    return 0

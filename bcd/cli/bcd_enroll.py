"""``bcd enroll``: turns a one-time join token into this host's identity."""

import asyncio
import os
import sys
from pathlib import Path

from bcd.cli.program import SETTINGS, load_settings, read_secret
from bcd.cli.say import say
from bcd.model.address import is_dialled
from bcd.model.errors import BadConfiguration, Unavailable
from bcd.model.printable import printable
from bcd.node.enrolment import enroll, parse_token
from bcd.node.host.clock import SystemClock
from bcd.node.host.folder import claim, unusable
from bcd.node.identity import load_identity, save_identity
from bcd.node.pending import attempt_for, forget_attempt
from bcd.node.rejoin import join_again
from bcd.node.settings import Settings, paths_of
from bcd.signing.certificates import spiffe_id
from bcd.signing.keyfile import CREDENTIALS, Credentials

_MAX_TOKEN_BYTES = 1024
_UNITS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")


def run(config: Path, token_file: str, gateway: str | None) -> int:
    """Enrol; raises BcdError naming what to do when that fails."""
    settings = load_settings(config, Settings)
    paths = paths_of(settings.paths)
    state = paths.state
    address = settings.gateway.enroll_address if gateway is None else gateway
    if not is_dialled(address):
        raise BadConfiguration(
            f"--gateway {printable(address, 128)}: must be host:port, with the gateway's port for"
            " enrolments, such as gateway.example:7444"
        )
    claimed = claim(state)  # a running daemon must not find its identity changed
    try:
        credentials = _enrolled(state, address, token_file)
    except OSError as error:
        raise unusable(error) from error
    finally:
        os.close(claimed)
    start = how_to_start(paths.root, config)
    done = f"enrolled as {spiffe_id(credentials.leaf)}; now start the daemon: {start}"
    try:
        say([done])
    except Unavailable:
        print(f"bcd: {done}", file=sys.stderr)  # the identity is safe, and the token is used
    return 0


def how_to_start(root: Path, config: Path) -> str:
    """The command that starts the daemon: systemd's where it runs and the unit is installed."""
    if config != SETTINGS / "bcd.toml":
        return f"bcd run --config {config}"  # the unit reads another file
    installed = any((root / folder / "bcd.service").exists() for folder in _UNITS)
    up = installed and (root / "run/systemd/system").is_dir()
    return "systemctl start bcd" if up else "bcd run"


def _enrolled(state: Path, address: str, token_file: str) -> Credentials:
    if (state / CREDENTIALS).exists():
        raise BadConfiguration(
            f"{state / CREDENTIALS}: this host is enrolled already; if that identity is of"
            f" no use any more, move that file away and"
            f" {join_again(load_identity(state).node_id)}"
        )
    token = parse_token(read_secret(token_file, _MAX_TOKEN_BYTES))
    attempt = attempt_for(token.id, state)
    credentials = asyncio.run(enroll(address, token, SystemClock().wall_ms(), attempt))
    save_identity(state, credentials)
    forget_attempt(state)
    return credentials

"""The command ``bcd-gateway``: runs the nodes' front door alone, and gets its first certificate."""

import argparse
import asyncio
import functools
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

import bcd
from bcd.cli.program import (
    EXIT_CODES,
    check_verb_first,
    configure_logs,
    load_settings,
    read_again,
    read_secret,
    run_program,
)
from bcd.model.errors import BadConfiguration, BcdError
from bcd.sdnotify import notify

if TYPE_CHECKING:
    from bcd.gateway.settings import Program

logger = logging.getLogger(__name__)

_CONFIG = Path("/etc/bcd/gateway.toml")
_MAX_FILE_BYTES = 1 << 20
_MAX_TOKEN_BYTES = 8 * 1024


def main() -> None:
    """The console script."""
    # gRPC reads these when it is loaded, which the verbs below do.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    parser = _parser()
    check_verb_first(parser, sys.argv[1:], ("run", "enroll"))
    arguments = parser.parse_args()
    verb = _run if arguments.verb == "run" else _enroll
    daemon = arguments.verb == "run"
    run_program("bcd-gateway", lambda: verb(arguments), daemon=daemon, calls=not daemon)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bcd-gateway",
        description="GPU reservations: the nodes' front door.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"bcd-gateway {bcd.__version__}")
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument(
        "--config", type=Path, default=_CONFIG, metavar="FILE", help=f"settings (default {_CONFIG})"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser(
        "run",
        parents=[settings],
        help="run the gateway in the foreground",
        description="Run the gateway in the foreground.",
    )
    enroll = verbs.add_parser(
        "enroll",
        parents=[settings],
        help="get this gateway's first certificate from the placer",
        description="Get this gateway's first certificate from the placer.",
    )
    enroll.add_argument("--placer", required=True, metavar="HOST:PORT", help="the placer's API")
    enroll.add_argument(
        "--token-file",
        required=True,
        metavar="FILE",
        help="an administrator's token; - reads it from stdin",
    )
    enroll.add_argument(
        "--ca-file", required=True, type=Path, metavar="FILE", help="the placer's CA, in PEM"
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from bcd.gateway.identity import Identity
    from bcd.gateway.settings import Program
    from bcd.store.open import is_sqlite, open_database

    settings = load_settings(arguments.config, Program)
    if is_sqlite(settings.database):
        raise BadConfiguration(
            "database: a SQLite file belongs to the placer's process; run bcd-placer run"
            " --with-gateway there, or use PostgreSQL"
        )
    configure_logs(settings.log_level)
    identity = Identity.load(settings.state)
    database = open_database(settings.database, migrate=False)

    async def serve() -> int:
        from bcd.gateway.server import Gateway

        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        take_over = functools.partial(_take_over, settings)
        loop.add_signal_handler(signal.SIGHUP, read_again(arguments.config, Program, take_over))
        gateway = Gateway(database, identity, settings.gateway)
        try:
            await gateway.run(stopping, on_ready=lambda: notify("READY=1"))
        finally:
            await database.close()
        return 0

    return asyncio.run(serve())


def _enroll(arguments: argparse.Namespace) -> int:
    from bcd.gateway.application import Application, apply
    from bcd.gateway.server import wall_clock_ms
    from bcd.gateway.settings import Program
    from bcd.signing.certificates import validity_ms
    from bcd.signing.keyfile import CREDENTIALS, hand_over, prepare_folder, save_credentials

    settings = load_settings(arguments.config, Program)
    if not settings.names:
        raise BadConfiguration(
            f"{arguments.config}: names is empty; give the names by which nodes dial this gateway"
        )
    application = Application(
        placer=arguments.placer,
        ca=_read_ca(arguments.ca_file),
        token=_read_token(arguments.token_file),
        gateway_id=settings.id or socket.gethostname()[:63],
        names=settings.names,
    )
    prepare_folder(settings.state)
    try:
        credentials = apply(application, wall_clock_ms())
    except BcdError as error:
        raise BadConfiguration(f"{arguments.placer}: {error.message}") from error
    save_credentials(settings.state, credentials)
    hand_over(settings.state, settings.state / CREDENTIALS)
    print(settings.state / CREDENTIALS)
    hours = (validity_ms(credentials.leaf)[1] - wall_clock_ms()) // 3_600_000
    print(
        f"gateway {application.gateway_id} is enrolled; its certificate renews itself while the"
        f" gateway runs, start it within {hours} hours",
        file=sys.stderr,
    )
    return 0


def _take_over(running: "Program", settings: "Program") -> None:
    if replace(settings, log_level=running.log_level) != running:
        logger.warning("what changed beside log_level takes effect with a restart only")
    logging.getLogger().setLevel(settings.log_level.upper())


def _read_token(name: str) -> str:
    token = read_secret(name, _MAX_TOKEN_BYTES).strip()
    if not token.isprintable() or not token.isascii() or not token or " " in token:
        raise BadConfiguration(f"{name}: holds no bearer token; make one: bcd-placer token")
    return token


def _read_ca(path: Path) -> bytes:
    from bcd.signing.keyfile import load_bundle

    pem = _read(path)
    try:
        load_bundle(pem)
    except ValueError as error:
        raise BadConfiguration(f"{path}: is not a PEM certificate; take the placer's") from error
    return pem


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError as error:
        raise BadConfiguration(f"{path}: cannot be read ({error.strerror})") from error

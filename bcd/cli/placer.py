"""``bcd-placer``: makes an installation, runs the control plane, and mints first tokens."""

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import time
from pathlib import Path

from msgspec.structs import replace

import bcd
from bcd.cli.embedded import EmbeddedSettings, start_gateway
from bcd.cli.program import (
    EXIT_CODES,
    check_verb_first,
    configure_logs,
    duration_argument,
    load_settings,
    read_again,
    run_program,
)
from bcd.model.errors import BadConfiguration, InvalidInput
from bcd.placer.pki.issuer import Grant, load_issuer
from bcd.placer.pki.state import CA_FILE, Secrets, init_state, load_state
from bcd.placer.server import Placer
from bcd.placer.settings import PlacerSettings
from bcd.sdnotify import notify
from bcd.store import control
from bcd.store.database import Database
from bcd.store.open import is_sqlite, open_database

logger = logging.getLogger(__name__)

_CONFIG = Path("/etc/bcd/placer.toml")


class Settings(PlacerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``placer.toml``: the placer's own settings, and those of a gateway in the same process."""

    gateway: EmbeddedSettings = EmbeddedSettings()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bcd-placer", description="GPU reservations: the control plane.", epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=f"bcd-placer {bcd.__version__}")
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument(
        "--config", type=Path, default=_CONFIG, metavar="FILE", help=f"settings (default {_CONFIG})"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser(
        "init",
        parents=[settings],
        help="make CA and keys of a new installation",
        description="Make CA and keys of a new installation, in its state folder, and ca.pem for"
        " clients to trust. What root makes is the folder's owner's.",
    )
    run = verbs.add_parser(
        "run",
        parents=[settings],
        help="run the control plane",
        description="Run the control plane in the foreground.",
    )
    run.add_argument(
        "--with-gateway",
        action="store_true",
        help="run the nodes' gateway in this process too (with SQLite the only way)",
    )
    _add_token(verbs, settings)
    verbs.add_parser(
        "recover",
        parents=[settings],
        help="after restoring a backup: make nodes refuse states from before it",
        description="After restoring a backup: raise the control epoch, so that nodes refuse states"
        " from before it.",
    )
    return parser


def _add_token(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", settings: argparse.ArgumentParser
) -> None:
    token = verbs.add_parser(
        "token",
        parents=[settings],
        help="print a bearer token, made with the local key",
        description="Print a bearer token, made with the local key; whoever has it is who it says.",
    )
    token.add_argument("--subject", required=True, help="who bears it")
    token.add_argument("--tenant", action="append", default=[], dest="tenants", help="repeatable")
    token.add_argument("--group", action="append", default=[], dest="groups", help="repeatable")
    token.add_argument("--admin", action="store_true", help="may administer the installation")
    token.add_argument(
        "--for",
        type=duration_argument,
        default="8h",
        dest="lifetime_ms",
        metavar="DURATION",
        help="from a minute to a year (default 8h)",
    )


def main() -> None:
    """The console script."""
    # gRPC reads these when its first channel or server is made.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    parser = _parser()
    check_verb_first(parser, sys.argv[1:], ("init", "run", "token", "recover"))
    arguments = parser.parse_args()
    daemon = arguments.verb == "run"
    run_program("bcd-placer", lambda: _dispatch(arguments), daemon=daemon)


def _dispatch(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config, Settings)
    match arguments.verb:
        case "init":
            return _init(settings)
        case "token":
            return _token(settings, arguments)
        case "recover":
            return asyncio.run(_recover(settings))
        case _:
            return _run(settings, arguments.config, with_gateway=arguments.with_gateway)


def _init(settings: Settings) -> int:
    init_state(settings.state, settings.trust_domain)
    print(settings.state / CA_FILE)
    print(
        f"made the CA and the issuer's key in {settings.state}; back the folder up, and give"
        f" clients {CA_FILE}",
        file=sys.stderr,
    )
    return 0


def _token(settings: Settings, arguments: argparse.Namespace) -> int:
    issuer = load_issuer(settings.state, settings.trust_domain)
    grant = Grant(
        subject=arguments.subject,
        tenants=tuple(arguments.tenants),
        groups=tuple(arguments.groups),
        admin=arguments.admin,
    )
    now_ms = time.time_ns() // 1_000_000
    try:
        token = issuer.issue(grant, now_ms, arguments.lifetime_ms)
    except InvalidInput as error:
        name = error.field.partition("[")[0]
        option = {"lifetimeMs": "for", "tenants": "tenant", "groups": "group"}.get(name, name)
        raise InvalidInput(f"--{option}", error.rule) from error
    print(token)
    until = time.strftime(
        "%Y-%m-%d %H:%M:%S %Z", time.localtime((now_ms + arguments.lifetime_ms) / 1000)
    )
    print(f"valid until {until}; keep it in a file that only its bearer reads", file=sys.stderr)
    return 0


async def _recover(settings: Settings) -> int:
    database = open_database(settings.database)
    try:
        epoch = await database.write(control.raise_epoch)
    finally:
        await database.close()
    print(f"control epoch is now {epoch}; start the placer to sign every node's state anew")
    return 0


def _run(settings: Settings, config: Path, *, with_gateway: bool) -> int:
    if is_sqlite(settings.database) and not with_gateway:
        raise BadConfiguration(
            "database: a SQLite file belongs to one process; run with --with-gateway, or use"
            " PostgreSQL for a gateway of its own"
        )
    configure_logs(settings.log_level)
    secrets = load_state(settings.state, settings.trust_domain)
    database = open_database(settings.database)
    return asyncio.run(_serve(settings, config, database, secrets, with_gateway))


async def _serve(
    settings: Settings, config: Path, database: Database, secrets: Secrets, with_gateway: bool
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        placer = Placer(settings, database, secrets)
        stack.push_async_callback(placer.stop)
        await placer.start()
        take_over = functools.partial(_take_over, placer, settings)
        loop.add_signal_handler(signal.SIGHUP, read_again(config, Settings, take_over))
        if with_gateway:
            folder = settings.state / "gateway"
            gateway = await start_gateway(settings.gateway, folder, database, secrets.authority)
            stack.push_async_callback(gateway.stop)
        notify("READY=1")
        await stopping.wait()
        notify("STOPPING=1")
    return 0


def _take_over(placer: Placer, running: Settings, settings: Settings) -> None:
    placer.reload(settings)
    kept = replace(settings, log_level=running.log_level, policy=running.policy)
    if kept != running:
        logger.warning("what changed beside log_level and policy takes effect with a restart only")
    logging.getLogger().setLevel(settings.log_level.upper())

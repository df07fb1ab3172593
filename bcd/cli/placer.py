"""``bcd-placer``: makes an installation, runs the control plane, and mints first tokens."""

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

from bcd.cli.embedded import EmbeddedSettings, start_gateway
from bcd.cli.program import configure_logs, load_settings, run_program
from bcd.model.errors import BadConfiguration
from bcd.model.units import parse_duration_ms
from bcd.placer.pki.issuer import Grant, load_issuer
from bcd.placer.pki.state import CA_FILE, Secrets, init_state, load_state
from bcd.placer.server import Placer
from bcd.placer.settings import PlacerSettings
from bcd.sdnotify import notify
from bcd.store import control
from bcd.store.database import Database
from bcd.store.open import is_sqlite, open_database

DEFAULT_CONFIG = Path("/etc/bcd/placer.toml")


class Settings(PlacerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``placer.toml``: the placer's own settings, and those of a gateway in the same process."""

    gateway: EmbeddedSettings = EmbeddedSettings()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bcd-placer", description="GPU reservations: control plane"
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("init", help="make the CA and the keys of a new installation")
    run = verbs.add_parser("run", help="run the control plane")
    run.add_argument(
        "--with-gateway",
        action="store_true",
        help="run the nodes' gateway in this process too (with SQLite the only way)",
    )
    token = verbs.add_parser("token", help="print a bearer token, made with the local key")
    token.add_argument("--subject", required=True)
    token.add_argument("--tenant", action="append", default=[], dest="tenants")
    token.add_argument("--group", action="append", default=[], dest="groups")
    token.add_argument("--admin", action="store_true", help="may administer the installation")
    token.add_argument("--for", default="8h", dest="lifetime", metavar="DURATION")
    verbs.add_parser(
        "recover", help="after restoring a backup: make nodes refuse states from before it"
    )
    return parser


def main() -> None:
    """The console script."""
    arguments = _parser().parse_args()
    run_program("bcd-placer", lambda: _dispatch(arguments))


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
            return _run(settings, with_gateway=arguments.with_gateway)


def _init(settings: PlacerSettings) -> int:
    init_state(settings.state, settings.trust_domain)
    print(settings.state / CA_FILE)
    print(
        f"made the CA and the keys in {settings.state}; back them up, and give clients {CA_FILE}",
        file=sys.stderr,
    )
    return 0


def _token(settings: PlacerSettings, arguments: argparse.Namespace) -> int:
    issuer = load_issuer(settings.state, settings.trust_domain)
    grant = Grant(
        subject=arguments.subject,
        tenants=tuple(arguments.tenants),
        groups=tuple(arguments.groups),
        admin=arguments.admin,
    )
    lifetime_ms = parse_duration_ms(arguments.lifetime, "--for")
    print(issuer.issue(grant, time.time_ns() // 1_000_000, lifetime_ms))
    return 0


async def _recover(settings: PlacerSettings) -> int:
    database = open_database(settings.database)
    try:
        epoch = await database.write(control.raise_epoch)
    finally:
        await database.close()
    print(f"control epoch is now {epoch}; start the placer to sign every node's state anew")
    return 0


def _run(settings: Settings, *, with_gateway: bool) -> int:
    if is_sqlite(settings.database) and not with_gateway:
        raise BadConfiguration(
            "database: a SQLite file belongs to one process; run with --with-gateway, or use"
            " PostgreSQL for a gateway of its own"
        )
    configure_logs(settings.log_level)
    secrets = load_state(settings.state, settings.trust_domain)
    database = open_database(settings.database)
    return asyncio.run(_serve(settings, database, secrets, with_gateway))


async def _serve(
    settings: Settings, database: Database, secrets: Secrets, with_gateway: bool
) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    placer = Placer(settings, database, secrets)
    await placer.start()
    gateway = None
    if with_gateway:
        folder = settings.state / "gateway"
        gateway = await start_gateway(settings.gateway, folder, database, secrets.authority)
    notify("READY=1")
    await stopping.wait()
    notify("STOPPING=1")
    if gateway is not None:
        await gateway.stop()
    await placer.stop()
    await database.close()
    return 0

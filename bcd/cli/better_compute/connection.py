"""Finds the API and calls it; every verb goes through here.

The configuration is, in this order: ``--config``, ``BETTER_COMPUTE_CONFIG``, the user's file, and
the one running ``better-compute dev``.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
import msgspec
from google.protobuf.message import Message

from bcd import __version__
from bcd.cli.descriptors import need_descriptors
from bcd.cli.program import load_settings
from bcd.cli.running import home, running_systems
from bcd.durable import read_plain
from bcd.model.address import DialledApi
from bcd.model.errors import BadConfiguration, BcdError, Reason, Unavailable, Unsupported
from bcd.model.printable import printable
from bcd.signing.keyfile import load_bundle
from bcd.wire.bounds import API_CHANNEL_OPTIONS
from bcd.wire.status import RemoteError, decode_error

ENVIRONMENT = "BETTER_COMPUTE_CONFIG"
_CALL_TIMEOUT_S = 60.0
_MAX_TOKEN_BYTES = 8 * 1024
_MAX_CA_BYTES = 1 << 20
_MAX_LINE = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}\Z")

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=Message)


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The API's address, the CA to check it against, and who calls.

    ``tenant`` and ``pool`` are used where a command does not name one.
    """

    api: DialledApi
    ca_file: Path
    token_file: Path
    tenant: str = ""
    pool: str = ""


def user_file() -> Path:
    """The user's own configuration."""
    base = os.environ.get("XDG_CONFIG_HOME") or home() / ".config"
    return Path(base) / "better-compute" / "config.toml"


def find_configuration(given: Path | None) -> Path:
    """The file to use; raises BadConfiguration saying how to name one."""
    if given is not None:
        return given
    if named := os.environ.get(ENVIRONMENT):
        return Path(named)
    if user_file().exists():
        return user_file()
    running = running_systems()
    if len(running) == 1:
        return running[0]
    if running:
        names = "\n".join(f"  export {ENVIRONMENT}={path}" for path in running)
        raise BadConfiguration(f"several dev systems are running; choose one:\n{names}")
    raise BadConfiguration(
        f"there is no configuration: write {user_file()}, set {ENVIRONMENT}, or start"
        " `better-compute dev --sim 4` in another terminal"
    )


class Connection:
    """One command's way to the API; turns failed calls into BcdErrors."""

    def __init__(self, settings: ClientSettings) -> None:
        need_descriptors()
        self.settings = settings
        roots, token = _read_ca(settings.ca_file), _read_token(settings.token_file)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self.channel = grpc.secure_channel(
            settings.api, grpc.ssl_channel_credentials(roots), options=API_CHANNEL_OPTIONS
        )

    def call(
        self,
        method: Callable[..., A],
        request: Message,
        timeout_s: float = _CALL_TIMEOUT_S,
    ) -> A:
        """Call a stub's method; raises RemoteError with the server's reason."""
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explained(decode_error(error)) from error

    def stream(self, method: Callable[..., Iterator[A]], request: Message) -> Iterator[A]:
        """The answers of a stub's streaming method; raises as ``call`` does."""
        try:
            yield from method(request, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explained(decode_error(error)) from error

    def _explained(self, failure: RemoteError) -> BcdError:
        """The failure in words that say what to look at."""
        if not failure.told and failure.reason is Reason.UNSUPPORTED:
            return Unsupported(
                f"{self.settings.api} does not know this call; it is older than this"
                f" better-compute {__version__}: upgrade it first"
            )
        if failure.told or failure.reason is not Reason.UNAVAILABLE:
            return failure
        api, ca_file = self.settings.api, self.settings.ca_file
        if "CERTIFICATE_VERIFY_FAILED" in failure.message or "Hostname" in failure.message:
            return BadConfiguration(
                f"{api} shows no certificate for that name under the CA in {ca_file};"
                " check api and ca_file"
            )
        return Unavailable(f"{api} does not answer ({failure.message}); is it running, or busy?")

    def tenant(self, given: str | None) -> str:
        """The tenant to act for; raises BadConfiguration when nothing names one."""
        tenant = given or self.settings.tenant
        if not tenant:
            raise BadConfiguration("no tenant: name one with --tenant, or set tenant in the file")
        return tenant


def _read_ca(path: Path) -> bytes:
    try:
        content = read_plain(path, _MAX_CA_BYTES)
        load_bundle(content)
    except OSError as error:
        raise BadConfiguration(f"ca_file: {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BadConfiguration(f"ca_file: {path} holds no PEM certificate") from error
    return content


def _read_token(path: Path) -> str:
    try:
        token = read_plain(path, _MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise BadConfiguration(f"token_file: {path} cannot be read ({error.strerror})") from error
    if not _TOKEN.match(token):
        raise BadConfiguration(
            f"token_file: {path} {'holds no bearer token' if token else 'is empty'};"
            " put one line from `better-compute token issue` there"
        )
    return token


@contextmanager
def connected(config: Path | None) -> Iterator[Connection]:
    """A connection; its errors end the command with a sentence and exit code 1."""
    with errors_shown():
        connection = Connection(load_settings(find_configuration(config), ClientSettings))
        with connection.channel:
            yield connection


@contextmanager
def errors_shown() -> Iterator[None]:
    """Print a BcdError's sentence on stderr and exit with code 1."""
    try:
        yield
    except BcdError as error:
        words = "\n".join(printable(line, _MAX_LINE) for line in error.message.splitlines())
        click.echo(f"better-compute: {words}", err=True)
        raise SystemExit(1) from error


def config_option(function: F) -> F:
    """``--config FILE``, for every verb that calls the API."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Configuration file; {ENVIRONMENT} names one too.",
    )(function)


def tenant_option(function: F) -> F:
    """``--tenant NAME``."""
    return click.option("--tenant", metavar="TENANT", help="Tenant to act for.")(function)


def output_option(function: F) -> F:
    """``-o table|json``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        help="How to print the answer.",
    )(function)


def change_options(function: F) -> F:
    """The two options of a verb that changes one thing: output and configuration."""
    return output_option(config_option(function))


def client_options(function: F) -> F:
    """The three options of a verb that asks for something: tenant, output, configuration."""
    return tenant_option(output_option(config_option(function)))

"""``better-compute dev``: the whole system on this machine, with simulated hosts."""

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bcd.cli.better_compute.connection import (
    ENVIRONMENT,
    errors_shown,
    user_file,
)
from bcd.cli.descriptors import need_descriptors
from bcd.cli.running import running_systems
from bcd.model.errors import BadConfiguration

if TYPE_CHECKING:
    from bcd.cli.development import Ready


@click.command()
@click.option(
    "--sim",
    "hosts",
    type=click.IntRange(1, 1000),
    required=True,
    metavar="N",
    help="How many hosts, 1 to 1000.",
)
@click.option(
    "--profile",
    type=click.Choice(["dgx-h100", "hgx-a100-mig", "l40s-pcie"]),
    help="Hardware of the hosts.  [default: what --state was made with, else dgx-h100]",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep everything here, to go on with it later; else it goes when dev ends.",
)
@click.option(
    "--more-pools",
    is_flag=True,
    help="Beside the pool dev also mig (--mig 1g.10gb) and shared (--slots 1), of a host each.",
)
@click.option(
    "--policy",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="FOLDER",
    help="A folder of Cedar files that decide, such as packaging/ of the sources.",
)
def dev(
    hosts: int, profile: str | None, state: Path | None, more_pools: bool, policy: Path | None
) -> None:
    """Run the whole system here, with simulated hosts.

    Ends at Ctrl-C. While it runs, better-compute finds it by itself and acts as an administrator
    called developer, of a tenant dev with every quota; agent.toml in the state folder, named by
    BETTER_COMPUTE_CONFIG, lets it act as an agent of theirs.
    """
    from bcd.cli.program import JsonFormatter

    with errors_shown(), _state_folder(state) as folder:
        need_descriptors()
        handler = logging.FileHandler(folder / "dev.log")
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
        logging.raiseExceptions = False  # a full disk must not fill the terminal too
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        asyncio.run(_serve(folder, hosts, profile, more_pools=more_pools, policy=policy))


@contextlib.contextmanager
def _state_folder(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory(prefix="better-compute-") as scratch:
            yield Path(scratch)
        return
    try:
        given.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfiguration(f"{given}: cannot be made ({error.strerror})") from error
    if not os.access(given, os.W_OK | os.X_OK):
        raise BadConfiguration(f"{given}: cannot be written; name another folder with --state")
    yield given.resolve()


async def _serve(
    folder: Path, hosts: int, profile: str | None, *, more_pools: bool, policy: Path | None
) -> None:
    from bcd.cli.development import DevSystem, has_more_pools, hosts_of

    made, profile = hosts_of(folder, profile)
    if made > hosts:
        click.echo(f"the state has {_counted(made, 'host')}; all of them run", err=True)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    more_pools = more_pools or has_more_pools(folder)
    system = DevSystem(folder, max(made, hosts), profile, more_pools=more_pools, policy=policy)
    starting = asyncio.create_task(system.start())
    waiting = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            ready = starting.result()
            click.echo(f"state and log (dev.log) are in {folder}", err=True)
            click.echo(
                f"ready: {_counted(ready.hosts, 'host')},"
                f" {_counted(ready.gpus, 'GPU')}; in another terminal:"
                f" {_next_command(ready)}"
            )
            await stopping.wait()
    finally:
        waiting.cancel()
        starting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        await system.stop()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _next_command(ready: "Ready") -> str:
    """What to type next; names the configuration where it would not be found by itself."""
    program = "better-compute"
    if shutil.which(program) is None:
        program = shlex.quote(sys.argv[0])
    topology = "nvlink-all" if ready.linked else "same-numa"
    command = f"{program} reserve --gpus {ready.together} --topology {topology} --for 8h"
    alone = running_systems() == [ready.config] and not user_file().exists()
    if alone and ENVIRONMENT not in os.environ:
        return command
    return f"{ENVIRONMENT}={shlex.quote(str(ready.config))} {command}"

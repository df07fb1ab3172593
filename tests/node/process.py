"""``bcd`` as a process of its own, started and ended by a test."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.node.world import Site

STOP_S = 20.0


def write_config(site: Site) -> Path:
    """The settings file of a site; its socket's path is short wherever the test's folder lies."""
    path = site.root / "bcd.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    gateway = site.settings.gateway
    path.write_text(
        f'[gateway]\naddress = "{gateway.address}"\nenroll_address = "{gateway.enroll_address}"\n'
        "spread_seconds = 0.05\nmax_backoff_seconds = 0.5\n"
        f'[paths]\nroot = "{site.root}"\nsocket = "{site.root}/s"\n'
        "[passes]\nwatch_seconds = 0.2\n"
    )
    return path


@dataclass
class Process:
    """A running daemon; ``end`` it, or wait for the end that it chose."""

    process: asyncio.subprocess.Process
    errors: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self, wait_s: float = STOP_S) -> int:
        """The exit code; negative for a signal."""
        async with asyncio.timeout(wait_s):
            return await self.process.wait()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.wait()

    def log(self) -> str:
        """Everything that it wrote to stderr."""
        return self.errors.read_text()


async def start(
    arguments: Sequence[str], errors: Path, environment: Mapping[str, str] | None = None
) -> Process:
    """Start ``python`` with arguments, stderr into a file."""
    home = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with errors.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=sink,
            env={**os.environ, **home, **(environment or {})},
        )
    return Process(process, errors)


async def start_bcd(
    site: Site, environment: Mapping[str, str] | None = None, *, simulated: bool = True
) -> Process:
    """``bcd run`` on a site, on the site's profile unless its hardware shall be real."""
    config = write_config(site)
    hardware = ["--sim", site.profile] if simulated else []
    arguments = ["-m", "bcd.cli.bcd", "run", "--config", str(config), *hardware]
    return await start(arguments, site.root / "errors.log", environment)


async def start_killed(site: Site, count: int, log: Path) -> Process:
    """A daemon that kills itself after ``count`` steps; every step's name goes to ``log``."""
    config = write_config(site)
    arguments = ["-m", "tests.node.kill_launcher", str(config), site.profile, str(count), str(log)]
    return await start(arguments, site.root / "errors.log")

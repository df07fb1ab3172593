"""``bcd run``: the daemon as a process, with signals and logs."""

import asyncio
import functools
import logging
import os
import signal
from pathlib import Path

from bcd.cli.program import configure_logs, load_settings, read_again
from bcd.node.daemon import Daemon
from bcd.node.execute import AfterStep, no_observer
from bcd.node.host.machine import MakePorts
from bcd.node.opening import open_daemon
from bcd.node.settings import Settings

log = logging.getLogger(__name__)


def run(config: Path, profile: str | None, after_step: AfterStep = no_observer) -> int:
    """Run until a signal or another daemon ends it; returns the exit code.

    SIGTERM and SIGINT stop it and leave every hold in place, SIGHUP reads the settings again.
    """
    settings = load_settings(config, Settings)
    configure_logs(settings.log.level)
    os.umask(0o022)  # specs and env files are for everybody's container runtime
    return asyncio.run(_run(settings, config, profile, after_step))


async def _run(settings: Settings, config: Path, profile: str | None, after_step: AfterStep) -> int:
    daemon = open_daemon(settings, _ports(settings, profile), after_step=after_step)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    take_over = functools.partial(_take_over, daemon)
    loop.add_signal_handler(signal.SIGHUP, read_again(config, Settings, take_over))
    hardware = profile or "real"
    log.info("daemon starts", extra={"node": daemon.identity.node_id, "hardware": hardware})
    return await daemon.run()


def _ports(settings: Settings, profile: str | None) -> MakePorts:
    # Each is loaded only where it is used.
    if profile is None:
        from bcd.node.host.real import real_ports

        return real_ports(settings)
    from bcd.sim.ports import simulated_ports

    return simulated_ports(profile)


def _take_over(daemon: Daemon, settings: Settings) -> None:
    kept = daemon.reload(settings)
    if kept:
        log.warning("these settings take effect with a restart only", extra={"changed": kept})
    logging.getLogger().setLevel(settings.log.level.upper())

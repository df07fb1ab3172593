"""Makes a daemon out of its settings and what lies in its folder; nothing runs yet.

``bcd run`` opens one on the machine's ports, ``sim.fleet`` many on simulated ones.
"""

import os

from bcd.node.daemon import Daemon
from bcd.node.execute import AfterStep, no_observer
from bcd.node.holds import Holds
from bcd.node.host.folder import claim, unusable
from bcd.node.host.machine import MakePorts
from bcd.node.identity import Identity, load_identity
from bcd.node.outbox import Outbox
from bcd.node.plan import Place
from bcd.node.ports import Ports
from bcd.node.reports import Reports
from bcd.node.settings import Paths, Settings, paths_of


def open_daemon(
    settings: Settings,
    make_ports: MakePorts,
    *,
    after_step: AfterStep = no_observer,
    serve_status: bool = True,
) -> Daemon:
    """Claim the daemon's folder, read what is in it, and make the daemon; nothing runs yet.

    Raises BcdError naming the file or setting that cannot be used; no hold has been touched.
    """
    paths = paths_of(settings.paths)
    descriptor = claim(paths.state)
    try:
        identity = load_identity(paths.state)
        ports = make_ports(paths, identity.node_id)
        holds = _open_holds(settings, paths, identity, ports, after_step)
        status = paths.socket if serve_status else None
        return Daemon(settings, identity, holds, claimed=descriptor, status_socket=status)
    except OSError as error:
        os.close(descriptor)
        raise unusable(error) from error
    except BaseException:
        os.close(descriptor)
        raise


def _open_holds(
    settings: Settings, paths: Paths, identity: Identity, ports: Ports, after_step: AfterStep
) -> Holds:
    outbox = Outbox.load(paths.state, ports.clock.wall_ms())
    holds = Holds(
        ports=ports,
        folder=paths.state,
        place=Place(
            node_id=identity.node_id,
            cdi_folder=str(paths.cdi),
            env_folder=str(paths.env),
            run_folder=str(paths.run),
            annotate=settings.cdi.annotations == "always",
        ),
        trust=identity.trust,
        reports=Reports(outbox, ports.clock, identity.node_id, lambda: identity.current),
        after_step=after_step,
    )
    holds.load()
    return holds

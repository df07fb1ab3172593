"""``better-compute``: the person's command, a file for each verb.

``connection`` finds and calls the API, ``paging`` follows its lists, ``show`` and ``tables`` print;
``parameters`` has what several verbs take, ``moments`` reads times, ``pool_options`` a pool's
policy, ``completion`` serves shells, ``groups`` arranges verbs. Of the verbs only ``dev`` imports
programs, and only when it runs.
"""

import click

from bcd import __version__
from bcd.cli.better_compute.calendar import calendar
from bcd.cli.better_compute.cancel import cancel
from bcd.cli.better_compute.capacity import capacity
from bcd.cli.better_compute.certificates import certificates
from bcd.cli.better_compute.confirm import confirm
from bcd.cli.better_compute.dev import dev
from bcd.cli.better_compute.extend import extend
from bcd.cli.better_compute.get import get
from bcd.cli.better_compute.groups import Headed
from bcd.cli.better_compute.list import list_
from bcd.cli.better_compute.maintenance import maintenance
from bcd.cli.better_compute.nodes import nodes
from bcd.cli.better_compute.offers import offers
from bcd.cli.better_compute.pools import pools
from bcd.cli.better_compute.quota import quota
from bcd.cli.better_compute.reassign import reassign
from bcd.cli.better_compute.release import release
from bcd.cli.better_compute.renew import renew
from bcd.cli.better_compute.reserve import reserve
from bcd.cli.better_compute.token import token
from bcd.cli.better_compute.watch import events, watch
from bcd.cli.better_compute.webhook import webhook


@click.group(
    cls=Headed,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 refused or failed, 2 usage, 3 still pending.",
)
@click.version_option(__version__, prog_name="better-compute")
def main() -> None:
    """Reserve GPUs, and look after what you reserved."""


main.add_under("Reservations", (reserve, get, list_, extend, renew, release, cancel, confirm))
main.add_under(
    "What there is and what happens",
    (pools, capacity, calendar, nodes, quota, offers, watch, events, webhook),
)
main.add_under("Administration", (token, maintenance, certificates, reassign))
main.add_under("On your own machine", (dev,))

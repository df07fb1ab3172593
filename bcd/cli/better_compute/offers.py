"""``better-compute offers``: pools that other tenants may book in."""

from pathlib import Path

import click

from bcd.cli.better_compute.completion import complete_pools
from bcd.cli.better_compute.connection import change_options, client_options, connected
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import owned_pool_id, pool_argument, pool_id
from bcd.cli.better_compute.show import answer, print_json
from bcd.cli.better_compute.tables import print_table
from bcd.wire.compute.v1 import offers_pb2 as pb
from bcd.wire.compute.v1.offers_pb2_grpc import OffersServiceStub

_MAX = 1 << 40


@click.group(cls=Listing)
@click.option(
    "--pool",
    shell_complete=complete_pools,
    metavar="POOL",
    help="Only the offers of this pool, by name or id.",
)
@client_options
@click.pass_context
def offers(
    context: click.Context, pool: str | None, tenant: str | None, output: str, config: Path | None
) -> None:
    """List what is offered to your tenant and by it; set one."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        acting = connection.tenant(tenant)
        chosen = pool_id(connection, acting, pool) if pool else ""
        request = pb.ListOffersRequest(tenant_id=acting, pool_id=chosen)
        stub = OffersServiceStub(connection.channel)
        found = every(connection, stub.ListOffers, request, "offers")
    if output == "json":
        print_json(found)
        return
    print_table(
        ("POOL", "TENANT", "RESOURCE", "LIMIT", "USED"),
        (row for offer in found for row in _rows(offer)),
    )


def _rows(offer: pb.Offer) -> list[tuple[str, ...]]:
    """A row for each limit, and one for an offer that leaves all to the tenant's quotas."""
    if not offer.limits:
        return [(offer.pool_id, offer.tenant_id, "by quota", "", "")]
    return [
        (offer.pool_id, offer.tenant_id, entry.resource, str(entry.limit), str(entry.used))
        for entry in offer.limits
    ]


class Limit(click.ParamType[tuple[str, int]]):
    """``gpu=8``."""

    name = "resource=n"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse a resource and its limit."""
        resource, _, amount = value.partition("=")
        if not resource or not amount.isascii() or not amount.isdigit() or int(amount) > _MAX:
            self.fail(f"{value} is no resource with a limit; write gpu=8", param, ctx)
        return resource, int(amount)


@offers.command("set")
@pool_argument
@click.option(
    "--to", "guest", required=True, metavar="TENANT", help="The tenant that may book in the pool."
)
@click.option(
    "--limit",
    "limits",
    type=Limit(),
    multiple=True,
    help="How much it may have there at a time: gpu=8, gpu.mig=14; repeatable.",
)
@change_options
def set_(
    pool: str,
    guest: str,
    limits: tuple[tuple[str, int], ...],
    output: str,
    config: Path | None,
) -> None:
    """Offer POOL to a tenant, or replace the limits of its offer.

    POOL is a name, an id, or TENANT/NAME of another tenant's pool. A resource without a limit here
    needs a quota of the tenant.
    """
    with connected(config) as connection:
        request = pb.SetOfferRequest(
            pool_id=owned_pool_id(connection, pool),
            tenant_id=guest,
            limits=[pb.OfferLimit(resource=name, limit=amount) for name, amount in limits],
        )
        stub = OffersServiceStub(connection.channel)
        made = connection.call(stub.SetOffer, request).offer
    if output == "json":
        print_json(made)
        return
    for row in _rows(made):
        click.echo("  ".join(word for word in row if word))


@offers.command()
@pool_argument
@click.option(
    "--from", "guest", required=True, metavar="TENANT", help="The tenant that has the offer."
)
@change_options
def withdraw(pool: str, guest: str, output: str, config: Path | None) -> None:
    """Take an offer back; what is placed under it stays.

    What waits goes on waiting, until the pool is offered again. POOL is a name, an id, or
    TENANT/NAME of another tenant's pool.
    """
    with connected(config) as connection:
        chosen = owned_pool_id(connection, pool)
        stub = OffersServiceStub(connection.channel)
        request = pb.WithdrawOfferRequest(pool_id=chosen, tenant_id=guest)
        connection.call(stub.WithdrawOffer, request)
    answer(request, output, f"{chosen}  no longer offered to {guest}")

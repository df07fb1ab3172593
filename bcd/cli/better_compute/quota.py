"""``better-compute quota``: what your tenant may use; administrators set it."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import change_options, client_options, connected
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.show import answer, print_json
from bcd.cli.better_compute.tables import print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import QuotasServiceStub

_RESOURCES = ("gpu", "gpu.mig", "gpu.slot", "vcpu", "memoryGiB")


@click.group(cls=Listing)
@client_options
@click.pass_context
def quota(context: click.Context, tenant: str | None, output: str, config: Path | None) -> None:
    """List your tenant's quotas; set grants them."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = QuotasServiceStub(connection.channel)
        request = pb.ListQuotasRequest(tenant_id=connection.tenant(tenant))
        found = every(connection, stub.ListQuotas, request, "quotas")
    if output == "json":
        print_json(found)
        return
    print_table(
        ("RESOURCE", "LIMIT", "USED"),
        ((entry.resource, str(entry.limit), str(entry.used)) for entry in found),
    )


# Else a negative limit would be an option that does not exist.
@quota.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("resource", type=click.Choice(_RESOURCES), metavar="RESOURCE")
@click.argument("limit", type=click.IntRange(0, 1 << 40), metavar="LIMIT")
@click.option("--tenant", required=True, metavar="TENANT", help="The tenant to grant it to.")
@change_options
def set_(resource: str, limit: int, tenant: str, output: str, config: Path | None) -> None:
    """Grant a tenant LIMIT of a RESOURCE.

    It counts for all its reservations together. RESOURCE is gpu, gpu.mig, gpu.slot, vcpu or
    memoryGiB; of the last two only what goes beyond the share of the GPUs is charged.
    """
    with connected(config) as connection:
        stub = QuotasServiceStub(connection.channel)
        request = pb.SetQuotaRequest(tenant_id=tenant, resource=resource, limit=limit)
        entry = connection.call(stub.SetQuota, request).quota
    words = f"{entry.tenant_id}  {entry.resource}  {entry.used} of {entry.limit} used"
    answer(entry, output, words)

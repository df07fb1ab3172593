"""``better-compute pools``: the pools that you book in; administrators make and change them."""

from pathlib import Path
from typing import Any

import click

from bcd.cli.better_compute.connection import change_options, client_options, connected
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import owned_pool_id, pool_argument, pool_id
from bcd.cli.better_compute.pool_options import policy_of, policy_options
from bcd.cli.better_compute.show import answer, print_json
from bcd.cli.better_compute.tables import print_fields, print_table
from bcd.model.units import format_duration
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import PoolsServiceStub

_FIELDS = [field.json_name for field in pb.PoolPolicy.DESCRIPTOR.fields]


@click.group(cls=Listing)
@client_options
@click.pass_context
def pools(context: click.Context, tenant: str | None, output: str, config: Path | None) -> None:
    """List the pools that you can book in; show has their policy."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = PoolsServiceStub(connection.channel)
        request = pb.ListPoolsRequest(tenant_id=connection.tenant(tenant))
        found = every(connection, stub.ListPools, request, "pools")
    if output == "json":
        print_json(found)
        return
    print_table(
        ("NAME", "OWNER", "REGION", "NODES", "FREE", "ID"),
        (
            (
                pool.name,
                pool.tenant_id,
                pool.region,
                f"{pool.nodes_schedulable}/{pool.nodes}",
                f"{pool.gpus_free}/{pool.gpus} gpu",
                pool.id,
            )
            for pool in found
        ),
    )


@pools.command()
@pool_argument
@client_options
def show(pool: str, tenant: str | None, output: str, config: Path | None) -> None:
    """Show one pool with its policy."""
    with connected(config) as connection:
        acting = tenant or connection.settings.tenant
        chosen = pool_id(connection, acting, pool)
        request = pb.GetPoolRequest(tenant_id=acting, pool_id=chosen)
        stub = PoolsServiceStub(connection.channel)
        found = connection.call(stub.GetPool, request).pool
    print_json(found) if output == "json" else _print(found)


def _print(pool: pb.Pool) -> None:
    policy = pool.policy
    share, ratio, reserve = policy.per_gpu, policy.ratio, policy.host_reserve
    smallest = "the smallest host's share"
    print_fields(
        (
            ("pool", pool.id),
            ("name", pool.name),
            ("owner", pool.tenant_id),
            ("region", pool.region),
            ("nodes", f"{pool.nodes_schedulable} of {pool.nodes} take bookings"),
            ("gpus", f"{pool.gpus_free} of {pool.gpus} free"),
            ("turnaround", format_duration(policy.turnaround_ms)),
            ("vcpu per gpu", str(share.vcpu) if share.HasField("vcpu") else smallest),
            (
                "memory per gpu",
                f"{share.memory_gib} GiB" if share.HasField("memory_gib") else smallest,
            ),
            ("ratio", f"vcpu {ratio.vcpu:g}, memory {ratio.memory_gib:g}"),
            ("host reserve", f"vcpu {reserve.vcpu}, memory {reserve.memory_gib} GiB"),
            ("sharing", policy.sharing.mode),
            ("kubernetes", "yes" if policy.kubernetes else "no"),
            ("tenant root", "yes" if policy.tenant_root else "no"),
            ("spot grace", format_duration(policy.spot.grace_seconds * 1000)),
            ("placer", policy.placer),
        )
    )


@pools.command()
@click.argument("name")
@click.option("--owner", required=True, metavar="TENANT", help="The tenant that owns the pool.")
@click.option(
    "--region", required=True, metavar="NAME", help="Where it is; policies can ask for it."
)
@policy_options
@change_options
def create(
    name: str, owner: str, region: str, output: str, config: Path | None, **options: Any
) -> None:
    """Create a pool.

    What is not given has its default, which pools show tells.
    """
    policy = policy_of(options)
    with connected(config) as connection:
        request = pb.CreatePoolRequest(name=name, tenant_id=owner, region=region, policy=policy)
        stub = PoolsServiceStub(connection.channel)
        pool = connection.call(stub.CreatePool, request).pool
    answer(pool, output, pool.id)


@pools.command()
@pool_argument
@policy_options
@click.option(
    "--reset",
    multiple=True,
    type=click.Choice(_FIELDS),
    metavar="FIELD",
    help="Back to its default: perGpu, sharing, ...; repeatable.",
)
@change_options
def update(
    pool: str, reset: tuple[str, ...], output: str, config: Path | None, **options: Any
) -> None:
    """Change a pool's policy; what is booked keeps what it has.

    POOL is a name, an id, or TENANT/NAME of another tenant's pool.
    """
    policy = policy_of(options)
    with connected(config) as connection:
        chosen = owned_pool_id(connection, pool)
        request = pb.UpdatePoolRequest(pool_id=chosen, policy=policy, reset=reset)
        stub = PoolsServiceStub(connection.channel)
        changed = connection.call(stub.UpdatePool, request).pool
    print_json(changed) if output == "json" else _print(changed)


@pools.command()
@pool_argument
@change_options
def delete(pool: str, output: str, config: Path | None) -> None:
    """Delete a pool that has no nodes and no reservations.

    POOL is a name, an id, or TENANT/NAME of another tenant's pool.
    """
    with connected(config) as connection:
        chosen = owned_pool_id(connection, pool)
        stub = PoolsServiceStub(connection.channel)
        request = pb.DeletePoolRequest(pool_id=chosen)
        connection.call(stub.DeletePool, request)
    answer(request, output, f"{chosen}  deleted")

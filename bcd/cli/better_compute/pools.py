"""``better-compute pools``: the pools of your tenant; administrators create them."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import (
    client_options,
    config_option,
    connected,
    output_option,
)
from bcd.cli.better_compute.parameters import Duration
from bcd.cli.better_compute.show import print_json, print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import PoolsServiceStub


@click.group(invoke_without_command=True)
@client_options
@click.pass_context
def pools(context: click.Context, tenant: str | None, output: str, config: Path | None) -> None:
    """List your tenant's pools; `pools create` adds one."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = PoolsServiceStub(connection.channel)
        request = pb.ListPoolsRequest(tenant_id=connection.tenant(tenant))
        found = connection.call(stub.ListPools, request).pools
    if output == "json":
        print_json(list(found))
        return
    print_table(
        ("ID", "NAME", "REGION", "NODES", "GPUS", "FREE"),
        (
            (
                pool.id,
                pool.name,
                pool.region,
                f"{pool.nodes_schedulable}/{pool.nodes}",
                str(pool.gpus),
                str(pool.gpus_free),
            )
            for pool in found
        ),
    )


@pools.command()
@click.argument("name")
@click.option("--owner", required=True, help="The tenant that owns the pool.")
@click.option("--region", required=True)
@click.option("--turnaround", type=Duration(), help="A gap kept free after every booking: 5m.")
@output_option
@config_option
def create(
    name: str,
    owner: str,
    region: str,
    turnaround: int | None,
    output: str,
    config: Path | None,
) -> None:
    """Create a pool."""
    with connected(config) as connection:
        policy = pb.PoolPolicy(turnaround_ms=turnaround)
        request = pb.CreatePoolRequest(name=name, tenant_id=owner, region=region, policy=policy)
        stub = PoolsServiceStub(connection.channel)
        pool = connection.call(stub.CreatePool, request).pool
    print_json(pool) if output == "json" else click.echo(pool.id)

"""``better-compute token``: lets people and nodes in. For administrators."""

from pathlib import Path

import click

from bcd.cli.better_compute.completion import complete_pools
from bcd.cli.better_compute.connection import change_options, connected, tenant_option
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.parameters import Duration, owned_pool_id
from bcd.cli.better_compute.show import answer, moment, print_json
from bcd.cli.better_compute.tables import print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import CredentialsServiceStub


@click.group()
def token() -> None:
    """Make tokens for people and nodes."""


@token.command()
@click.argument("subject")
@click.option(
    "--tenant", "tenants", multiple=True, metavar="TENANT", help="A tenant to act for; repeatable."
)
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="A group, for policies; repeatable."
)
@click.option("--admin", is_flag=True, help="May administer the installation.")
@click.option(
    "--actor",
    default="",
    metavar="AGENT",
    help="The agent that is to act for SUBJECT with this token.",
)
@click.option(
    "--for",
    "lifetime",
    type=Duration(),
    default="8h",
    show_default=True,
    help="From a minute to a year.",
)
@change_options
def issue(
    subject: str,
    tenants: tuple[str, ...],
    groups: tuple[str, ...],
    admin: bool,
    actor: str,
    lifetime: int,
    output: str,
    config: Path | None,
) -> None:
    """Print a bearer token for SUBJECT.

    Keep it in a file that only they can read: (umask 077; better-compute token issue … > FILE).

    With --actor an agent acts for SUBJECT under it: policies can hold it to less, and hold back
    what SUBJECT must confirm.
    """
    if not tenants and not admin:
        raise click.UsageError("name a tenant with --tenant; without one the token can do nothing")
    with connected(config) as connection:
        request = pb.IssueTokenRequest(
            subject=subject,
            tenants=tenants,
            groups=groups,
            admin=admin,
            actor=actor,
            lifetime_ms=lifetime,
        )
        stub = CredentialsServiceStub(connection.channel)
        made = connection.call(stub.IssueToken, request)
    print_json(made) if output == "json" else click.echo(made.token)
    click.echo(f"valid until {moment(made.expires)}", err=True)


@token.command()
@click.option(
    "--pool",
    metavar="POOL",
    shell_complete=complete_pools,
    help="The pool that the node joins, by name, id, or TENANT/NAME.",
)
@tenant_option
@click.option("--node", default="", metavar="ID", help="The id of a node that joins again.")
@click.option(
    "--role",
    type=click.Choice(["node", "node-tenant"]),
    default="node",
    show_default=True,
    help="What its certificate lets it be.",
)
@click.option(
    "--for", "lifetime", type=Duration(), default="15m", show_default=True, help="At most 1h."
)
@change_options
def join(
    pool: str | None,
    tenant: str | None,
    node: str,
    role: str,
    lifetime: int,
    output: str,
    config: Path | None,
) -> None:
    """Print a token with which one node joins a pool, once."""
    with connected(config) as connection:
        joined = ""
        if pool or not node:
            joined = owned_pool_id(connection, pool, tenant)
        request = pb.CreateJoinTokenRequest(
            pool_id=joined,
            role=role,
            node_id=node,
            lifetime_ms=lifetime,
        )
        stub = CredentialsServiceStub(connection.channel)
        made = connection.call(stub.CreateJoinToken, request)
    print_json(made) if output == "json" else click.echo(made.token)
    click.echo(f"for {made.node_id}, valid until {moment(made.expires)}", err=True)


@token.command("list")
@change_options
def list_(output: str, config: Path | None) -> None:
    """List join tokens, the newest first; never their secrets."""
    with connected(config) as connection:
        stub = CredentialsServiceStub(connection.channel)
        request = pb.ListJoinTokensRequest()
        found = every(connection, stub.ListJoinTokens, request, "tokens")
    if output == "json":
        print_json(found)
        return
    print_table(
        ("ID", "NODE", "POOL", "ROLE", "EXPIRES", "USED"),
        (
            (
                entry.id,
                entry.node_id,
                entry.pool_id,
                entry.role,
                moment(entry.expires),
                "yes" if entry.used else "",
            )
            for entry in found
        ),
    )


@token.command()
@click.argument("join_token", metavar="ID")
@change_options
def expire(join_token: str, output: str, config: Path | None) -> None:
    """Let nobody join with the join token of this ID any more."""
    identifier = join_token.partition(".")[0]  # the whole token will do; its secret stays here
    with connected(config) as connection:
        stub = CredentialsServiceStub(connection.channel)
        request = pb.ExpireJoinTokenRequest(token_id=identifier)
        connection.call(stub.ExpireJoinToken, request)
    answer(request, output, f"{identifier}  expired")

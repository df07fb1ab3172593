"""``better-compute reassign``: hands what somebody reserved to a successor."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.show import print_json
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@click.option("--from", "from_owner", required=True, help="Whose: the owner that list --all shows.")
@click.option("--to", "to_owner", required=True, help="The successor, likewise issuer|subject.")
@click.option("--reason", default="", help="Why, for the event.")
@client_options
def reassign(
    from_owner: str,
    to_owner: str,
    reason: str,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Hand over all reservations of an owner that have not ended; for administrators."""
    with connected(config) as connection:
        request = pb.ReassignReservationsRequest(
            tenant_id=connection.tenant(tenant),
            from_owner=from_owner,
            to_owner=to_owner,
            reason=reason,
        )
        stub = ReservationsServiceStub(connection.channel)
        answer = connection.call(stub.ReassignReservations, request)
    print_json(answer) if output == "json" else click.echo(f"{answer.reassigned} reassigned")

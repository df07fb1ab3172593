"""``better-compute reassign``: hands what somebody reserved to a successor."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import client_options, connected
from bcd.cli.better_compute.show import answer
from bcd.model.printable import counted
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2_grpc import ReservationsServiceStub


@click.command()
@click.option(
    "--from",
    "from_owner",
    required=True,
    metavar="OWNER",
    help="Whose: the owner that list --all shows.",
)
@click.option(
    "--to",
    "to_owner",
    required=True,
    metavar="OWNER",
    help="The successor, likewise issuer|subject.",
)
@click.option("--reason", default="", metavar="WORDS", help="Why, for the event.")
@client_options
def reassign(
    from_owner: str,
    to_owner: str,
    reason: str,
    tenant: str | None,
    output: str,
    config: Path | None,
) -> None:
    """Hand what somebody reserved to a successor; for administrators.

    All reservations of the owner that have not ended.
    """
    with connected(config) as connection:
        request = pb.ReassignReservationsRequest(
            tenant_id=connection.tenant(tenant),
            from_owner=from_owner,
            to_owner=to_owner,
            reason=reason,
        )
        stub = ReservationsServiceStub(connection.channel)
        done = connection.call(stub.ReassignReservations, request)
    answer(done, output, f"{counted(done.reassigned, 'reservation')} reassigned")

"""``better-compute certificates``: what the CA issued, and taking one back. For administrators."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import change_options, connected
from bcd.cli.better_compute.groups import Listing
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.show import answer, moment, print_json
from bcd.cli.better_compute.tables import print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import CredentialsServiceStub


@click.group(cls=Listing)
@click.option(
    "--of", "subject", default="", metavar="ID", help="Only those of a node or gateway, by its id."
)
@change_options
@click.pass_context
def certificates(context: click.Context, subject: str, output: str, config: Path | None) -> None:
    """List certificates, the newest first; revoke takes one back."""
    if context.invoked_subcommand:
        return
    with connected(config) as connection:
        stub = CredentialsServiceStub(connection.channel)
        request = pb.ListCertificatesRequest(subject_id=subject)
        found = every(connection, stub.ListCertificates, request, "certificates")
    if output == "json":
        print_json(found)
        return
    print_table(
        ("SERIAL", "ROLE", "SUBJECT", "ISSUED", "EXPIRES", "REVOKED"),
        (
            (
                entry.serial,
                entry.role,
                entry.subject_id,
                moment(entry.issued),
                moment(entry.expires),
                f"{moment(entry.revoked_at)}: {entry.reason}" if entry.revoked else "",
            )
            for entry in found
        ),
    )


@certificates.command()
@click.argument("serial")
@click.option("--reason", default="", metavar="WORDS", help="Why; kept with the certificate.")
@change_options
def revoke(serial: str, reason: str, output: str, config: Path | None) -> None:
    """Revoke the certificate with this SERIAL; gateways end its session."""
    with connected(config) as connection:
        stub = CredentialsServiceStub(connection.channel)
        request = pb.RevokeCertificateRequest(serial=serial, reason=reason)
        entry = connection.call(stub.RevokeCertificate, request).certificate
    words = f"{entry.serial}  {entry.role} {entry.subject_id}  revoked: {entry.reason}"
    answer(entry, output, words)

"""``better-compute certificates``: what the CA issued, and taking one back. For administrators."""

from pathlib import Path

import click

from bcd.cli.better_compute.connection import config_option, connected, output_option
from bcd.cli.better_compute.paging import every
from bcd.cli.better_compute.show import moment, print_json, print_table
from bcd.wire.compute.v1 import admin_pb2 as pb
from bcd.wire.compute.v1.admin_pb2_grpc import CredentialsServiceStub


@click.group(invoke_without_command=True)
@click.option("--of", "subject", default="", help="Only those of a node or gateway, by its id.")
@output_option
@config_option
@click.pass_context
def certificates(context: click.Context, subject: str, output: str, config: Path | None) -> None:
    """List certificates, the newest first; `certificates revoke` takes one back."""
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
@click.option("--reason", default="", help="Why; kept with the certificate.")
@config_option
def revoke(serial: str, reason: str, config: Path | None) -> None:
    """Revoke the certificate with this SERIAL; gateways end its session."""
    with connected(config) as connection:
        stub = CredentialsServiceStub(connection.channel)
        request = pb.RevokeCertificateRequest(serial=serial, reason=reason)
        entry = connection.call(stub.RevokeCertificate, request).certificate
    click.echo(f"{entry.serial}  {entry.role} {entry.subject_id}  revoked: {entry.reason}")

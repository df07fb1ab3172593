"""A gateway inside the placer's process: on SQLite the only way, and what ``dev`` runs.

Its certificate comes straight from the CA next door; later it renews like any other gateway.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from bcd.gateway.identity import Identity
from bcd.gateway.server import Gateway
from bcd.gateway.settings import Settings
from bcd.model.address import DialledName
from bcd.placer.pki.authority import Authority
from bcd.placer.pki.own import OwnCredentials
from bcd.signing.certificates import Role
from bcd.store.database import Database

_ID = "embedded"


class EmbeddedSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway's settings, and the DNS names and addresses that nodes dial it by."""

    names: Annotated[tuple[DialledName, ...], msgspec.Meta(min_length=1)] = (
        "localhost",
        "127.0.0.1",
    )


async def start_gateway(
    settings: EmbeddedSettings, folder: Path, database: Database, authority: Authority
) -> Gateway:
    """Start a gateway on the placer's own database; its key and certificate lie in ``folder``."""
    own = OwnCredentials(folder, authority, (Role.GATEWAY, _ID), settings.names)
    await database.write(own.renew_if_due)
    gateway = Gateway(database, Identity.load(folder), settings)
    await gateway.start()
    return gateway

"""The placer's settings, as its TOML file gives them."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bcd.model.address import DialledName, Listen
from bcd.model.units import MINUTE_MS


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the API listens, and the DNS names and addresses that clients dial it by."""

    listen: Listen = "127.0.0.1:7445"
    names: Annotated[tuple[DialledName, ...], msgspec.Meta(min_length=1)] = (
        "localhost",
        "127.0.0.1",
    )


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder of ``*.cedar`` files; without one everybody may act within their own tenants."""

    folder: Path | None = None


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where webhooks may point beside HTTPS at public addresses.

    ``allow_private`` are networks, such as ``10.0.0.0/8``; ``ca_file`` has certificates to trust
    beside the system's.
    """

    allow_http: bool = False
    allow_private: tuple[str, ...] = ()
    ca_file: Path | None = None


class ConfirmationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a person has to confirm an agent's request, and the agent to ask again."""

    lifetime_ms: Annotated[int, msgspec.Meta(ge=MINUTE_MS, le=30 * MINUTE_MS)] = 30 * MINUTE_MS


class PlacerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``database`` is a URL; ``state`` holds CA, command key and issuer key."""

    database: str
    state: Path = Path("/var/lib/bcd-placer")
    trust_domain: str = "bcd.local"
    api: ApiSettings = ApiSettings()
    policy: PolicySettings = PolicySettings()
    webhooks: WebhookSettings = WebhookSettings()
    confirmation: ConfirmationSettings = ConfirmationSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"

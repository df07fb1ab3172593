"""What a webhook is sent: the body of an event, and the headers that prove who sent it. Pure.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from bcd.store.events import Event

SECRET_BYTES = 32
_SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret


def secret_text(secret: bytes) -> str:
    """A secret as its receiver is given it."""
    return _SECRET_PREFIX + base64.b64encode(secret).decode()


def body_of(event: Event) -> bytes:
    """The event as JSON: ``type``, ``timestamp`` in ISO 8601, and ``data`` with the subject."""
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    data = {"subject": event.subject, "tenantId": event.tenant_id, **event.data}
    return msgspec.json.encode(
        {"type": event.type, "timestamp": at.replace("+00:00", "Z"), "data": data}
    )


def headers_of(event_id: str, secret: bytes, body: bytes, now_ms: int) -> Mapping[str, str]:
    """The id, which stays the same in every attempt, the attempt's second, and the signature."""
    second = str(now_ms // 1000)
    signed = b".".join((event_id.encode(), second.encode(), body))
    digest = hmac.new(secret, signed, hashlib.sha256).digest()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": second,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }

"""What a webhook is sent."""

import base64
import json

from bcd.placer.events.message import body_of, headers_of, secret_text
from bcd.store.events import Event


def test_the_signature_is_the_one_of_a_known_example() -> None:
    """Computed with another program: ``openssl dgst -sha256 -mac HMAC``."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = headers_of(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", secret, b'{"test": 2432232314}', 1_614_265_330_999
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert secret_text(secret) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_body_has_type_timestamp_and_the_events_own_data() -> None:
    event = Event(
        seq=7,
        id="evt_1",
        tenant_id="acme",
        subject="reservation/rsv_a",
        type="reservation.placed",
        data={"state": "placed", "start": 1_700_000_000_000},
        at_ms=1_700_000_000_007,
        published_seq=3,
    )
    assert json.loads(body_of(event)) == {
        "type": "reservation.placed",
        "timestamp": "2023-11-14T22:13:20.007Z",
        "data": {
            "subject": "reservation/rsv_a",
            "tenantId": "acme",
            "state": "placed",
            "start": 1_700_000_000_000,
        },
    }

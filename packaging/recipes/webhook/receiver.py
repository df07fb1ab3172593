#!/usr/bin/env python3
"""Takes a webhook's events, checks who sent them, and prints them.

Put TLS in front of it, and your own work where it prints. Standard library only; there are
libraries of the Standard Webhooks that check the same.
"""

import argparse
import base64
import hashlib
import hmac
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_TOLERANCE_S = 300
_MAX_BYTES = 1 << 20
_seen: dict[str, None] = {}  # an event may come twice: keep the ids where your work is kept


def is_genuine(headers, body, secret_text, now_s):
    """Whether the body was signed with the secret (whsec_...), and not long ago."""
    identifier, second = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not second.isdigit() or abs(now_s - int(second)) > _TOLERANCE_S:
        return False
    secret = base64.b64decode(secret_text.strip().removeprefix("whsec_"))
    signed = b".".join((identifier.encode(), second.encode(), body))
    wanted = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(f"v1,{wanted}".encode(), one.encode()) for one in given)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is genuine; anything else is tried again by the sender, for a day."""

    secret = ""

    def do_POST(self):
        """Take one event."""
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _MAX_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(int(length))
        if not is_genuine(self.headers, body, self.secret, time.time()):
            self.send_error(401)
            return
        if self.headers["webhook-id"] not in _seen:
            _seen[self.headers["webhook-id"]] = None
            sys.stdout.write(f"{body.decode()}\n")
            sys.stdout.flush()
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="receiver.py", description=__doc__)
    parser.add_argument("secret_file", metavar="SECRET-FILE", type=Path)
    parser.add_argument("port", metavar="PORT", nargs="?", type=int, default=8080)
    given = parser.parse_args()
    try:
        Receiver.secret = given.secret_file.read_text()
    except (OSError, ValueError) as error:
        parser.exit(2, f"receiver.py: {given.secret_file} cannot be read: {error}\n")
    server = ThreadingHTTPServer(("127.0.0.1", given.port), Receiver)
    sys.stderr.write(f"listening on port {server.server_port}\n")
    sys.stderr.flush()
    server.serve_forever()

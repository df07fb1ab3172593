"""TLS handshakes by the dozen at once leave the placer alive."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

from tests.conftest import MakeSystem

CALLERS = 16
EACH = 300


def test_many_handshakes_at_once_do_not_end_the_placer(make_system: MakeSystem) -> None:
    """What gRPC serves TLS with is made anew only when it changed: others may be using it."""
    system = make_system()
    with system:
        context = ssl.create_default_context(cafile=str(system.state / "ca.pem"))
        context.set_alpn_protocols(["h2"])

        def call(_: int) -> int:
            done = 0
            for _ in range(EACH):
                with (
                    socket.create_connection(("localhost", system.api_port), timeout=30) as plain,
                    context.wrap_socket(plain, server_hostname="localhost"),
                ):
                    done += 1
            return done

        with ThreadPoolExecutor(CALLERS) as callers:
            assert sum(callers.map(call, range(CALLERS))) == CALLERS * EACH
        client = system.client()
        with client.channel:
            assert list(client.list_nodes()) == []

"""Server TLS whose certificate may change while the server runs."""

from collections.abc import Callable
from typing import cast

import grpc


def rotating_credentials(
    newest: Callable[[], grpc.ServerCertificateConfiguration], *, client_certificates: bool
) -> grpc.ServerCredentials:
    """Credentials that gRPC refreshes at a handshake, on a thread of its own, when they changed.

    ``newest`` must not block, and gives the same object for as long as nothing changed: gRPC
    makes everything anew for an answer, while other handshakes may still be using what it then
    frees, and the process ends by SIGSEGV or SIGABRT. So it is told only of what is new.
    """
    shown = newest()

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        current = newest()
        if current is shown:
            return None
        shown = current
        return current

    # The stubs do not know that None means "unchanged".
    fetcher = cast(Callable[[], grpc.ServerCertificateConfiguration], fetch)
    return grpc.dynamic_ssl_server_credentials(shown, fetcher, client_certificates)

"""The placer's own certificates: for its API, for the command key, for a gateway next door."""

import contextlib
from pathlib import Path

import grpc

from bcd.placer.pki.authority import Authority, names_of
from bcd.signing.certificates import Role, validity_ms
from bcd.signing.keyfile import (
    Credentials,
    load_credentials,
    save_credentials,
    unwritable,
)
from bcd.store import certificates
from bcd.store.database import Transaction


class OwnCredentials:
    """A key and certificate of the placer's own, renewed at half its life with a new key."""

    def __init__(
        self, folder: Path, authority: Authority, subject: tuple[Role, str], names: tuple[str, ...]
    ) -> None:
        self._folder = folder
        self._authority = authority
        self._subject = subject
        self._names = names
        self.current: Credentials | None = None

    def renew_if_due(self, tx: Transaction) -> Credentials | None:
        """The new credentials when the old ones were missing, misnamed or past half their life.

        Raises BrokenFile or BadConfiguration naming what cannot be read or written.
        """
        if self.current is None:
            with contextlib.suppress(FileNotFoundError):
                self.current = load_credentials(
                    self._folder, "remove it: the placer makes another at its next start"
                )
        now_ms = tx.now_ms()
        if self.current is not None:
            start_ms, end_ms = validity_ms(self.current.leaf)
            named = set(names_of(self.current.leaf)) == set(self._names)
            if named and now_ms < (start_ms + end_ms) // 2:
                return None
        credentials, row = self._authority.credentials_for(self._subject, now_ms, self._names)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_credentials(self._folder, credentials)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        certificates.record(tx, row)
        self.current = credentials
        return credentials


def tls_configuration(
    credentials: Credentials,
) -> grpc.ServerCertificateConfiguration:
    """The API server's certificate, for handshakes from now on."""
    pair = (credentials.key_pem, credentials.chain_pem)
    return grpc.ssl_server_certificate_configuration([pair], None)

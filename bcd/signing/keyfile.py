"""A process's own credentials on disk: key, certificate chain and trusted CAs.

They lie in one file, ``credentials.pem`` (0600): a renewal replaces key and chain together, two
files cannot be renamed at once, and a key without its certificate is useless after a crash.
"""

import errno
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from bcd.durable import may_pass, remove_file, replace_file, why
from bcd.model.errors import BadConfiguration, BrokenFile, Unavailable
from bcd.signing import keys
from bcd.signing.certificates import parse_certificates, public_key, to_pem

CREDENTIALS = "credentials.pem"
_MAX_BYTES = 256 * 1024
_TRIAL_BYTES = 16 * 1024
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key, its certificate chain (leaf first) and the CAs that its peers are checked against."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...]
    bundle: tuple[x509.Certificate, ...]

    @property
    def leaf(self) -> x509.Certificate:
        """The certificate of the key."""
        return self.chain[0]

    @property
    def key_pem(self) -> bytes:
        """Unencrypted PKCS #8, for gRPC."""
        return keys.key_to_pem(self.key)

    @property
    def chain_pem(self) -> bytes:
        """Leaf first."""
        return to_pem(self.chain)

    @property
    def bundle_pem(self) -> bytes:
        """The trusted CAs."""
        return to_pem(self.bundle)


def prepare_folder(folder: Path) -> None:
    """Make the folder of credentials and write to it, before anybody is asked for a certificate.

    Raises BadConfiguration naming it.
    """
    trial = folder / f".{CREDENTIALS}.trial"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (folder / CREDENTIALS).is_dir():
            raise IsADirectoryError(errno.EISDIR, f"{CREDENTIALS} is a folder")
        replace_file(trial, bytes(_TRIAL_BYTES))
        remove_file(trial)
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> BadConfiguration:
    """What to say when a folder of our own, as the settings name it, cannot be written."""
    remedy = "name another folder, or make room there"
    if isinstance(error, PermissionError):
        remedy = _remedy_of_owner(Path(error.filename or folder))
    return BadConfiguration(f"{folder}: cannot be written ({error.strerror}); {remedy}")


def unreadable(path: Path, error: OSError, remedy: str) -> BrokenFile:
    """What to say when a file of our own cannot be read; ``remedy`` unless the error knows more."""
    match error:
        case PermissionError():
            remedy = _remedy_of_owner(path)
        case NotADirectoryError():
            remedy = "name another folder"
    return BrokenFile(str(path), f"cannot be read ({error.strerror})", remedy)


def _remedy_of_owner(path: Path) -> str:
    """Who owns what is closed to this user, and what opens it."""
    for place in (path, *path.parents):
        try:
            owner, folder = place.stat().st_uid, place.parent.stat().st_uid
        except OSError:
            continue
        if owner != os.geteuid() == folder:
            return f"{place} belongs to {_user(owner)}; run as root: chown {_user(folder)}: {place}"
        if owner == os.geteuid():
            return f"{place} is this user's own; its mode or its folder forbids it: ls -ld {place}"
        return f"{place} belongs to {_user(owner)}; run as that user, or as root"
    return "run as root"


def _user(uid: int) -> str:
    """A user's name, the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def hand_over(folder: Path, *paths: Path) -> None:
    """Give what root made in a service's folder to the folder's owner, who has to read it.

    Does nothing for other users. Raises OSError.
    """
    if os.geteuid() == 0:
        owner = folder.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def save_credentials(folder: Path, credentials: Credentials) -> None:
    """Write the credentials durably and at once, readable by the owner only."""
    issuers = b"".join((b"# trusted\n", credentials.bundle_pem))
    content = b"".join((credentials.key_pem, credentials.chain_pem, issuers))
    replace_file(folder / CREDENTIALS, content)


def load_credentials(folder: Path, remedy: str) -> Credentials:
    """Read what ``save_credentials`` wrote.

    Raises BrokenFile, naming the file and ``remedy``, when it cannot be read, does not parse, is
    readable by others or its key and leaf do not belong together; FileNotFoundError when it is not
    there; Unavailable when the system cannot read it now.
    """
    path = folder / CREDENTIALS
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        if may_pass(error):
            problem = f"{path}: cannot be read now ({why(error)}); it is whole as far as is known"
            raise Unavailable(f"{problem}, so start again once that has passed") from error
        raise unreadable(path, error, remedy) from error
    if mode & 0o077:
        raise BrokenFile(str(path), f"has mode {mode & 0o777:o}", f"run: chmod 600 {path}")
    try:
        return _parse(content)
    except ValueError as error:
        raise BrokenFile(str(path), f"cannot be used ({error})", remedy) from error


def _parse(content: bytes) -> Credentials:
    if len(content) > _MAX_BYTES:
        raise ValueError("larger than any credentials")
    head, marker, trusted = content.partition(b"# trusted\n")
    if not marker or _CERTIFICATE not in head:
        raise ValueError("incomplete")
    key = keys.key_from_pem(head[: head.index(_CERTIFICATE)])
    chain = parse_certificates(head)
    if keys.key_id(public_key(chain[0])) != keys.key_id(key.public_key()):
        raise ValueError("key and certificate do not belong together")
    return Credentials(key, chain, tuple(load_bundle(trusted)))


def load_bundle(pem: bytes) -> Sequence[x509.Certificate]:
    """The CA certificates of a PEM bundle, at least one; raises ValueError."""
    return parse_certificates(pem)

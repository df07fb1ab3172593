"""Credentials on disk: private, whole, and refused by name when they are not."""

import errno
import os
import pwd
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from bcd.model.errors import BadConfiguration, BrokenFile
from bcd.signing import keys
from bcd.signing.certificates import Role, to_pem
from bcd.signing.keyfile import (
    CREDENTIALS,
    Credentials,
    hand_over,
    load_credentials,
    prepare_folder,
    save_credentials,
    unreadable,
)
from tests.authority import Authority
from tests.closed import ordinary_user

REMEDY = "run: bcd enroll"


def saved(folder: Path) -> Credentials:
    credentials = Authority().issue(Role.NODE, "node_x")
    save_credentials(folder, credentials)
    return credentials


def test_what_was_saved_reads_the_same(tmp_path: Path) -> None:
    credentials = saved(tmp_path)
    loaded = load_credentials(tmp_path, REMEDY)
    assert loaded.key_pem == credentials.key_pem
    assert (loaded.chain, loaded.bundle) == (credentials.chain, credentials.bundle)
    assert (loaded.leaf, loaded.chain_pem, loaded.bundle_pem) == (
        credentials.leaf,
        credentials.chain_pem,
        credentials.bundle_pem,
    )


def test_several_trusted_cas_are_kept(tmp_path: Path) -> None:
    issued = Authority().issue(Role.NODE, "node_x")
    bundle = (*issued.bundle, Authority().certificate)
    save_credentials(tmp_path, Credentials(issued.key, issued.chain, bundle))
    assert load_credentials(tmp_path, REMEDY).bundle == bundle


def test_only_the_owner_may_read_the_file_whatever_the_mask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        saved(tmp_path)
    finally:
        os.umask(mask)
    assert (tmp_path / CREDENTIALS).stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [CREDENTIALS]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_may_read_is_refused_with_the_command(tmp_path: Path, mode: int) -> None:
    saved(tmp_path)
    path = tmp_path / CREDENTIALS
    path.chmod(mode)
    with pytest.raises(BrokenFile, match=f"chmod 600 {path}"):
        load_credentials(tmp_path, REMEDY)


def test_a_missing_file_is_another_matter(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_credentials(tmp_path, REMEDY)


def write(folder: Path, content: bytes) -> None:
    path = folder / CREDENTIALS
    path.write_bytes(content)
    path.chmod(0o600)


def test_a_file_cut_off_anywhere_is_refused_and_named(tmp_path: Path) -> None:
    saved(tmp_path)
    content = (tmp_path / CREDENTIALS).read_bytes()
    for length in range(0, len(content) - 30, 97):
        write(tmp_path, content[:length])
        with pytest.raises(BrokenFile, match=rf"{CREDENTIALS}.*{REMEDY}"):
            load_credentials(tmp_path, REMEDY)


def test_junk_is_refused_and_never_shown(tmp_path: Path) -> None:
    secret = b"do not show this"
    for content in (secret, secret * 100_000, b"# trusted\n" + secret, b"\0" * 100, b"\xff" * 100):
        write(tmp_path, content)
        with pytest.raises(BrokenFile) as caught:
            load_credentials(tmp_path, REMEDY)
        assert "do not show" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    issued = Authority().issue(Role.NODE, "node_x")
    write(
        tmp_path,
        keys.key_to_pem(keys.generate_key())
        + issued.chain_pem
        + b"# trusted\n"
        + issued.bundle_pem,
    )
    with pytest.raises(BrokenFile, match="do not belong together"):
        load_credentials(tmp_path, REMEDY)


def test_a_key_of_another_kind_is_refused() -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())):
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        with pytest.raises(ValueError, match="P-256"):
            keys.key_from_pem(pem)
    encrypted = keys.generate_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pass"),
    )
    for pem in (encrypted, b"", to_pem([Authority().certificate])):
        with pytest.raises(ValueError, match="private key"):
            keys.key_from_pem(pem)


def test_a_new_file_replaces_the_old_one_whole(tmp_path: Path) -> None:
    saved(tmp_path)
    second = saved(tmp_path)
    assert load_credentials(tmp_path, REMEDY).key_pem == second.key_pem


def test_a_folder_in_the_files_place_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / CREDENTIALS).mkdir()
    with pytest.raises(BrokenFile, match=rf"{CREDENTIALS}: cannot be read \(Is a dir.*{REMEDY}"):
        load_credentials(tmp_path, REMEDY)


def test_a_file_in_the_folders_place_is_named_with_another_remedy(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(BrokenFile, match=rf"state/{CREDENTIALS}.*name another folder"):
        load_credentials(tmp_path / "state", REMEDY)


def test_a_folder_is_made_and_tried_out_without_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    prepare_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    saved(folder)
    prepare_folder(folder)
    assert [entry.name for entry in folder.iterdir()] == [CREDENTIALS]


def test_a_folder_that_cannot_take_credentials_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "blocked" / CREDENTIALS).mkdir(parents=True)
    for folder in ("file", "file/state", "blocked"):
        with pytest.raises(BadConfiguration, match=rf"{folder}: cannot be written"):
            prepare_folder(tmp_path / folder)


def test_a_file_of_somebody_else_is_named_with_its_owner_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "credentials.pem"
    path.touch()
    error = PermissionError(errno.EACCES, "Permission denied", str(path))
    assert f"{path} is this user's own; its mode" in str(unreadable(path, error, "restore it"))
    root = Path("/proc/1/mem")
    with ordinary_user():
        message = str(unreadable(root, error, "restore it"))
    assert f"{root} belongs to root; run as that user, or as root" in message


def test_a_file_of_root_in_a_services_own_folder_is_to_be_handed_over() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "issuer.pem"
        path.touch()
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        error = PermissionError(errno.EACCES, "Permission denied", str(path))
        with ordinary_user():
            owner = pwd.getpwuid(os.geteuid()).pw_name
            message = str(unreadable(path, error, "restore it"))
        if os.geteuid() == 0:
            assert f"belongs to root; run as root: chown {owner}: {path}" in message
            hand_over(Path(folder), path)
            assert path.stat().st_uid == Path(folder).stat().st_uid == 65534
        with ordinary_user():
            assert "is this user's own" in str(unreadable(path, error, "restore it"))

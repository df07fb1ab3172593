"""The placer's secrets: made once, whole, and read at every start."""

from pathlib import Path

import pytest

from bcd.model.errors import BadConfiguration, BrokenFile
from bcd.placer.pki.issuer import load_issuer
from bcd.placer.pki.state import CA_FILE, init_state, load_state
from bcd.signing.keyfile import load_bundle

DOMAIN = "test.example"


def test_secrets_are_made_once_and_read_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = init_state(state, DOMAIN)
    read = load_state(state, DOMAIN)
    assert read.authority.pin == made.authority.pin
    (published,) = load_bundle((state / CA_FILE).read_bytes())
    assert published == made.authority.certificate
    assert (state / CA_FILE).stat().st_mode & 0o777 == 0o644
    assert state.stat().st_mode & 0o777 == 0o700
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    with pytest.raises(BadConfiguration, match="already"):
        init_state(state, DOMAIN)
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("missing", ["issuer.pem", CA_FILE], ids=["the last", "the last two"])
def test_an_interrupted_start_is_completed_with_the_same_ca(tmp_path: Path, missing: str) -> None:
    made = init_state(tmp_path / "state", DOMAIN)
    (tmp_path / "state" / "issuer.pem").unlink()
    (tmp_path / "state" / missing).unlink(missing_ok=True)
    again = init_state(tmp_path / "state", DOMAIN)
    assert again.authority.pin == made.authority.pin
    assert (tmp_path / "state" / CA_FILE).exists()


def test_an_empty_folder_of_the_ca_is_no_ca(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    init_state(tmp_path, DOMAIN)
    load_state(tmp_path, DOMAIN)


@pytest.mark.parametrize("domain", ["", "Upper.example", "a/b", "a b", "-x", "x" * 300])
def test_a_trust_domain_is_a_lower_case_name(tmp_path: Path, domain: str) -> None:
    with pytest.raises(BadConfiguration, match="trust-domain"):
        init_state(tmp_path / "state", domain)
    assert not (tmp_path / "state").exists()


def test_a_state_that_was_never_made_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="bcd-placer init"):
        load_state(tmp_path, DOMAIN)


def test_a_broken_ca_is_named_and_never_replaced(tmp_path: Path) -> None:
    init_state(tmp_path, DOMAIN)
    (path,) = (tmp_path / "ca").iterdir()
    path.write_bytes(b"broken")
    with pytest.raises(BrokenFile, match="backup"):
        load_state(tmp_path, DOMAIN)
    with pytest.raises(BadConfiguration):
        init_state(tmp_path, DOMAIN)
    assert path.read_bytes() == b"broken"


def test_a_state_that_is_a_file_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.touch()
    with pytest.raises(BrokenFile, match=r"state/ca/credentials\.pem: cannot be read"):
        load_state(state, DOMAIN)
    with pytest.raises(BrokenFile, match=r"state/issuer\.pem.*name another folder"):
        load_issuer(state, DOMAIN)
    with pytest.raises(BadConfiguration, match="state: cannot be written"):
        init_state(state, DOMAIN)


@pytest.mark.parametrize("name", ["ca/credentials.pem", "issuer.pem"])
def test_a_folder_in_a_secrets_place_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    init_state(tmp_path / "state", DOMAIN)
    (tmp_path / "state" / name).unlink()
    (tmp_path / "state" / name).mkdir()
    with pytest.raises(BrokenFile, match=rf"{name}: cannot be read.*backup"):
        load_state(tmp_path / "state", DOMAIN)

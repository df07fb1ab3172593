"""``bcd-placer``: an installation's first steps, and what it refuses."""

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.journeys.system import BIN, Program, wait_until

SAMPLE = Path(__file__).parents[2] / "packaging/caps.cedar"


def settings(folder: Path, extra: str = "") -> Path:
    """A settings file with everything in ``folder``."""
    path = folder / "placer.toml"
    path.write_text(
        f'database = "sqlite:///{folder}/bcd.db"\nstate = "{folder}/state"\n{extra}'
        '[api]\nlisten = "127.0.0.1:0"\n'
    )
    return path


def run(config: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run ``bcd-placer`` to its end; it must not show a traceback."""
    done = subprocess.run(
        [str(BIN / "bcd-placer"), *arguments, "--config", str(config)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def test_init_makes_secrets_that_only_the_owner_reads(tmp_path: Path) -> None:
    config = settings(tmp_path)
    done = run(config, "init")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path}/state/ca.pem\n"
    for path in (tmp_path / "state").rglob("*.pem"):
        readable = stat.S_IMODE(path.stat().st_mode) & 0o077
        assert bool(readable) is (path.name == "ca.pem"), path
    again = run(config, "init")
    assert again.returncode == 1
    assert "already; nothing was changed" in again.stderr
    token = run(config, "token", "--subject", "alice", "--tenant", "acme", "--for", "1h")
    assert token.stdout.count(".") == 2
    assert "valid until 20" in token.stderr
    for lifetime, words in (("30s", "from a minute to a year"), ("8", "8 has no unit; write 8h")):
        refused = run(config, "token", "--subject", "alice", "--for", lifetime)
        assert f"--for: {words}" in refused.stderr.replace("must be ", ""), refused
        assert (refused.returncode, refused.stdout) == (2 if lifetime == "8" else 1, "")
    recovered = run(config, "recover")
    assert "control epoch is now 2" in recovered.stdout


def test_what_root_makes_is_the_folders_owners(tmp_path: Path) -> None:
    config = settings(tmp_path)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(state, owner, -1)
    assert run(config, "init").returncode == 0
    made = sorted(path.relative_to(state).as_posix() for path in state.rglob("*"))
    assert made == ["ca", "ca.pem", "ca/credentials.pem", "issuer.pem"]
    assert {path.stat().st_uid for path in (state, *state.rglob("*"))} == {owner}


def test_options_before_the_verb_are_told_where_they_belong(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BIN / "bcd-placer"), "--config", str(settings(tmp_path)), "init"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "options come after the verb, as in: bcd-placer init --config" in done.stderr


@pytest.mark.parametrize(
    ("extra", "arguments", "words"),
    [
        ("", ("run", "--with-gateway"), "there is no CA; run: bcd-placer init"),
        ("", ("run",), "a SQLite file belongs to one process; run with --with-gateway"),
        ("colour = 1\n", ("init",), "unknown field `colour`"),
        ('trust_domain = "Ümlaut"\n', ("init",), "is not a lower-case DNS name"),
        ('trust_domain = "Not A Domain"\n', ("init",), "is not a lower-case DNS name"),
        ("", ("token", "--subject", "x"), "does not exist; run: bcd-placer init"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, extra: str, arguments: tuple[str, ...], words: str
) -> None:
    done = run(settings(tmp_path, extra), *arguments)
    assert done.returncode == (78 if arguments[0] == "run" else 1)
    assert words in done.stderr


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "none.toml", "init")
    assert done.returncode == 1
    assert f"{tmp_path}/none.toml: cannot be read" in done.stderr


@pytest.mark.parametrize("name", ["ca/credentials.pem", "issuer.pem"])
@pytest.mark.parametrize("damage", [b"", b"\0garbage\xff", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_damaged_secret_is_named_with_its_remedy(
    tmp_path: Path, name: str, damage: bytes
) -> None:
    config = settings(tmp_path)
    run(config, "init")
    (tmp_path / "state" / name).write_bytes(damage)
    done = run(config, "run", "--with-gateway")
    assert done.returncode == 78
    assert name in done.stderr
    assert "restore it from a backup" in done.stderr


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path)
    run(config, "init")
    os.chmod(tmp_path / "state/ca/credentials.pem", 0o644)
    done = run(config, "run", "--with-gateway")
    assert done.returncode == 78
    assert "run: chmod 600" in done.stderr


def test_sighup_reads_level_and_policies_again(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    policies = tmp_path / "policies/caps.cedar"
    shutil.copy(SAMPLE, policies)
    rest = f'[policy]\nfolder = "{policies.parent}"\n[gateway]\n'
    rest += 'node_listen = "127.0.0.1:0"\nenrolment_listen = "127.0.0.1:0"\n'
    config = settings(tmp_path)
    config.write_text(config.read_text() + rest)
    assert run(config, "init").returncode == 0
    command = [str(BIN / "bcd-placer"), "run", "--with-gateway", "--config", str(config)]
    placer = Program(command, tmp_path / "placer.log")

    def hang_up(words: str) -> None:
        os.kill(placer.pid, signal.SIGHUP)
        wait_until(words, lambda: words in placer.log.read_text())

    placer.start()
    try:
        wait_until("ready", lambda: "placer ready" in placer.log.read_text())
        policies.write_text("permit (")
        hang_up("caps.cedar: is not Cedar")
        assert "settings read again" not in placer.log.read_text()
        shutil.copy(SAMPLE, policies)
        hang_up("settings read again")
        config.write_text('log_level = "error"\n' + config.read_text() + "tick_ms = 1000\n")
        hang_up("takes effect with a restart only")
        assert placer.alive()
    finally:
        assert placer.kill(signal.SIGTERM) == 0, placer.log.read_text()


def test_another_trust_domain_than_that_of_the_ca_is_refused(tmp_path: Path) -> None:
    assert run(settings(tmp_path), "init").returncode == 0
    config = settings(tmp_path, 'trust_domain = "other.example"\n')
    refused = run(config, "run", "--with-gateway")
    assert refused.returncode == 78
    assert "trust_domain: the CA in" in refused.stderr
    assert "was made for another one than 'other.example'" in refused.stderr

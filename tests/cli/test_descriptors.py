"""Where next to no files can be opened, every program says so; gRPC would end it by a signal."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bcd.cli.descriptors import need_descriptors
from bcd.placer.pki.state import init_state

BIN = Path(sys.executable).parent
# The first are too few for an event loop, those in the middle for gRPC alone.
LIMITS = (8, 13, 15, 30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings of an installation, and of one of its clients."""
    init_state(tmp_path / "placer", "example.org")
    (tmp_path / "placer.toml").write_text(
        f'database = "sqlite:///{tmp_path}/placer.db"\nstate = "{tmp_path}/placer"\n'
        'trust_domain = "example.org"\n[api]\nlisten = "127.0.0.1:0"\n'
        '[gateway]\nnode_listen = "127.0.0.1:0"\nenrolment_listen = "127.0.0.1:0"\n'
    )
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o600)
    (tmp_path / "config.toml").write_text(
        f'api = "localhost:1"\ntenant = "acme"\nca_file = "{tmp_path}/placer/ca.pem"\n'
        f'token_file = "{token}"\n'
    )
    return tmp_path


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize(
    "words",
    [
        ("bcd-placer", "run", "--config", "placer.toml", "--with-gateway"),
        ("bcd-gateway", "run", "--config", "gateway.toml"),
        ("bcd-gateway", "enroll", "--placer", "localhost:1", "--token-file", "token",
         "--ca-file", "placer/ca.pem"),
        ("bcd", "run", "--config", "bcd.toml"),
        ("bcd", "enroll", "--config", "bcd.toml", "--token-file", "token"),
        ("better-compute", "list", "--config", "config.toml"),
        ("better-compute", "dev", "--sim", "1"),
    ],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_a_program_that_finds_no_descriptors_says_so(
    folder: Path, words: Sequence[str], limit: int
) -> None:
    """With exit code 1: on 78 a unit would not start its daemon again."""
    script = f'ulimit -n {limit}; exec "$0" "$@"'
    done = subprocess.run(
        ["bash", "-c", script, str(BIN / words[0]), *words[1:]],
        capture_output=True, text=True, check=False, cwd=folder, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert done.stderr.startswith(f"{words[0]}: fewer than 32 files can be opened"), done.stderr
    assert done.stderr.count("\n") == 1


def test_looking_for_descriptors_leaves_none_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    need_descriptors()
    assert sorted(Path("/proc/self/fd").iterdir()) == before

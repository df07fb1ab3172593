"""The recipe of a webhook's receiver takes what the deliverer sends, and nothing else."""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bcd.placer.events.message import headers_of, secret_text

_RECIPE = Path(__file__).parents[2] / "packaging/recipes/webhook/receiver.py"
_SECRET = bytes(range(32))
_BODY = b'{"type": "reservation.placed"}'


@dataclass
class Receiver:
    """The running recipe."""

    process: "subprocess.Popen[str]"
    port: int

    def post(self, headers: Mapping[str, str], body: bytes = _BODY) -> int:
        """Send a body; returns the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", "/", body, dict(headers))
            return connection.getresponse().status
        finally:
            connection.close()

    def said(self) -> str:
        """End it; returns what it printed."""
        self.process.terminate()
        return self.process.communicate(timeout=30)[0]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """The recipe with a secret, on a port of its own."""
    (tmp_path / "secret").write_text(secret_text(_SECRET) + "\n")
    with subprocess.Popen(
        [sys.executable, "-I", str(_RECIPE), str(tmp_path / "secret"), "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        yield Receiver(process, int(process.stderr.readline().rpartition(" ")[2]))
        process.kill()


def signed(identifier: str = "evt_1", *, seconds_ago: int = 0) -> Mapping[str, str]:
    """The headers that a delivery of the body has."""
    now_ms = time.time_ns() // 1_000_000 - seconds_ago * 1000
    return headers_of(identifier, _SECRET, _BODY, now_ms)


def started(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """The recipe with arguments with which it does not stay."""
    return subprocess.run(
        [sys.executable, "-I", str(_RECIPE), *arguments],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_what_cannot_be_its_secret_is_one_line_and_help_is_help(tmp_path: Path) -> None:
    shown = started("-h")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "receiver.py [-h] SECRET-FILE [PORT]" in shown.stdout
    (tmp_path / "binary").write_bytes(bytes([0xFF]))
    for name in ("nothing", "binary", "."):
        refused = started(str(tmp_path / name), "0")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"receiver.py: {tmp_path / name} cannot be read")
        assert refused.stderr.count("\n") == 1
    assert started().returncode == 2


def test_what_was_delivered_is_taken_once(receiver: Receiver) -> None:
    assert receiver.post(signed()) == 204
    assert receiver.post(signed()) == 204
    assert receiver.said() == _BODY.decode() + "\n"


def test_what_somebody_else_sends_is_refused(receiver: Receiver) -> None:
    good = signed()
    for headers, body in (
        ({}, _BODY),
        (good, _BODY + b" "),
        ({**good, "webhook-id": "evt_2"}, _BODY),
        ({**good, "webhook-signature": "v1,AAAA"}, _BODY),
        ({**good, "webhook-timestamp": "soon"}, _BODY),
        (signed(seconds_ago=3600), _BODY),
    ):
        assert receiver.post(headers, body) == 401
    two = {**good, "webhook-signature": f"v1,AAAA {good['webhook-signature']}"}
    assert receiver.post(two) == 204  # while a secret is replaced there are two
    assert receiver.said() == _BODY.decode() + "\n"

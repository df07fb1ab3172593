"""What systemd is told, over a socket of the test's own."""

import os
import socket
from pathlib import Path

import pytest

from bcd.sdnotify import notify, watchdog_seconds


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    notify("READY=1")


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_arrives_as_one_datagram(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool
) -> None:
    name = f"bcd-test-{os.getpid()}"
    address = f"\0{name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else address)
        notify("READY=1\nSTATUS=fine")
        assert channel.recv(1024) == b"READY=1\nSTATUS=fine"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60000000", 60.0), ("0", None), ("", None), ("²", None), ("1" * 5000, None)],
)
def test_the_watchdogs_period_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", text)
    assert watchdog_seconds() == seconds

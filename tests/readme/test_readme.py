"""The README's first commands, word for word, in an empty folder with an empty environment.

``git clone`` is replaced by a clone of this repository; everything else runs as it stands, with
``rsv_…`` for the id of the reservation that was made before.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_READY_S = 600.0


def blocks(section: str) -> list[str]:
    """The ``sh`` blocks of a README section, in order."""
    text = (ROOT / "README.md").read_text()
    body = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.*?)```", body, re.DOTALL)


def shown_output(section: str) -> str:
    """The output that the README shows in a section."""
    text = (ROOT / "README.md").read_text()
    body = text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    (found,) = re.findall(r"```text\n(.*?)```", body, re.DOTALL)
    return str(found)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A newcomer's environment: a home of its own and nothing of ours."""
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG") or k.startswith("PIP_")}
    keep["PATH"] = ":".join(p for p in keep["PATH"].split(":") if "venv" not in p)
    return {**keep, "HOME": str(tmp_path / "home"), "TZ": "UTC"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone of what is committed."""
    target = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(target)], check=True)
    return target


@pytest.fixture
def running(clone: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The first block, running until the end; gives its ready line."""
    (tmp_path / "home").mkdir()
    log = tmp_path / "first.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", blocks("Try it")[0]],
            cwd=clone, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield _ready_line(process, log)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)


def _ready_line(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("ready: "):
                return line
        assert process.poll() is None, log.read_text()
        time.sleep(0.5)
    raise AssertionError(f"not ready: {log.read_text()}")


def shape_of(output: str) -> str:
    """An output with ids, UUIDs, times and scratch folders replaced, and blanks folded."""
    for pattern, name in (
        (r"rsv_[a-z2-7]{52}", "RSV"),
        (r"(node|pool|alloc)_[0-9a-z]{26}", r"\1"),
        (r"GPU-[0-9a-f-]{36}", "GPU"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
        (r"/tmp/better-compute-[a-z0-9_]+", "/tmp/STATE"),
        (r"host\d{3}", "HOST"),
    ):
        output = re.sub(pattern, name, output)
    return "\n".join(" ".join(line.split()) for line in output.strip().splitlines())


@pytest.mark.timeout(900)
def test_the_first_commands_work_as_they_stand(
    running: str, clone: Path, environment: dict[str, str]
) -> None:
    assert "4 hosts, 32 GPUs" in running
    second = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", blocks("Try it")[1]],
        cwd=clone, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert second.returncode == 0, second.stderr
    assert shape_of(second.stdout) == shape_of(shown_output("Try it"))
    identifier = ""
    for command in blocks("Reserve")[0].splitlines():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.replace("rsv_…", identifier)],
            cwd=clone, env=in_the_venv(clone, environment), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if "better-compute reserve" in command:
            identifier = (re.findall(r"rsv_[a-z2-7]{52}", done.stdout) or [identifier])[0]


def in_the_venv(clone: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment after ``. .venv/bin/activate``."""
    return {**environment, "PATH": f"{clone / '.venv/bin'}:{environment['PATH']}"}


def test_the_page_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 220

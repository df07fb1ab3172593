"""``better-compute watch``, ``events`` and ``webhook`` against a running ``dev``."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.cli.dev_system import BETTER_COMPUTE, Dev, Terminal
from tests.placer.events.receiver import receiving, status


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A person's terminal."""
    return Terminal(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def dev(terminal: Terminal) -> Iterator[Dev]:
    """A system of one host."""
    with terminal.dev("--sim", "1") as running:
        yield running


def running_config(terminal: Terminal) -> Path:
    """Of the ``dev`` that runs."""
    return next(Path(terminal.environment["XDG_RUNTIME_DIR"]).glob("**/*.toml"))


def reserve(terminal: Terminal) -> str:
    """Reserve a GPU and release it again; returns the reservation's id."""
    done = terminal.run("reserve", "--gpus", "1", "--for", "1h", "-o", "json")
    assert done.returncode == 0, done.stderr
    made = str(json.loads(done.stdout)["id"])
    assert terminal.run("release", made).returncode == 0
    return made


@contextmanager
def watching(terminal: Terminal, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """A ``watch`` that runs in the background."""
    process = subprocess.Popen(
        [BETTER_COMPUTE, "watch", *arguments],
        env=terminal.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def lines_of(process: "subprocess.Popen[str]", number: int) -> list[str]:
    """The next lines of its output."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(number)]


LIFE = ["placed", "binding", "active", "released"]


@pytest.mark.usefixtures("dev")
def test_a_reservations_life_is_watched_listed_and_resumed(terminal: Terminal) -> None:
    start = json.loads(terminal.run("events", "-o", "json").stdout)
    assert start == [] or start[-1]["type"] == "reservation.released"
    made = reserve(terminal)
    listed = terminal.run("events", made)
    assert listed.returncode == 0
    assert [line.split()[3] for line in listed.stdout.splitlines()[1:]] == LIFE
    assert "reason release" in listed.stdout
    with watching(terminal, made, "--from", "1-0", "-o", "json") as watch:
        told = [json.loads(line) for line in lines_of(watch, 4)]
        assert [one["type"].removeprefix("reservation.") for one in told] == LIFE
        assert {one["subject"] for one in told} == {f"reservation/{made}"}
        assert told[0]["data"]["nodeIds"]
    with watching(terminal, "--from", told[1]["cursor"], "--type", "released") as watch:
        (line,) = lines_of(watch, 1)
        assert made in line
        assert line.endswith("reason release")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 0
        assert watch.stderr is not None
        ended = watch.stderr.read()
    assert re.fullmatch(r"to go on: better-compute watch --from 1-[0-9]+\n", ended)
    late = terminal.run("watch", "--from", "nonsense")
    assert "to go on" not in late.stderr


@pytest.mark.usefixtures("dev")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("watch", "--from", "nonsense"), "cursor: is none that an answer gave"),
        (("watch", "--type", "plced"), "types[0]: must be one of reservation.placed"),
        (("watch", "--tenant", "other"), "the token is not for tenant other"),
        (("watch", "--all"), "only an administrator may ask for all tenants at once"),
        (("events", "--from", "7-7"), "before the control plane was restored"),
        (("webhook", "add", "https://10.0.0.1/"), "an address that is not public"),
        (("webhook", "add", "ftp://hooks.example/"), "url: must begin with https://"),
        (("webhook", "remove", "hook_none"), "there is no webhook hook_none"),
    ],
)
def test_bad_input_gets_a_sentence(
    terminal: Terminal, arguments: tuple[str, ...], words: str, request: pytest.FixtureRequest
) -> None:
    if {"--tenant", "--all"} & {*arguments}:
        config = _as_somebody(terminal, request.getfixturevalue("tmp_path"))
        arguments = (*arguments, "--config", str(config))
    done = terminal.run(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def _as_somebody(terminal: Terminal, folder: Path) -> Path:
    """The configuration of a member of one tenant who administers nothing."""
    running = running_config(terminal)
    token = terminal.run("token", "issue", "ann", "--tenant", "dev").stdout
    (folder / "token").write_text(token)
    lines = [
        f'token_file = "{folder}/token"' if line.startswith("token_file") else line
        for line in running.read_text().splitlines()
    ]
    (folder / "config.toml").write_text("\n".join(lines))
    return folder / "config.toml"


async def run(terminal: Terminal, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One command, while this loop goes on."""
    return await asyncio.to_thread(terminal.run, *arguments)


@pytest.mark.usefixtures("dev")
async def test_a_webhook_is_added_shown_and_removed(terminal: Terminal) -> None:
    async with receiving(status(410)) as receiver:
        added = await run(terminal, "webhook", "add", receiver.url, "--type", "placed")
        assert added.returncode == 0, added.stderr
        words = dict(line.split() for line in added.stdout.splitlines())
        await asyncio.to_thread(reserve, terminal)
        (post, *_) = await receiver.got(1)
        post.assert_signed(words["secret"])
        listed = ""
        while "410" not in listed:
            listed = (await run(terminal, "webhook", "list")).stdout
        assert words["webhook"] in listed
        enabled = await run(terminal, "webhook", "enable", words["webhook"])
        assert "enabled, 1 event waiting" in enabled.stdout
        assert [one.id for one in await receiver.got(2)] == [post.id] * 2
        dead = await run(terminal, "webhook", "dead-letters", words["webhook"], "-o", "json")
        assert json.loads(dead.stdout) == []
        again = await run(terminal, "webhook", "redeliver", words["webhook"])
        assert "0 events on the way again" in again.stdout
        removed = await run(terminal, "webhook", "remove", words["webhook"])
        assert removed.returncode == 0
        assert json.loads((await run(terminal, "webhook", "list", "-o", "json")).stdout) == []


@asynccontextmanager
async def between(host: str, port: int) -> "AsyncIterator[tuple[int, Callable[[], None]]]":
    """A port that leads to another one, and how to cut all that goes through it."""
    open_now: set[asyncio.StreamWriter] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(host, port)
        open_now.update((writer, forth))
        await asyncio.gather(pump(reader, forth), pump(back, writer))

    def cut() -> None:
        for writer in open_now:
            writer.transport.abort()
        open_now.clear()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], cut
    server.close()
    cut()


@pytest.mark.usefixtures("dev")
async def test_a_watch_outlives_its_connection_and_goes_on_where_it_was(
    terminal: Terminal, tmp_path: Path
) -> None:
    running = running_config(terminal)
    settings = tomllib.loads(running.read_text())
    host, _, port = settings["api"].rpartition(":")
    async with between(host, int(port)) as (via, cut):
        config = tmp_path / "config.toml"
        config.write_text(running.read_text().replace(settings["api"], f"127.0.0.1:{via}"))
        first = await asyncio.to_thread(reserve, terminal)
        told: list[str] = []
        with watching(terminal, "--from", "1-0", "-o", "json", "--config", str(config)) as watch:
            while told.count(f"reservation/{first}") < len(LIFE):
                (line,) = await asyncio.to_thread(lines_of, watch, 1)
                told.append(json.loads(line)["subject"])
            cut()
            second = await asyncio.to_thread(reserve, terminal)
            lines = await asyncio.to_thread(lines_of, watch, len(LIFE))
            watch.send_signal(signal.SIGINT)
            assert watch.wait(30) == 0
            assert watch.stderr is not None
            assert "the connection was lost; going on behind 1-" in watch.stderr.read()
    assert [json.loads(line)["subject"] for line in lines] == [f"reservation/{second}"] * 4


@pytest.mark.usefixtures("dev")
def test_a_list_that_is_cut_says_how_to_go_on(terminal: Terminal) -> None:
    made = reserve(terminal)
    cut = terminal.run("events", made, "--limit", "2", "-o", "json")
    cursor = cut.stderr.split()[-1]
    rest = terminal.run("events", made, "--from", cursor, "-o", "json")
    both = json.loads(cut.stdout) + json.loads(rest.stdout)
    assert [event["type"].removeprefix("reservation.") for event in both] == LIFE
    assert "there may be more" not in rest.stderr
    assert rest.stderr.startswith("to go on: better-compute watch --from ")
    again = reserve(terminal)
    with watching(terminal, "--from", rest.stderr.split()[-1], "-o", "json") as watch:
        told = json.loads(lines_of(watch, 1)[0])
    assert told["subject"] == f"reservation/{again}"


@pytest.mark.usefixtures("dev")
def test_what_has_no_events_is_told_so(terminal: Terminal) -> None:
    for subject in ("node_nothing", "nothing"):
        none = terminal.run("events", subject)
        assert (none.returncode, none.stdout) == (0, "")
        assert f"there are no events of {subject}\n" in none.stderr

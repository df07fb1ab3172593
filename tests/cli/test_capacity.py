"""``better-compute capacity`` and ``calendar`` against a running ``dev`` (spec 17.1)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bcd.cli.better_compute.calendar import _bar
from bcd.wire.compute.v1 import capacity_pb2 as pb
from bcd.wire.compute.v1.reservations_pb2 import Window
from tests.cli.dev_system import Dev, Terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A person's terminal."""
    return Terminal(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module", autouse=True)
def dev(terminal: Terminal) -> Iterator[Dev]:
    """A system of two hosts of eight GPUs each."""
    with terminal.dev("--sim", "2") as running:
        yield running


@pytest.fixture
def held(terminal: Terminal) -> Iterator[dict[str, Any]]:
    """A reservation of five GPUs of one host for an hour."""
    done = terminal.run("reserve", "--gpus", "5", "--for", "1h", "-o", "json")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    yield made
    assert terminal.run("release", made["id"]).returncode == 0


def test_what_is_free_is_shown_by_kind_and_by_node(
    terminal: Terminal, held: dict[str, Any]
) -> None:
    shown = terminal.run("capacity")
    assert shown.returncode == 0, shown.stderr
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[1] == "gpu NVIDIA H100 80GB HBM3 16 11"
    booked = held["binding"]["nodeId"]
    (node,) = [line for line in lines if line.startswith(booked)]
    assert "3 of 8 gpu" in node
    assert "CPUs" in node
    answer = json.loads(terminal.run("capacity", "-o", "json").stdout)
    (kind,) = answer["devices"]
    assert (kind["class"], kind["devices"], kind["free"]) == ("gpu", 16, 11)
    assert len(answer["nodes"]) == 2


def test_a_preview_takes_the_options_of_reserve_and_books_nothing(terminal: Terminal) -> None:
    asked = ("--gpus", "8", "--topology", "nvlink-all", "--gang", "2", "--for", "8h")
    told = terminal.run("capacity", "--preview", *asked)
    assert told.returncode == 0, told.stderr
    lines = dict(line.split(None, 1) for line in told.stdout.splitlines())
    assert lines["fits"] == "yes"
    assert lines["longest"] == "years, on the nodes that are free longest"
    assert lines["host"] == "222 CPUs, 1976 GiB"
    assert json.loads(terminal.run("list", "--state", "active", "-o", "json").stdout) == []


def test_a_preview_that_does_not_fit_says_why_and_from_when_on_and_exits_with_three(
    terminal: Terminal, held: dict[str, Any]
) -> None:
    asked = ("--gpus", "8", "--gang", "2", "--for", "1h")
    told = terminal.run("capacity", "--preview", *asked)
    assert told.returncode == 3
    assert "1 of 2 nodes fits, the gang needs 2: devices rejected 1" in told.stdout
    answer = json.loads(terminal.run("capacity", "--preview", *asked, "-o", "json").stdout)
    assert (answer["fits"], answer["earliestStart"]) == (False, held["during"]["end"])


def test_a_preview_reads_the_file_that_reserve_does(terminal: Terminal) -> None:
    document = {
        "devices": [{"class": "gpu", "count": 9}],
        "duration": 3_600_000,
        "labels": {"run": "7"},
        "leaseSeconds": 60,
    }
    told = terminal.run("capacity", "--preview", "-f", "-", stdin=json.dumps(document))
    assert told.returncode == 3
    assert "no node has 9 such devices" in told.stdout
    assert "no known time" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpus", "1"), "--preview"),
        (("--cpus", "0"), "--preview"),
        (("--preview", "--gpus", "1"), "--for"),
        (("--preview", "--for", "1h"), "--gpus"),
    ],
    ids=str,
)
def test_half_a_question_is_a_usage_error(
    terminal: Terminal, arguments: tuple[str, ...], words: str
) -> None:
    told = terminal.run("capacity", *arguments)
    assert told.returncode == 2
    assert words in told.stderr


def test_the_calendar_has_a_bar_for_every_device(terminal: Terminal, held: dict[str, Any]) -> None:
    shown = terminal.run("calendar", "--for", "2h")
    assert shown.returncode == 0, shown.stderr
    bars = [line.split()[-1] for line in shown.stdout.splitlines()[1:]]
    taken, free = set(bars), bars.count("." * 48)
    assert (len(bars), free) == (16, 11)
    assert all(bar.strip("#") == "." * bar.count(".") for bar in taken)
    assert "yours" in shown.stderr
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    node = held["binding"]["nodeId"]
    found = json.loads(terminal.run("calendar", "--node", node, "-o", "json").stdout)
    shown_to_programs = [one for device in found[0]["devices"] for one in device["taken"]]
    assert [one["reservationId"] for one in shown_to_programs] == [held["id"]] * 5
    assert terminal.run("calendar", "--for", "93d").returncode == 1


def bar(*taken: pb.Taken) -> str:
    device = pb.CalendarDevice(bookable=True, taken=taken)
    return _bar(device, Window(start=0, end=48_000))


def test_a_cell_is_free_only_if_all_of_its_time_is() -> None:
    assert bar() == "." * 48
    assert bar(pb.Taken(start=999, end=1_001, kind="reservation")) == "xx" + "." * 46
    assert bar(pb.Taken(start=1_000, end=2_000, kind="reservation")) == ".x" + "." * 46
    assert bar(pb.Taken(start=-5, end=99_000, kind="maintenance")) == "m" * 48


def test_ones_own_shows_where_several_share_a_cell() -> None:
    mine = pb.Taken(start=100, end=200, kind="reservation", reservation_id="rsv_a")
    theirs = pb.Taken(start=200, end=2_000, kind="reservation")
    kept = pb.Taken(start=2_000, end=48_000, kind="maintenance")
    assert bar(mine, theirs, kept) == "#x" + "m" * 46

"""Every verb of ``better-compute`` alike: its help, its JSON, its completion (spec 17.1)."""

import json
import os
import re
import subprocess
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bcd.cli.better_compute import main
from tests.cli.dev_system import BETTER_COMPUTE, Dev, Terminal


def walk(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with the words that name them, groups included."""
    yield words, command
    if isinstance(command, click.Group):
        for name, verb in command.commands.items():
            yield from walk(verb, (*words, name))


VERBS = [pytest.param(w, c, id=" ".join(w)) for w, c in walk(main) if w]
LISTS = [p for p in VERBS if isinstance(p.values[1], click.Group) and p.values[1].params]


@pytest.mark.parametrize(("words", "command"), VERBS)
def test_a_verb_answers_in_json_and_says_what_its_options_are_for(
    words: tuple[str, ...], command: click.Command
) -> None:
    options = [param for param in command.params if isinstance(param, click.Option)]
    for option in options:
        assert option.help, option.name
        kind = option.make_metavar(click.Context(command))
        assert not re.search("TEXT|INTEGER|FLOAT|DIRECTORY", kind), (option.name, kind)
        assert not option.help.strip().endswith(("..", ",")), option.name
    verbless = isinstance(command, click.Group) and not command.params
    if words != ("dev",) and not verbless:
        assert {"output", "config"} <= {option.name for option in options}


@pytest.mark.parametrize("words", [w for w, c in walk(main) if isinstance(c, click.Group)])
def test_a_help_cuts_no_sentence_short(words: tuple[str, ...]) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(main, [*words, "-h"])
    assert shown.exit_code == 0
    assert "..." not in shown.output.partition("[ARGS]...")[2]


@pytest.mark.parametrize(("words", "command"), LISTS)
def test_an_option_before_the_verb_is_not_lost_without_a_word(
    words: tuple[str, ...], command: click.Group
) -> None:
    verb = next(iter(command.commands))
    refused = CliRunner().invoke(main, [*words, "-o", "json", verb])
    assert refused.exit_code == 2
    assert f"options come after the verb: main {' '.join(words)} {verb} --out" in refused.output


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A person's terminal."""
    return Terminal(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def dev(terminal: Terminal) -> Iterator[Dev]:
    """A system of one host."""
    with terminal.dev("--sim", "1") as running:
        yield running


def completed(terminal: Terminal, *words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    done = subprocess.run(
        [BETTER_COMPUTE],
        env={
            **terminal.environment,
            "_BETTER_COMPUTE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["better-compute", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.split()]


@pytest.mark.usefixtures("dev")
def test_a_shell_completes_verbs_reservations_pools_and_nodes(terminal: Terminal) -> None:
    assert completed(terminal, "rene") == ["renew"]
    assert completed(terminal, "nodes", "cordon", "ho") == ["host000"]
    assert completed(terminal, "pools", "show", "d") == ["dev"]
    made = json.loads(
        terminal.run("reserve", "--gpus", "1", "--for", "1h", "--at", "+2h", "-o", "json").stdout
    )
    assert made["id"] in completed(terminal, "release", "rsv_")
    assert terminal.run("cancel", made["id"]).returncode == 0
    assert made["id"] not in completed(terminal, "release", "rsv_")


def test_a_shell_hears_nothing_where_nothing_answers(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = Terminal(tmp_path_factory.mktemp("alone"))
    assert completed(alone, "release", "rsv_") == []
    assert os.environ.get("COMP_WORDS") is None


@pytest.mark.usefixtures("dev")
def test_a_reservation_is_named_by_the_beginning_of_its_id(terminal: Terminal) -> None:
    """What ``list`` shows on a narrow terminal is taken by every verb that takes an id."""
    arguments = ("reserve", "--gpus", "1", "--for", "1h", "--at", "+5h", "-o", "json")
    made = json.loads(terminal.run(*arguments).stdout)
    begun = made["id"][:16]
    shown = terminal.run("get", begun)
    assert (shown.returncode, made["id"] in shown.stdout) == (0, True)
    for verb in (("events", begun), ("extend", begun, "--by", "1h"), ("cancel", begun)):
        done = terminal.run(*verb)
        assert (done.returncode, made["id"] in done.stdout) == (0, True), done.stderr
    for unknown in ("rsv_zzzz", "rsv_"):
        none = terminal.run("release", unknown)
        assert none.returncode == 1
        assert f"there is no reservation {unknown}; better-compute list --all" in none.stderr


@pytest.mark.usefixtures("dev")
def test_what_changes_something_answers_in_json(terminal: Terminal) -> None:
    def answer(*words: str) -> dict[str, object]:
        done = terminal.run(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        document: dict[str, object] = json.loads(done.stdout)
        return document

    pool = answer("pools", "create", "spare", "--owner", "dev", "--region", "eu")["id"]
    assert answer("nodes", "cordon", "host000")["cordoned"] is True
    assert answer("nodes", "uncordon", "host000")["cordoned"] is False
    assert answer("quota", "set", "gpu", "9", "--tenant", "guest")["limit"] == 9
    assert answer("offers", "set", "spare", "--to", "guest")["tenantId"] == "guest"
    assert answer("offers", "withdraw", "spare", "--from", "guest")["poolId"] == pool
    token = answer("token", "join", "--pool", "spare")
    assert str(token["token"]).startswith("join_")
    assert answer("token", "expire", str(token["token"]))["tokenId"]
    assert answer("token", "issue", "bob", "--tenant", "dev")["expires"]
    assert answer("pools", "delete", "spare")["poolId"] == pool

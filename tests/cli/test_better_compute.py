"""``better-compute`` against a running ``dev``: what it finds, prints and exits with."""

import datetime
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd.cli.better_compute.connection import ClientSettings, Connection
from bcd.cli.better_compute.reserve import _insist
from bcd.model.errors import BcdError, InvalidInput, Reason, Unavailable
from bcd.signing.certificates import to_pem
from bcd.wire.status import RemoteError
from tests.authority import Authority
from tests.cli.dev_system import BETTER_COMPUTE, Dev, Terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A person's terminal."""
    return Terminal(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def dev(terminal: Terminal) -> Iterator[Dev]:
    """A system of two hosts."""
    with terminal.dev("--sim", "2") as running:
        yield running


def reserve(terminal: Terminal, *arguments: str) -> dict[str, object]:
    """Reserve and return the JSON answer; must succeed."""
    done = terminal.run("reserve", *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_dev_says_in_one_line_what_runs_and_what_to_type(dev: Dev) -> None:
    assert dev.line == (
        "ready: 2 hosts, 16 GPUs; in another terminal:"
        " better-compute reserve --gpus 4 --topology nvlink-all --for 8h"
    )


def test_the_line_works_as_it_stands(dev: Dev, terminal: Terminal) -> None:
    command = dev.line.partition("terminal: ")[2].split()
    done = terminal.run(*command[1:])
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["state"] == "active"
    assert done.stdout.count("bcd.dev/gpu=GPU-") == 4
    assert terminal.run("release", lines["reservation"]).returncode == 0


@pytest.mark.usefixtures("dev")
def test_a_hold_is_shown_by_every_command_and_gone_after_its_release(terminal: Terminal) -> None:
    made = reserve(terminal, "--gpus", "8", "--topology", "nvlink-all", "--for", "1d12h")
    identifier = str(made["id"])
    assert made["request"] == {
        "poolId": made["poolId"],
        "devices": [
            {"class": "gpu", "count": 8, "topology": "nvlink-all", "model": "", "profile": ""}
        ],
        "duration": "129600000ms",
        "binding": "hold",
        "labels": {},
    }
    shown = terminal.run("get", identifier)
    assert "(1d12h)" in shown.stdout
    listed = terminal.run("list", "--state", "active")
    assert identifier in listed.stdout
    (pool,) = json.loads(terminal.run("pools", "-o", "json").stdout)
    assert (pool["gpus"], pool["gpusFree"]) == (16, 8)
    nodes = json.loads(terminal.run("nodes", "-o", "json").stdout)
    holders = [d["reservationId"] for node in nodes for d in node["devices"]]
    assert holders.count(identifier) == 8
    quota = terminal.run("quota")
    assert "8" in quota.stdout.split()
    released = terminal.run("release", identifier)
    assert released.stdout == f"{identifier}  released\n"
    assert terminal.run("release", identifier).returncode == 0


@pytest.mark.usefixtures("dev")
def test_a_hold_has_its_share_of_the_host_or_what_it_asks_for_in_a_slice_of_its_own(
    terminal: Terminal,
) -> None:
    """Spec 6.2, 10.5: a host of 224 CPUs and 1,976 GiB beside its huge pages, for 8 GPUs."""
    made = reserve(terminal, "--gpus", "2", "--topology", "same-numa", "--for", "1h")
    assert made["hostShare"] == {"vcpu": 55, "memoryGiB": 494}
    binding = made["binding"]
    assert isinstance(binding, dict)
    assert binding["cgroupParent"] == f"bcd-alloc-{binding['allocationId']}.slice"
    shown = terminal.run("get", str(made["id"])).stdout
    assert ("host", "55 CPUs, 494 GiB") in pairs(shown)
    assert ("slice", binding["cgroupParent"]) in pairs(shown)
    terminal.run("release", str(made["id"]))
    more = terminal.run(
        "reserve", "--gpus", "1", "--cpus", "40", "--memory", "1", "--for", "1h"
    ).stdout
    assert ("host", "40 CPUs, 247 GiB") in pairs(more)
    terminal.run("release", dict(pairs(more))["reservation"])
    refused = terminal.run("reserve", "--gpus", "1", "--kubernetes", "--for", "1h")
    assert refused.returncode == 1
    assert "binding: kubernetes needs a pool whose policy allows it" in refused.stderr


def pairs(shown: str) -> list[tuple[str, str]]:
    """Each line's name and value."""
    return [(name, value) for name, value in (line.split(None, 1) for line in shown.splitlines())]


@pytest.mark.usefixtures("dev")
def test_what_fits_nowhere_exits_with_three_and_stays_pending(terminal: Terminal) -> None:
    done = terminal.run("reserve", "--gpus", "9", "--for", "1h", "--wait", "300ms")
    assert done.returncode == 3
    assert "none of 2 nodes fits: devices rejected 2" in done.stdout
    identifier = done.stdout.split()[1]
    assert f"better-compute get {identifier}" in done.stderr
    assert f"better-compute cancel {identifier}" in done.stderr
    assert terminal.run("cancel", identifier).stdout == f"{identifier}  cancelled\n"
    again = terminal.run("cancel", identifier)
    assert again.returncode == 1
    assert again.stderr == ("better-compute: a reservation that is cancelled cannot be cancelled\n")


@pytest.mark.usefixtures("dev")
def test_the_same_key_finds_the_same_reservation(terminal: Terminal) -> None:
    first = reserve(terminal, "--gpus", "1", "--for", "2h", "--key", "mine")
    second = reserve(terminal, "--gpus", "1", "--for", "120m", "--key", "mine")
    assert first["id"] == second["id"]
    other = terminal.run("reserve", "--gpus", "2", "--for", "2h", "--key", "mine")
    assert other.returncode == 1
    assert "idempotency key was used for another request" in other.stderr
    terminal.run("release", str(first["id"]))


@pytest.mark.usefixtures("dev")
def test_a_request_comes_from_a_file_and_options_override_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    request = {
        "devices": [{"class": "gpu", "count": 2, "topology": "same-numa"}],
        "duration": 7200000,
        "labels": {"team": "vision"},
    }
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request))
    made = reserve(terminal, "-f", str(path), "--topology", "nvlink-all", "--dry-run")
    assert made["id"] == ""
    asked = made["request"]
    assert isinstance(asked, dict)
    assert asked["devices"][0]["topology"] == "nvlink-all"
    assert (asked["duration"], asked["labels"]) == ("7200000ms", {"team": "vision"})
    shown = terminal.run("reserve", "-f", str(path), "--dry-run")
    assert shown.stderr == "dry run: nothing was booked; it would be\n"
    assert shown.stdout.startswith("state    placed\n")
    listed = json.loads(terminal.run("list", "-o", "json").stdout)
    assert all(entry["request"]["labels"] == {} for entry in listed)
    mixed = terminal.run("reserve", "-f", str(path), "--gpus", "1")
    assert mixed.returncode == 2
    assert "the file names devices already" in mixed.stderr


@pytest.mark.usefixtures("dev")
@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (("-f", "-"), "{", "<stdin>: is not JSON"),
        (("-f", "-"), "[]", "<stdin>: is not a JSON object"),
        (("-f", "-"), '{"divices": []}', "divices: is not a known field"),
        (("-f", "-"), '{"devices": [{"cnt": 1}]}', "devices[0].cnt: is not a known field"),
        (("-f", "-"), '{"gang": {"size": "two"}}', "gang.size: must be an integer"),
        (("--pool", "nowhere", "--gpus", "1", "--for", "1h"), "", "there is no pool nowhere; dev"),
        (("--gpus", "1", "--for", "20y"), "", "--for"),
    ],
)
def test_bad_input_gets_a_sentence(
    terminal: Terminal, arguments: tuple[str, ...], stdin: str, words: str
) -> None:
    done = terminal.run("reserve", *arguments, stdin=stdin)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpus", "1", "--for", "8x"), "must be a duration such as 8h, 90m, 1d12h, 28800000ms"),
        (("--gpus", "1", "--for", "0h"), "must be longer than zero"),
        (("--gpus", "1", "--for", "8"), "8 has no unit; write 8h, 90m or 1d12h"),
        (("--gpus", "1", "--for", "1h", "--wait", "soon"), "Invalid value for '--wait'"),
        (("--gpus", "1"), "say for how long: --for"),
        (("--for", "1h"), "say what to reserve: --gpus"),
        (("--gpus", "1", "--mig", "1g.10gb:x", "--for", "1h"), "is not PROFILE or PROFILE:N"),
        (("--mig", "1g.10gb:0", "--for", "1h"), "is not PROFILE or PROFILE:N"),
        (("--gpus", "1", "--mig", "1g.10gb", "--model", "H100", "--for", "1h"), "one kind"),
        (("--gpus", "0", "--for", "1h"), "0 is not in the range"),
    ],
)
@pytest.mark.usefixtures("dev")
def test_usage_errors_say_what_is_meant(
    terminal: Terminal, arguments: tuple[str, ...], words: str
) -> None:
    done = terminal.run("reserve", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.usefixtures("dev")
def test_usage_errors_exit_with_two(terminal: Terminal) -> None:
    for arguments in (
        ("frobnicate",),
        ("get",),
        ("dev", "--sim", "0"),
        ("list", "--state", "draft"),
        ("quota", "set", "gpu", "99999999999999999999", "--tenant", "dev"),
        ("quota", "set", "tpu", "1", "--tenant", "dev"),
        ("token", "issue", "alice"),
    ):
        assert terminal.run(*arguments).returncode == 2


@pytest.mark.usefixtures("dev")
def test_a_node_is_named_by_its_host_or_its_id(terminal: Terminal) -> None:
    found = {n["hostname"]: n["id"] for n in json.loads(terminal.run("nodes", "-o", "json").stdout)}
    identifier = found["host001"]
    done = terminal.run("nodes", "cordon", "host001")
    assert done.stdout == f"{identifier}  cordoned\n"
    assert terminal.run("nodes", "uncordon", identifier).stdout == f"{identifier}  ready\n"
    refused = terminal.run("nodes", "revoke", "host9")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no nodes are called host9; name one by its id" in refused.stderr


@pytest.mark.usefixtures("dev")
def test_administrators_make_pools_quotas_and_tokens(terminal: Terminal, tmp_path: Path) -> None:
    pool = terminal.run("pools", "create", "other", "--owner", "acme", "--region", "eu")
    assert pool.stdout.startswith("pool_")
    assert terminal.run("quota", "set", "gpu", "4", "--tenant", "acme").returncode == 0
    issued = terminal.run("token", "issue", "bob", "--tenant", "acme", "--for", "1h")
    assert issued.stdout.count(".") == 2
    joining = terminal.run("token", "join", "--pool", pool.stdout.strip())
    assert joining.stdout.startswith("join_")
    config = tmp_path / "bob.toml"
    (tmp_path / "token").write_text(issued.stdout)
    own = next((terminal.home / "run/better-compute/dev").glob("*.toml")).read_text()
    api, ca_file = own.splitlines()[:2]
    token_file = f'token_file = "{tmp_path / "token"}"'
    config.write_text(f'{api}\n{ca_file}\n{token_file}\ntenant = "acme"\n')
    bob = Terminal(terminal.home, {"BETTER_COMPUTE_CONFIG": str(config)})
    assert "other" in bob.run("pools").stdout
    refused = bob.run("quota", "set", "gpu", "400", "--tenant", "acme")
    assert refused.returncode == 1
    assert "only an administrator may do this" in refused.stderr
    assert "is not for tenant dev" in bob.run("list", "--tenant", "dev").stderr


def test_without_any_configuration_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = Terminal(tmp_path).run("list")
    assert done.returncode == 1
    assert "better-compute dev --sim 4" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("api = 5", "api: Expected `str`, got `int`"),
        ("api", "is not TOML"),
        (
            'api = "localhost:abc"\nca_file = "/a"\ntoken_file = "/b"',
            "must be host:port of the placer, such as placer.example:7445",
        ),
        ('api = "x:1"\nca_file = "/a"\ntoken_file = "/b"\ncolour = 1', "unknown field `colour`"),
        ('api = "localhost:99999"\nca_file = "/a"\ntoken_file = "/b"', "api: must be host:port"),
        ('api = "x:1"\nca_file = "~nobody-x/a"\ntoken_file = "/b"', "ca_file: must be a path"),
        (f"api = {'1' * 5000}", "is not TOML"),
        ('api = "x:1"\nca_file = "/nowhere"\ntoken_file = "/nowhere"', "ca_file: /nowhere cannot"),
    ],
)
def test_a_bad_configuration_is_named(tmp_path: Path, content: str, words: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(content)
    done = Terminal(tmp_path).run("list", "--config", str(config))
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_named(tmp_path: Path, dev: Dev, terminal: Terminal) -> None:
    assert dev.process.poll() is None
    own = next((terminal.home / "run/better-compute/dev").glob("*.toml")).read_text()
    config = tmp_path / "c.toml"
    config.write_text("\n".join(['api = "localhost:1"', *own.splitlines()[1:]]))
    done = terminal.run("list", "--config", str(config))
    assert done.returncode == 1
    assert "localhost:1 does not answer" in done.stderr
    (tmp_path / "other.pem").write_bytes(to_pem([Authority().certificate]))
    ca_line = own.splitlines()[1]
    config.write_text(own.replace(ca_line, f'ca_file = "{tmp_path / "other.pem"}"'))
    wrong = terminal.run("list", "--config", str(config))
    assert wrong.returncode == 1
    assert "shows no certificate for that name under the CA in" in wrong.stderr
    for content, words in (("", "is empty"), ("two\nlines", "holds no bearer token")):
        (tmp_path / "token").write_text(content)
        token_line = own.splitlines()[2]
        config.write_text(own.replace(token_line, f'token_file = "{tmp_path / "token"}"'))
        assert words in terminal.run("list", "--config", str(config)).stderr


def test_a_call_that_an_older_server_does_not_know_is_no_mystery(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(to_pem([Authority().certificate]))
    (tmp_path / "token").write_text("a.b.c")
    settings = ClientSettings(
        api="old.example:7445", ca_file=tmp_path / "ca.pem", token_file=tmp_path / "token"
    )
    unknown = RemoteError(Reason.UNSUPPORTED, "Method not found!", {}, told=False)
    words = Connection(settings)._explained(unknown).message
    assert "old.example:7445 does not know this call; it is older than this" in words
    own = RemoteError(Reason.UNSUPPORTED, "binding: node is not supported yet", {}, told=True)
    assert Connection(settings)._explained(own) is own


def test_instances_of_a_mig_profile_are_reserved_by_its_name(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    with terminal.dev("--sim", "1", "--profile", "hgx-a100-mig"):
        (node,) = json.loads(terminal.run("nodes", "-o", "json").stdout)
        profiles = [d["profile"] for d in node["devices"] if d["class"] == "gpu.mig"]
        made = reserve(terminal, "--mig", f"{profiles[0]}:2", "--gpus", "1", "--for", "1h")
        binding = made["binding"]
        assert isinstance(binding, dict)
        kinds = [name.partition("=")[0] for name in binding["cdiDevices"]]
        assert sorted(kinds) == ["bcd.dev/gpu", "bcd.dev/gpu.mig", "bcd.dev/gpu.mig"]


def test_gpus_of_a_pool_that_shares_them_are_reserved_by_the_slot(tmp_path: Path) -> None:
    """Spec 1.4, 16.4: with MPS, by a simulated daemon; a slot has its part of the host's share."""
    terminal = Terminal(tmp_path)
    with terminal.dev("--sim", "1"):
        update = ("pools", "update", "dev", "--sharing", "mps", "--replicas", "4")
        assert terminal.run(*update).returncode == 0
        made = reserve(terminal, "--slots", "3", "--for", "1h")
        binding = made["binding"]
        assert isinstance(binding, dict)
        names = binding["cdiDevices"]
        assert [name.rpartition("::")[2] for name in names] == ["0", "1", "2"]
        assert len({name.rpartition("::")[0] for name in names}) == 1
        assert all(name.startswith("bcd.dev/gpu.slot=GPU-") for name in names)
        assert made["hostShare"] == {"vcpu": 20, "memoryGiB": 185}
        whole = terminal.run("reserve", "--gpus", "8", "--for", "1h", "--wait", "0")
        assert whole.returncode == 3
        refused = terminal.run("reserve", "--slots", "5", "--for", "1h")
        assert "slots shared by MPS lie on one GPU, which has 4" in refused.stderr


@pytest.mark.usefixtures("dev")
def test_a_full_standard_output_is_no_traceback(terminal: Terminal) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [BETTER_COMPUTE, "pools"],
            env=terminal.environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "better-compute: [Errno 28] No space left on device\n"


@pytest.mark.usefixtures("dev")
@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("pools >&-", 1, "better-compute: standard output is closed\n"),
        ("reserve -f - <&-", 1, "/dev/null: is not JSON"),
        ("list --tenant $'\\xff'", 2, "is not UTF-8"),
        ("get $'rsv_\\xff'", 2, "is not UTF-8"),
    ],
)
def test_what_a_shell_can_do_to_a_program_is_no_traceback(
    terminal: Terminal, command: str, code: int, words: str
) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{BETTER_COMPUTE} {command}"],
        env=terminal.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert words in done.stderr


@pytest.mark.usefixtures("dev")
def test_what_others_wrote_is_shown_as_it_is(terminal: Terminal) -> None:
    odd = "[/x] [red]:smile:"
    done = terminal.run("reserve", "--gpus", "1", "--model", odd, "--for", "1h", "--wait", "0")
    identifier = done.stdout.split()[1]
    try:
        for verb in ("list", "get"):
            shown = terminal.run(*([verb] if verb == "list" else [verb, identifier]))
            assert (shown.returncode, shown.stderr) == (0, "")
            assert odd in shown.stdout
    finally:
        assert terminal.run("cancel", identifier).returncode == 0


def test_a_reservation_whose_api_goes_away_is_named(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    with terminal.dev("--sim", "1") as dev:
        waiting = subprocess.Popen(
            [BETTER_COMPUTE, "reserve", "--gpus", "9", "--for", "1h", "--wait", "6s"],
            env=terminal.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        listed = ""
        while "pending" not in listed:
            listed = terminal.run("list").stdout
        dev.process.kill()
        _, words = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    (identifier,) = re.findall(r"rsv_[a-z2-7]+", listed)
    assert f"the reservation stays: better-compute get {identifier}, or cancel" in words


def test_a_call_that_nobody_answers_is_repeated_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("time.sleep", sleep)
    answers: list[BcdError | str] = [Unavailable("away"), Unavailable("away"), "here"]

    def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, BcdError):
            raise answer
        return answer

    assert (_insist(call, 110.0), now) == ("here", 102.0)
    answers = [Unavailable("away")] * 20
    with pytest.raises(Unavailable):
        _insist(call, 110.0)
    assert now <= 110.0
    answers = [InvalidInput("gpus", "no"), "never asked"]
    with pytest.raises(InvalidInput):
        _insist(call, 200.0)
    assert answers == ["never asked"]


@pytest.mark.usefixtures("dev")
def test_a_window_ahead_is_booked_extended_and_given_up(terminal: Terminal) -> None:
    """Booked for later is done: nothing is waited for."""
    made = reserve(terminal, "--gpus", "2", "--for", "1h", "--at", "+3h", "--spot")
    identifier = str(made["id"])
    assert (made["state"], made["request"]["spot"]) == ("placed", True)  # type: ignore[index]
    end: int = made["during"]["end"]  # type: ignore[index]
    by = terminal.run("extend", identifier, "--by", "30m", "-o", "json")
    assert by.returncode == 0, by.stderr
    answer = json.loads(by.stdout)
    assert (answer["extended"], answer["reservation"]["during"]["end"]) == (True, end + 1_800_000)
    reached = terminal.run("extend", identifier, "--until", "+3h")
    assert (reached.returncode, reached.stderr) == (0, "it lasts that long already\n")
    assert terminal.run("release", identifier).stdout.split() == [identifier, "released"]
    over = terminal.run("extend", identifier, "--by", "30m")
    assert over.returncode == 1
    assert "a reservation that is released cannot be extended" in over.stderr


@pytest.mark.usefixtures("dev")
def test_who_waits_for_a_spot_reservation_to_yield_is_told_until_when(terminal: Terminal) -> None:
    """Spec 7.7: the preemptor begins when the grace is over."""
    spot = [str(reserve(terminal, "--gpus", "8", "--for", "1h", "--spot")["id"]) for _ in range(2)]
    later = terminal.run("reserve", "--gpus", "8", "--for", "1h", "--wait", "1s")
    assert later.returncode == 3
    begins = dict(pairs(later.stdout))["from"]
    assert f"still placed, and begins at {begins}; look again" in later.stderr
    yielding = [terminal.run("get", identifier).stdout for identifier in spot]
    assert sum("Preempting" in shown for shown in yielding) == 1
    for identifier in (*spot, dict(pairs(later.stdout))["reservation"]):
        assert terminal.run("release", identifier).returncode == 0


@pytest.mark.usefixtures("dev")
def test_a_window_that_begins_within_the_wait_is_waited_for(terminal: Terminal) -> None:
    made = reserve(terminal, "--gpus", "1", "--for", "1h", "--at", "+2s")
    assert made["state"] == "active"
    assert made["during"]["start"] == made["request"]["start"]  # type: ignore[index]
    assert terminal.run("release", str(made["id"])).returncode == 0


@pytest.mark.usefixtures("dev")
def test_an_extension_with_somebody_in_the_way_says_until_when(terminal: Terminal) -> None:
    first = reserve(terminal, "--gpus", "8", "--for", "1h", "--at", "+10h")
    start: int = first["during"]["end"]  # type: ignore[index]
    others = [
        reserve(terminal, "--gpus", "8", "--for", "1h", "--at", at)
        for at in (_utc(start + 600_000), _utc(start + 600_000))
    ]
    refused = terminal.run("extend", str(first["id"]), "--by", "1h")
    assert refused.returncode == 1
    assert "not extended: another booking is in the way; it can last until" in refused.stderr
    for made in (first, *others):
        assert terminal.run("cancel", str(made["id"])).returncode == 0


def _utc(epoch_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(epoch_ms / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{epoch_ms % 1000:03} UTC"


@pytest.mark.usefixtures("dev")
def test_a_lease_is_shown_and_renewed_and_nothing_else_is(terminal: Terminal) -> None:
    made = reserve(terminal, "--gpus", "1", "--for", "1h", "--lease", "10m")
    identifier = str(made["id"])
    until: int = made["leaseUntil"]  # type: ignore[assignment]
    renewed = json.loads(terminal.run("renew", identifier, "-o", "json").stdout)
    assert renewed["leaseUntil"] > until
    shown = terminal.run("get", identifier).stdout
    assert "lease until" in shown
    assert "before the start" not in shown
    assert terminal.run("release", identifier).returncode == 0
    ended = f"better-compute events {identifier} says when and why"
    assert ended not in shown
    assert ended in terminal.run("get", identifier).stdout
    ahead = ("--gpus", "1", "--for", "1h", "--lease", "10m", "--at", "+1h")
    early = terminal.run("reserve", *ahead).stdout
    assert ", before the start: renew it, or it is released" in early
    assert terminal.run("release", early.split()[1]).returncode == 0
    plain = reserve(terminal, "--gpus", "1", "--for", "1h")
    refused = terminal.run("renew", str(plain["id"]))
    assert (refused.returncode, "leaseSeconds" in refused.stderr) == (1, True)
    late = terminal.run("cancel", str(plain["id"]))
    assert "is active cannot be cancelled; release it instead" in late.stderr
    assert terminal.run("release", str(plain["id"])).returncode == 0


@pytest.mark.usefixtures("dev")
def test_reservations_are_handed_to_a_successor(terminal: Terminal) -> None:
    made = reserve(terminal, "--gpus", "1", "--for", "1h")
    owner = str(made["ownerIdentityId"])
    done = terminal.run("reassign", "--from", owner, "--to", "dev|successor", "--reason", "left")
    assert (done.returncode, done.stdout) == (0, "1 reservation reassigned\n"), done.stderr
    shown = json.loads(terminal.run("get", str(made["id"]), "-o", "json").stdout)
    assert shown["ownerIdentityId"] == "dev|successor"
    nobody = terminal.run("reassign", "--from", "dev|successor", "--to", "alice")
    assert (nobody.returncode, "toOwner: must be issuer|subject" in nobody.stderr) == (1, True)
    assert terminal.run("release", str(made["id"])).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["extend", "rsv_x"], "--until, or how much longer, --by"),
        (["extend", "rsv_x", "--by", "1h", "--until", "+1h"], "only one of --by and --until"),
        (["extend", "rsv_x", "--until", "2026-12-07 09:00"], "has no zone"),
        (["reserve", "--gpus", "1", "--for", "1h", "--at", "tomorrow"], "with its zone"),
        (["reserve", "--gpus", "1", "--for", "1h", "--at", "-2h"], "ahead are written +2h"),
        (["quota", "set", "gpu", "-1", "--tenant", "dev"], "-1 is not in the range 0<=x<="),
        (["reserve", "--gpus", "1", "--for", "1h", "--lease", "5ms"], "whole seconds"),
        (["reassign", "--from", "a"], "--to"),
    ],
)
@pytest.mark.usefixtures("dev")
def test_terms_that_make_no_sense_are_usage_errors(
    terminal: Terminal, arguments: list[str], words: str
) -> None:
    done = terminal.run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.usefixtures("dev")
def test_an_active_hold_stands_through_its_extension(terminal: Terminal) -> None:
    """The node is told another end, and keeps the same hold."""
    made = reserve(terminal, "--gpus", "1", "--for", "1h")
    identifier = str(made["id"])
    before = made["binding"]
    assert terminal.run("extend", identifier, "--by", "1h").returncode == 0
    for _ in range(5):
        after = json.loads(terminal.run("get", identifier, "-o", "json").stdout)
        assert (after["state"], after["conditions"]) == ("active", [])
        assert after["binding"] == before
    assert terminal.run("release", identifier).returncode == 0

"""``bcd holds``, ``bcd exec`` and ``bcd doctor`` as an operator runs them, on a made host."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bcd.cli import bcd_doctor, bcd_holds
from bcd.model.assignment import Limits
from bcd.node.host.doctor.finding import Finding, Level
from tests.node.host.made_host import MadeHost
from tests.node.world import alloc_id, node_id

HOME = Path(__file__).parents[2]


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    made = MadeHost(tmp_path / "root")
    made.hold(2)
    configure(made.root)
    return made


def configure(root: Path) -> Path:
    config = root / "bcd.toml"
    config.write_text(
        '[gateway]\naddress = "127.0.0.1:1"\nenroll_address = "127.0.0.1:1"\n'
        f'[paths]\nroot = "{root}"\nsocket = "{root}/s"\n'
    )
    return config


def bcd(root: Path, verb: str, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a verb on the host to its end."""
    return subprocess.run(
        [sys.executable, "-m", "bcd.cli.bcd", verb, "--config", str(root / "bcd.toml"), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(HOME)} | ({"PATH": path} if path else {}),
    )


def sentence(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one sentence of a refusal."""
    assert (done.returncode, done.stdout) == (code, ""), done
    [line] = done.stderr.splitlines()
    assert line.startswith("bcd: ")
    return line


# holds


def test_holds_are_shown_without_a_daemon(host: MadeHost) -> None:
    host.run_in_slice(1, (41, "python3"))
    done = bcd(host.root, "holds")
    assert done.returncode == 0
    assert "no running daemon says more" in done.stderr
    assert done.stdout.splitlines() == [
        f"{alloc_id(1)}  bound",
        "  device   bcd.dev/gpu=GPU-1",
        "  limits   8 CPUs, 64 GiB, 0 pages of 1 GiB",
        f"  slice    bcd-alloc-{alloc_id(1)}.slice, in it: python3 (41)",
        f"  env      {host.env(1)}",
        f"{alloc_id(2)}  bound",
        "  device   bcd.dev/gpu=GPU-2",
        f"  env      {host.env(2)}",
    ]


def test_holds_for_programs_have_every_part(host: MadeHost) -> None:
    host.env(2).unlink()
    document = json.loads(bcd(host.root, "holds", "-o", "json").stdout)
    assert document["daemon"] is False
    first, second = document["holds"]
    assert first["slice"] == {
        "name": f"bcd-alloc-{alloc_id(1)}.slice",
        "active": True,
        "empty": True,
        "processes": [],
    }
    assert first["limits"]["memory_bytes"] == 64 << 30
    assert (second["state"], second["problems"]) == ("incomplete", ["its env file is missing"])


def test_a_host_without_holds_says_so(host: MadeHost) -> None:
    for number in (1, 2):
        host.spec(number).unlink()
        host.env(number).unlink()
    (host.root / host.slice(1)).rename(host.root / "gone")
    done = bcd(host.root, "holds")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no holds on this host" in done.stderr


@pytest.mark.parametrize(
    ("booked", "text"),
    [
        (
            Limits(cpu_millis=1500, memory_bytes=3 << 29, hugepages_1gi=2, cpus="0-3", mems="0"),
            "1.5 CPUs, 1.5 GiB, 2 pages of 1 GiB, on CPUs 0-3, memory of NUMA nodes 0",
        ),
        (
            Limits(cpu_millis=0, memory_bytes=0, hugepages_1gi=0),
            "any CPU time, any memory, 0 pages of 1 GiB",
        ),
    ],
)
def test_limits_are_words(booked: Limits, text: str) -> None:
    assert bcd_holds._limits(booked) == text


def test_an_allocation_that_waits_is_shown_with_what_it_waits_for() -> None:
    waits = bcd_holds._Outcome("alloc_1", "waiting", message="a process computes on GPU-1")
    [document] = bcd_holds._documents((), (waits,))
    assert list(bcd_holds._lines(document)) == [
        "alloc_1  waiting",
        "  because  a process computes on GPU-1",
    ]


# exec

SCRIPT = "from bcd.cli import bcd_daemon; bcd_daemon()"  # as the installed command has it
SYSTEMD_RUN = """
echo "$@" > {log}
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def systemd_run(host: MadeHost) -> Path:
    """A stand-in that notes its arguments and becomes the command."""
    log = host.root / "systemd-run.log"
    host.program("systemd-run", SYSTEMD_RUN.format(log=log))
    return log


def path_of(host: MadeHost) -> str:
    return f"{host.root}/usr/bin:{os.environ['PATH']}"


def test_a_command_runs_in_the_slice_with_the_variables_of_its_hold(
    host: MadeHost, systemd_run: Path
) -> None:
    words = (str(alloc_id(1)), "--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; env; exit 7')
    done = bcd(host.root, "exec", *words, path=path_of(host))
    assert (done.returncode, done.stderr) == (7, "")
    seen = done.stdout.splitlines()
    assert seen[0] == "GPU-1"
    assert f"BCD_ALLOCATION_ID={alloc_id(1)}" in seen
    assert f"BCD_NODE_ID={node_id()}" in seen
    assert not [line for line in seen if line.startswith("GRPC_ENABLE")]
    assert systemd_run.read_text().startswith(
        f"--scope --quiet --collect --slice=bcd-alloc-{alloc_id(1)}.slice -- sh -c"
    )


IGNORED = "sed -n s/SigIgn:.//p /proc/self/status"


def test_a_command_ignores_no_signal_that_its_caller_did_not(host: MadeHost) -> None:
    done = bcd(host.root, "exec", str(alloc_id(2)), "--", "sh", "-c", IGNORED)
    ignored = int(done.stdout, 16)
    assert [n for n in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (n - 1) & 1] == []


def test_what_an_outer_hold_says_does_not_reach_the_command(
    host: MadeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BCD_CGROUP_PARENT", "another.slice")
    monkeypatch.setenv("BCD_NODE_ID", "node_of_old")
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    done = bcd(host.root, "exec", str(alloc_id(2)), "--", "env")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    ours = {"BCD_ALLOCATION_ID", "BCD_NODE_ID", "BCD_DEVICES"}
    assert {name for name in found if name.startswith("BCD_")} == ours
    assert "GRPC_VERBOSITY" not in found
    assert found["BCD_NODE_ID"] == node_id()


CLOSED = "standard output: is closed; open it"


@pytest.mark.parametrize(
    ("words", "closed", "code", "said"),
    [
        ("holds", ">&-", 1, CLOSED),
        ("holds", ">&- 2>&-", 1, ""),
        ("holds", "<&- >&- 2>&-", 1, ""),
        ("doctor", ">&-", 1, CLOSED),
        ("status", ">&-", 1, "no bcd answers there"),
        ("exec {} -- sh -c 'exit 7'", ">&-", 7, ""),
        ("exec {} -- sh -c 'exit 7'", "<&- >&- 2>&-", 7, ""),
        ("exec {} -- sh -c 'echo word'", ">&-", 1, "sh: "),
        ("exec {} -- sh -c 'echo word >&2'", "<&- >&-", 0, "word"),
        ("run", ">&-", 78, "not enrolled"),
    ],
)
def test_closed_streams_end_in_no_traceback(
    host: MadeHost, words: str, closed: str, code: int, said: str
) -> None:
    verb, _, rest = words.format(alloc_id(2)).partition(" ")
    if verb == "run":
        (host.paths.state / "credentials.pem").unlink()
    command = f"{sys.executable} -m bcd.cli.bcd {verb} --config {host.root}/bcd.toml {rest}"
    done = subprocess.run(
        ["bash", "-c", f"{command} {closed}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(HOME)},
    )
    assert (done.returncode, done.stdout) == (code, ""), done
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hold_without_limits_needs_no_systemd(host: MadeHost) -> None:
    done = bcd(host.root, "exec", str(alloc_id(2)), "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (done.returncode, done.stdout) == (0, "GPU-2\n")


def test_arguments_are_passed_on_as_they_are(host: MadeHost) -> None:
    words = ["printf", "[%s]", "--", "-o", "a b", "*", "$HOME", ""]
    done = bcd(host.root, "exec", str(alloc_id(2)), "--", *words)
    assert done.stdout == "[--][-o][a b][*][$HOME][]"


def test_a_signal_ends_it_as_it_ends_the_command(host: MadeHost) -> None:
    done = bcd(host.root, "exec", str(alloc_id(2)), "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("start", [("-m", "bcd.cli.bcd"), ("-c", SCRIPT)])
def test_the_command_gets_the_callers_environment_and_the_holds_and_nothing_else(
    host: MadeHost, start: tuple[str, str]
) -> None:
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HOME), "LC_ALL": "C.UTF-8", "MINE": "1"}
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    words = ["exec", "--config", str(host.root / "bcd.toml"), str(alloc_id(2)), "--"]
    done = subprocess.run(
        [sys.executable, *start, *words, sys.executable, "-c", show],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=given,
    )
    hold = dict(line.split("=", 1) for line in host.env(2).read_text().splitlines())
    assert json.loads(done.stdout) == given | hold


def test_a_pipe_that_closes_ends_the_command_as_it_would_without_bcd(host: MadeHost) -> None:
    shell = ["sh", "-c", "grep SigIgn /proc/self/status"]
    done = bcd(host.root, "exec", str(alloc_id(2)), "--", *shell)
    assert int(done.stdout.split()[1], 16) & 1 << (signal.SIGPIPE - 1) == 0


@pytest.mark.parametrize(
    ("program", "code"),
    [("no-such-program", 127), ("/no/such/program", 127), ("/etc", 126), ("/etc/passwd", 126)],
)
def test_what_cannot_be_run_has_a_shells_code(host: MadeHost, program: str, code: int) -> None:
    line = sentence(bcd(host.root, "exec", str(alloc_id(2)), "--", program), code)
    assert program in line


def test_a_file_that_is_no_program_has_a_shells_code(host: MadeHost) -> None:
    path = host.write("usr/bin/text", "\0\0\0")
    path.chmod(0o755)
    assert "cannot be run" in sentence(
        bcd(host.root, "exec", str(alloc_id(2)), "--", str(path)), 126
    )


def test_a_command_is_needed(host: MadeHost) -> None:
    for words in ([], ["--"], ["true"]):
        done = bcd(host.root, "exec", str(alloc_id(2)), *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "exec needs a COMMAND after --" in done.stderr


def test_an_allocation_that_is_not_here_is_refused(host: MadeHost) -> None:
    for name in (str(alloc_id(9)), "../../etc", "a\x1b[2J"):
        line = sentence(bcd(host.root, "exec", name, "--", "true"))
        assert "no hold of this host; see: bcd holds" in line
        assert line.isprintable()


def test_a_hold_that_does_not_stand_whole_is_refused(host: MadeHost) -> None:
    host.env(2).unlink()
    assert "its env file is missing" in sentence(
        bcd(host.root, "exec", str(alloc_id(2)), "--", "true")
    )


def test_a_slice_that_is_not_active_is_refused(host: MadeHost, systemd_run: Path) -> None:
    host.remove(f"{host.slice(1)}/cgroup.events")
    done = bcd(host.root, "exec", str(alloc_id(1)), "--", "true", path=path_of(host))
    assert "is not active" in sentence(done)
    assert not systemd_run.exists()


def test_a_slice_without_the_booked_limits_is_refused(host: MadeHost, systemd_run: Path) -> None:
    host.write(f"{host.slice(1)}/memory.max", "max\n")
    done = bcd(host.root, "exec", str(alloc_id(1)), "--", "true", path=path_of(host))
    assert "would run unlimited" in sentence(done)
    assert not systemd_run.exists()


def test_without_systemd_run_a_hold_with_limits_is_refused(host: MadeHost) -> None:
    empty = host.root / "empty"
    empty.mkdir()
    done = bcd(host.root, "exec", str(alloc_id(1)), "--", "true", path=str(empty))
    assert "systemd-run is not installed" in sentence(done)


def test_a_simulated_host_refuses_limits_that_would_not_hold(host: MadeHost) -> None:
    host.write("sim.json", '{"profile":"dgx-h100","seed":"s","hostname":"h"}')
    host.write(
        f"run/bcd-sim/slices/bcd-alloc-{alloc_id(1)}.slice",
        '{"cpu_millis":8000,"memory_bytes":68719476736,"hugepages_1gi":0}',
    )
    line = sentence(bcd(host.root, "exec", str(alloc_id(1)), "--", "true"))
    assert "a simulated host has no slices" in line


# doctor


def test_the_doctor_names_what_is_wrong_why_and_the_remedy(host: MadeHost) -> None:
    done = bcd(host.root, "doctor")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("failed    daemon "))
    assert "no bcd answers there" in lines[at]
    assert lines[at + 1].strip().startswith("why: it binds and releases")
    assert (
        lines[at + 2].strip() == "fix: systemctl start bcd.service; journalctl -u bcd.service -n 50"
    )
    assert "checks" in done.stderr


def test_the_doctor_for_programs_says_the_same(host: MadeHost) -> None:
    document = json.loads(bcd(host.root, "doctor", "-o", "json").stdout)
    assert document["ok"] is False
    found = {finding["name"]: finding for finding in document["findings"]}
    assert set(found["daemon"]) == {"name", "level", "found", "why", "fix"}
    assert found["driver"]["level"] == "ok"
    assert found["nvml"]["level"] == "failed"
    assert "libnvidia-ml.so.1" in found["nvml"]["found"]


def test_settings_that_cannot_be_read_are_the_one_finding(host: MadeHost) -> None:
    (host.root / "bcd.toml").write_text("[gateway\n")
    done = bcd(host.root, "doctor")
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["failed", "why:", "fix:"]
    assert "is not TOML" in done.stdout


def test_the_options_are_in_the_help() -> None:
    done = bcd(HOME, "exec", "--help")
    assert "bcd exec [-h] [--config FILE] ALLOCATION -- COMMAND" in done.stdout


def test_the_doctor_counts_in_plain_words() -> None:
    def finding(level: Level) -> Finding:
        return Finding(name="x", level=level, found="", why="", fix="")

    levels = (Level.OK, Level.FAILED, Level.WARNING, Level.SKIPPED)
    assert bcd_doctor._summary([finding(Level.OK)]) == "1 check, 0 failed, 0 warnings"
    assert bcd_doctor._summary(list(map(finding, levels))) == (
        "4 checks, 1 failed, 1 warning, 1 skipped"
    )

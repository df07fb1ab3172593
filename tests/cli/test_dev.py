"""``better-compute dev``: several beside each other, and one that goes on where it stopped."""

import json
import re
import signal
from pathlib import Path

from tests.cli.dev_system import Terminal


def test_two_systems_side_by_side_do_not_collide(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    with terminal.dev("--sim", "1") as one:
        with terminal.dev("--sim", "1", "--profile", "l40s-pcie") as other:
            torn = terminal.run("list")
            assert torn.returncode == 1
            assert "several dev systems are running; choose one:" in torn.stderr
            name, path = other.line.partition("terminal: ")[2].split()[0].split("=")
            assert f"export {name}={path}" in torn.stderr
            chosen = Terminal(tmp_path, {name: path})
            (node,) = json.loads(chosen.run("nodes", "-o", "json").stdout)
            assert "L40S" in node["devices"][0]["model"]
            code, words = other.end()
            assert code == 0
            assert words.startswith("state and log (dev.log) are in ")
            assert words.count("\n") == 1
        (node,) = json.loads(terminal.run("nodes", "-o", "json").stdout)
        assert "H100" in node["devices"][0]["model"]
        code, words = one.end()
        assert (code, words.count("\n")) == (0, 1)
    assert not list((tmp_path / "run/better-compute/dev").iterdir())


def test_with_a_state_folder_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    state = tmp_path / "state"
    with terminal.dev("--sim", "1", "--state", str(state)):
        done = terminal.run("reserve", "--gpus", "2", "--for", "8h", "-o", "json")
        before = json.loads(done.stdout)
    specs = list(state.glob("hosts/*/etc/cdi/bcd-*.json"))
    assert len(specs) == 1
    with terminal.dev("--sim", "1", "--state", str(state)):
        after = json.loads(terminal.run("get", before["id"], "-o", "json").stdout)
        assert after["state"] == "active"
        assert after["bindings"] == before["bindings"]
        second = terminal.dev_refused("--sim", "1", "--state", str(state))
        assert "is in use by another process" in second
    assert list(state.glob("hosts/*/etc/cdi/bcd-*.json")) == specs


def test_a_state_folder_keeps_its_hosts_and_their_profile(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    state = ("--state", str(tmp_path / "state"))
    with terminal.dev("--sim", "2", "--profile", "l40s-pcie", *state):
        pass
    refused = terminal.dev_refused("--sim", "2", "--profile", "dgx-h100", *state)
    assert "was made for --profile l40s-pcie; leave the option out" in refused
    with terminal.dev("--sim", "1", *state) as again:
        assert "ready: 2 hosts" in again.line
        found = json.loads(terminal.run("nodes", "-o", "json").stdout)
        assert {node["devices"][0]["model"] for node in found} == {"NVIDIA L40S"}
        assert "the state has 2 hosts; all of them run" in again.end()[1]


def test_more_pools_show_what_a_pool_of_whole_gpus_cannot(tmp_path: Path) -> None:
    """Spec 1.4, 1.5: instances of MIG GPUs and slots of shared ones, beside whole GPUs."""
    terminal = Terminal(tmp_path)
    state = ("--sim", "1", "--state", str(tmp_path / "state"))
    with terminal.dev(*state, "--more-pools") as dev:
        pools = json.loads(terminal.run("pools", "-o", "json").stdout)
        assert {pool["name"] for pool in pools} == {"dev", "mig", "shared"}
        assert f"ready: 3 hosts, {sum(pool['gpus'] for pool in pools)} GPUs" in dev.line
        for words in (
            ("--gpus", "8"),
            ("--pool", "mig", "--mig", "1g.10gb"),
            ("--pool", "shared", "--slots", "1"),
        ):
            done = terminal.run("reserve", *words, "--for", "1h")
            assert done.returncode == 0, done.stdout + done.stderr
        shown = terminal.run("nodes").stdout
        assert "0/8 gpu  " in shown
        assert "10/11 gpu.mig" in shown
        assert "3/4 gpu, 15/16 gpu.slot" in shown  # a GPU of which a slot is taken is not free
    with terminal.dev(*state):
        assert len(json.loads(terminal.run("nodes", "-o", "json").stdout)) == 3


def test_an_agent_of_dev_must_have_what_the_policy_says_confirmed(tmp_path: Path) -> None:
    """Spec 13, with the policies that are shipped to start from."""
    terminal = Terminal(tmp_path)
    state = tmp_path / "state"
    policy = str(Path(__file__).parents[2] / "packaging")
    with terminal.dev("--sim", "1", "--state", str(state), "--policy", policy):
        agent = Terminal(tmp_path, {"BETTER_COMPUTE_CONFIG": str(state / "agent.toml")})
        assert agent.run("reserve", "--gpus", "1", "--for", "1h").returncode == 0
        asks = ("reserve", "--gpus", "4", "--for", "1h", "--key", "four")
        rehearsed = agent.run(*asks, "--dry-run")
        assert rehearsed.returncode == 3
        assert "a person would be asked to confirm this" in rehearsed.stderr
        assert "--key" not in rehearsed.stderr
        held = agent.run(*asks)
        assert (held.returncode, held.stdout) == (3, "")
        assert "developer must confirm what agent asks for" in held.stderr
        assert "the key is --key four" in held.stderr
        told = terminal.run("events", "--type", "awaiting-confirmation").stdout
        assert re.search(r"expiresAt \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", told)
        (waiting,) = json.loads(terminal.run("confirm", "-o", "json").stdout)
        assert agent.run("confirm", "approve", waiting["id"]).returncode == 1
        assert terminal.run("confirm", "approve", waiting["id"]).returncode == 0
        assert agent.run(*asks).returncode == 0
        over = terminal.run("reserve", "--gpus", "9", "--for", "1h")
        assert "forbidden by h100-cap" in over.stderr


def test_any_name_of_a_folder_will_do(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    with terminal.dev("--sim", "1", "--state", str(tmp_path / 'a "b\\ \n\u00e9')):
        assert terminal.run("list").returncode == 0


def test_a_closed_terminal_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, {"TMPDIR": str(tmp_path)})
    with terminal.dev("--sim", "1") as closed:
        closed.process.send_signal(signal.SIGHUP)
        assert closed.process.wait(60) == 0
    assert not list(tmp_path.glob("better-compute-*"))
    assert not list((tmp_path / "run/better-compute/dev").iterdir())


def test_killed_it_leaves_nothing_that_another_terminal_would_find(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    with terminal.dev("--sim", "1") as killed:
        killed.process.kill()
        killed.process.wait()
    assert "there is no configuration" in terminal.run("list").stderr
    with terminal.dev("--sim", "1"):
        assert terminal.run("list").returncode == 0


def test_an_unknown_profile_is_named(tmp_path: Path) -> None:
    done = Terminal(tmp_path).run("dev", "--sim", "1", "--profile", "dgx-9000")
    assert done.returncode == 2
    assert "'dgx-9000' is not one of 'dgx-h100'" in done.stderr


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made" in Terminal(tmp_path).dev_refused(
        "--sim", "1", "--state", str(tmp_path / "file" / "state")
    )
    blocked = Terminal(tmp_path, {"XDG_RUNTIME_DIR": str(tmp_path / "file")})
    assert "set XDG_RUNTIME_DIR to a folder of yours" in blocked.dev_refused("--sim", "1")

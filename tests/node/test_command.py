"""The command ``bcd`` as people and systemd run it: what it prints, and how it ends.

Bad input of any kind ends in one sentence that names the file and the remedy, never in a
traceback, and never costs a hold.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcd.cli import bcd_enroll, bcd_status
from bcd.cli.bcd_enroll import how_to_start
from bcd.model.errors import BadConfiguration, BrokenFile, Unavailable
from bcd.model.report import Bound
from bcd.node.identity import load_identity
from bcd.node.pending import attempt_for
from tests.node.fake_gateway import FakeGateway
from tests.node.process import start_bcd, write_config
from tests.node.world import Site, alloc_id, assignment, eventually, limits, node_id

HOME = Path(__file__).parents[2]


def bcd(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "bcd.cli.bcd", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(HOME)},
    )


def sentence(done: subprocess.CompletedProcess[str], code: int = 78) -> str:
    """The one sentence that a refused command ends with, beside its log lines."""
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("bcd: ")
    return line


@pytest.fixture
def config(site: Site) -> Path:
    return write_config(site)


async def held(site: Site, gateway: FakeGateway) -> None:
    """A hold stands on the host, and its daemon has ended."""
    gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.said(Bound)))
    assert await daemon.end() == 0, daemon.log()


def test_usage_is_shown_with_its_own_exit_code() -> None:
    done = bcd("dance")
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: bcd" in done.stderr
    assert "status" in bcd("--help").stdout


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        (("--config", "x.toml", "status"), "status --config"),
        (("-o", "json", "holds"), "holds -o"),
        (("--config=x.toml", "exec", "alloc_1", "--", "true"), "exec --config=x.toml"),
    ],
)
def test_options_before_the_verb_are_told_where_they_belong(
    words: tuple[str, ...], verb: str
) -> None:
    done = bcd(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"options come after the verb, as in: bcd {verb}" in done.stderr


def test_without_a_verb_it_runs_even_with_a_file_that_is_called_like_one() -> None:
    assert "status: cannot be read" in sentence(bcd("--config", "status", "--sim", "dgx-h100"))


def test_an_unknown_profile_is_refused_with_the_known_ones(config: Path) -> None:
    line = sentence(bcd("--sim", "dgx-9000", "--config", str(config)))
    assert "dgx-h100, hgx-a100-mig, l40s-pcie" in line


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    line = sentence(bcd("run", "--config", str(tmp_path / "none.toml")))
    assert f"{tmp_path}/none.toml" in line
    assert "--config" in line


def test_a_host_that_is_not_enrolled_is_told_how(gateway: FakeGateway, tmp_path: Path) -> None:
    config = write_config(Site(tmp_path / "host", gateway, enrolled=False))
    line = sentence(bcd("--sim", "dgx-h100", "--config", str(config)))
    assert "run bcd enroll" in line


Damage = Callable[[Site], None]


def overwrite(name: str, content: bytes) -> Damage:
    def damage(site: Site) -> None:
        path = site.state / name
        path.write_bytes(content)
        os.chmod(path, 0o600)

    return damage


def open_to_all(site: Site) -> None:
    os.chmod(site.state / "credentials.pem", 0o644)


def folder(name: str) -> Damage:
    def damage(site: Site) -> None:
        (site.state / name).unlink(missing_ok=True)
        (site.state / name).mkdir()

    return damage


def open_folder(site: Site) -> None:
    os.chmod(site.state, 0o777)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no key": (overwrite("credentials.pem", b""), "credentials.pem"),
    "no certificate": (overwrite("credentials.pem", b"garbage\n" * 99), "credentials.pem"),
    "readable key": (open_to_all, "chmod 600"),
    "no state": (overwrite("desired.bin", b""), "desired.bin"),
    "another state": (overwrite("desired.bin", b"\x0a\x02hi"), "desired.bin"),
    "garbage state": (overwrite("desired.bin", os.urandom(4096)), "desired.bin"),
    "no outbox": (overwrite("outbox.bin", b""), "outbox.bin"),
    "later outbox": (overwrite("outbox.bin", b"bcd-outbox 2\n" + bytes(99)), "outbox.bin"),
    "folder for state": (folder("desired.bin"), "desired.bin"),
    "folder for outbox": (folder("outbox.bin"), "outbox.bin"),
    "folder for key": (folder("credentials.pem"), "credentials.pem"),
    "writable folder": (open_folder, "chmod 700"),
    "huge outbox": (overwrite("outbox.bin", bytes(65 << 20)), "outbox.bin"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_broken_file_of_its_own_stops_the_daemon_and_costs_no_hold(
    site: Site, gateway: FakeGateway, config: Path, damage: str
) -> None:
    await held(site, gateway)
    spec = site.cdi / f"bcd-{alloc_id(1)}.json"
    before = (spec.read_bytes(), spec.stat().st_mtime_ns, site.envs())
    ruin, named = DAMAGES[damage]
    ruin(site)
    line = sentence(await asyncio.to_thread(bcd, "--sim", "dgx-h100", "--config", str(config)))
    assert named in line
    assert str(site.state) in line
    assert (spec.read_bytes(), spec.stat().st_mtime_ns, site.envs()) == before


@pytest.mark.parametrize("place", ["etc/cdi", "run/bcd/allocations", "proc"])
def test_a_file_in_a_folders_place_is_named(site: Site, config: Path, place: str) -> None:
    path = site.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    line = sentence(bcd("--sim", "dgx-h100", "--config", str(config)))
    assert str(path) in line
    assert "mend that" in line or "away" in line


async def test_a_folder_named_like_a_temporary_file_of_ours_is_left_alone(
    site: Site, gateway: FakeGateway
) -> None:
    places = [site.state / ".outbox.bin.00112233.tmp", site.cdi / ".bcd-x.json.00112233.tmp"]
    for path in places:
        path.mkdir(parents=True)
    await held(site, gateway)
    assert all(path.is_dir() for path in places)


async def test_a_file_where_runtimes_look_for_other_specs_costs_nothing(
    site: Site, gateway: FakeGateway
) -> None:
    (site.root / "var/run").mkdir(parents=True)
    (site.root / "var/run/cdi").touch()
    await held(site, gateway)


async def test_after_the_remedy_the_hold_is_known_again(site: Site, gateway: FakeGateway) -> None:
    await held(site, gateway)
    for name in ("desired.bin", "outbox.bin"):
        (site.state / name).rename(site.state / f"{name}.broken")
    gateway.reports.clear()
    gateway.desired.clear()
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.said(Bound)))
    assert await daemon.end() == 0
    assert site.specs() == [f"bcd-{alloc_id(1)}.json"]


async def test_a_second_daemon_on_one_folder_is_refused(
    site: Site, gateway: FakeGateway, config: Path
) -> None:
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.streams))
    done = await asyncio.to_thread(bcd, "--sim", "dgx-h100", "--config", str(config))
    assert "another bcd runs" in sentence(done, 1)
    assert await daemon.end() == 0


# Enrolment.


@pytest.fixture
def fresh(gateway: FakeGateway, tmp_path: Path) -> Site:
    return Site(tmp_path / "fresh", gateway, enrolled=False)


@pytest.mark.parametrize("by", ["file", "stdin"])
async def test_a_host_enrols_with_a_token_that_is_no_argument(
    gateway: FakeGateway, fresh: Site, by: str
) -> None:
    config, token = write_config(fresh), gateway.token(fresh.node_id)
    path = fresh.root / "token"
    path.write_text(token + "\n")
    where = str(path) if by == "file" else "-"
    done = await asyncio.to_thread(
        bcd, "enroll", "--config", str(config), "--token-file", where, stdin=token
    )
    assert done.returncode == 0, done
    assert done.stdout.startswith(f"enrolled as spiffe://test.example/node/{fresh.node_id}")
    assert token.split(".")[1] not in done.stdout + done.stderr
    assert load_identity(fresh.state).node_id == fresh.node_id


async def test_the_gateways_address_may_be_given(gateway: FakeGateway, fresh: Site) -> None:
    config = write_config(fresh)
    config.write_text(config.read_text().replace(gateway.enroll_address, "nowhere.example:1"))
    path = fresh.root / "token"
    path.write_text(gateway.token(fresh.node_id))
    arguments = ("enroll", "--config", str(config), "--token-file", str(path))
    done = await asyncio.to_thread(bcd, *arguments, "--gateway", gateway.enroll_address)
    assert done.returncode == 0, done


def cut_short(*_arguments: object) -> None:
    raise KeyboardInterrupt


async def test_an_enrolment_cut_short_goes_on_with_the_same_token(
    gateway: FakeGateway, fresh: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = write_config(fresh), fresh.root / "token"
    path.write_text(gateway.token(fresh.node_id))
    with monkeypatch.context() as patch:
        patch.setattr(bcd_enroll, "save_identity", cut_short)  # the token is spent by now
        with pytest.raises(KeyboardInterrupt):
            await asyncio.to_thread(bcd_enroll.run, config, str(path), None)
    assert not (fresh.state / "credentials.pem").exists()
    assert (fresh.state / "enrolling.json").stat().st_mode & 0o777 == 0o600
    await asyncio.to_thread(bcd_enroll.run, config, str(path), None)
    assert load_identity(fresh.state).node_id == fresh.node_id
    assert not (fresh.state / "enrolling.json").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"token_id":"join_1"}', b"{" * 99_999])
async def test_a_broken_or_foreign_attempt_is_replaced(
    gateway: FakeGateway, fresh: Site, content: bytes
) -> None:
    config, path = write_config(fresh), fresh.root / "token"
    path.write_text(gateway.token(fresh.node_id))
    fresh.state.mkdir(parents=True)
    attempt_for("join_of_another_token", fresh.state)
    if content:
        (fresh.state / "enrolling.json").write_bytes(content)
    await asyncio.to_thread(bcd_enroll.run, config, str(path), None)
    assert load_identity(fresh.state).node_id == fresh.node_id


def test_an_enrolled_host_is_not_enrolled_over(site: Site, config: Path) -> None:
    with pytest.raises(BadConfiguration, match=rf"enrolled already.*token join --node {node_id()}"):
        bcd_enroll.run(config, "-", None)
    assert load_identity(site.state).node_id == node_id()


@pytest.mark.parametrize("content", ["", "x.y.z", "join_1." + "A" * 43 + "." + "0" * 63, "\0" * 99])
def test_a_file_without_a_token_is_refused(fresh: Site, content: str) -> None:
    config = write_config(fresh)
    path = fresh.root / "token"
    path.write_text(content)
    with pytest.raises(BadConfiguration, match=r"id\.secret\.pin") as caught:
        bcd_enroll.run(config, str(path), None)
    assert not content or content not in caught.value.message
    with pytest.raises(BadConfiguration, match="cannot be read"):
        bcd_enroll.run(config, str(fresh.root / "none"), None)


@pytest.mark.parametrize("address", ["gateway", "gateway:", "g:99999", "g:74\x1b[2J", ""])
def test_an_address_without_a_port_is_said_so(fresh: Site, address: str) -> None:
    config = write_config(fresh)
    with pytest.raises(BadConfiguration, match=r"must be host:port.*enrolments") as caught:
        bcd_enroll.run(config, "-", address)
    assert caught.value.message.isprintable()


def test_the_next_command_is_systemds_where_it_has_the_unit(tmp_path: Path) -> None:
    usual = Path("/etc/bcd/bcd.toml")
    assert how_to_start(tmp_path, usual) == "bcd run"
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/lib/systemd/system/bcd.service").touch()
    assert how_to_start(tmp_path, usual) == "bcd run"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert how_to_start(tmp_path, usual) == "systemctl start bcd"
    assert how_to_start(tmp_path, Path("my.toml")) == "bcd run --config my.toml"


async def test_a_refused_enrolment_says_why_and_leaves_nothing(
    gateway: FakeGateway, fresh: Site
) -> None:
    config, path = write_config(fresh), fresh.root / "token"
    path.write_text(f"join_unknown.{'A' * 43}.{gateway.authority.pin}")
    path.chmod(0o600)
    done = await asyncio.to_thread(
        bcd, "enroll", "--config", str(config), "--token-file", str(path)
    )
    assert "the join token is not known" in sentence(done, 1)
    assert "A" * 43 not in done.stderr
    assert not (fresh.state / "credentials.pem").exists()


async def test_an_enrolment_without_room_names_the_file(gateway: FakeGateway, fresh: Site) -> None:
    config, path = write_config(fresh), fresh.root / "token.log"
    path.write_text(gateway.token(fresh.node_id))
    path.chmod(0o600)
    arguments = ["enroll", "--config", str(config), "--token-file", str(path)]
    for limit, named in (("0", "enrolling.json"), ("unlimited", "")):
        script = f"ulimit -f {limit}; exec {sys.executable} -m bcd.cli.bcd {shlex.join(arguments)}"
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", script], capture_output=True, text=True, check=False
        )
        if named:
            assert named in sentence(done, 1)
    assert load_identity(fresh.state).node_id == fresh.node_id


async def test_a_folder_in_the_place_of_an_attempt_is_named(
    gateway: FakeGateway, fresh: Site
) -> None:
    config, path = write_config(fresh), fresh.root / "token.log"
    path.write_text(gateway.token(fresh.node_id))
    (fresh.state / "enrolling.json").mkdir(parents=True)
    with pytest.raises(BrokenFile, match=r"enrolling\.json: cannot be used \(Is a directory\)"):
        bcd_enroll.run(config, str(path), None)


async def test_an_enrolment_whose_words_nobody_takes_is_done_all_the_same(
    gateway: FakeGateway, fresh: Site
) -> None:
    config, path = write_config(fresh), fresh.root / "token.log"
    path.write_text(gateway.token(fresh.node_id))
    path.chmod(0o600)
    done = await asyncio.to_thread(
        to_full, "enroll", "--config", str(config), "--token-file", str(path)
    )
    assert f"enrolled as spiffe://test.example/node/{fresh.node_id}" in sentence(done, 0)
    assert load_identity(fresh.state).node_id == fresh.node_id


def to_full(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a standard output that takes nothing."""
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            [sys.executable, "-m", "bcd.cli.bcd", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONPATH": str(HOME)},
        )


# What the daemon shows.


def test_nobody_there_to_ask_is_said_with_the_next_command(config: Path) -> None:
    with pytest.raises(Unavailable, match=r"no bcd answers there.*systemctl status bcd"):
        bcd_status.run(config, "status", as_json=False)


async def test_status_and_inventory_for_people_and_programs(
    site: Site, gateway: FakeGateway, config: Path
) -> None:
    gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.said(Bound) and gateway.acks))

    async def shown(*arguments: str) -> str:
        done = await asyncio.to_thread(bcd, *arguments, "--config", str(config))
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    status = await shown("status")
    assert site.node_id in status
    assert f"{alloc_id(1)}  bound" in status
    document = json.loads(await shown("status", "-o", "json"))
    assert document["desired"] == {"epoch": 1, "generation": 1}
    full = await asyncio.to_thread(to_full, "status", "--config", str(config))
    assert "standard output: cannot be written (No space left" in sentence(full, 1)
    inventory = await shown("inventory")
    assert inventory.count("NVIDIA H100 80GB HBM3  healthy") == 8
    assert len(json.loads(await shown("inventory", "-o", "json"))["devices"]) == 8
    assert (site.root / "s").stat().st_mode & 0o777 == 0o660
    assert await daemon.end() == 0
    assert not (site.root / "s").exists()


STATUS: dict[str, Any] = {
    "nodeId": "node_1",
    "version": "0.1.0",
    "driver": {"driverVersion": "", "cudaVersion": ""},
    "gateway": {"address": "g:1", "connected": False, "problem": "a\x1b[2J\nb"},
    "certificate": {"notAfter": 0},
    "desired": {"epoch": 1, "generation": 2},
    "reports": {"waiting": 0},
    "lastPass": "",
    "holds": [
        {"allocationId": "alloc_1", "state": "failed", "reason": "write-failed", "message": "full"},
        {"allocationId": "alloc_2", "state": "released"},
    ],
    "conditions": [],
}


def test_a_failed_hold_is_shown_with_its_message_and_nothing_steers_the_terminal() -> None:
    lines = bcd_status._lines(STATUS, "status", STATUS)
    assert all(line.isprintable() for line in lines)
    assert "hold         alloc_1  failed  write-failed: full" in lines


@pytest.mark.parametrize(
    ("question", "document"),
    [
        ("status", None),
        ("status", []),
        ("status", {"error": "unknown question"}),
        ("status", STATUS | {"certificate": {"notAfter": 10**30}}),
        ("status", STATUS | {"holds": [{"allocationId": "a", "state": "bound", "devices": 3}]}),
        ("inventory", "text"),
        ("inventory", {"devices": [None]}),
    ],
)
def test_an_answer_of_another_version_is_a_sentence(question: str, document: Any) -> None:
    with pytest.raises(Unavailable, match="restart the daemon"):
        bcd_status._lines(document, question, STATUS)


async def test_what_lies_where_the_socket_belongs_and_is_none_stays(
    site: Site, gateway: FakeGateway
) -> None:
    gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
    (site.root / "s").write_text("somebody's")
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.said(Bound)))
    assert "s cannot be made (what is there is no socket)" in daemon.log()
    assert (site.root / "s").read_text() == "somebody's"
    assert await daemon.end() == 0


@pytest.mark.parametrize("limit", ["-n 6", "-n 8", "-n 10"])
async def test_a_start_without_descriptors_is_to_be_tried_again(
    site: Site, gateway: FakeGateway, config: Path, limit: str
) -> None:
    await held(site, gateway)
    words = ["-m", "bcd.cli.bcd", "--sim", "dgx-h100", "--config", str(config)]
    script = f"ulimit {limit}; exec {sys.executable} {shlex.join(words)}"
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done  # on which its unit starts it again
    assert "raise the limit" in done.stderr
    assert site.specs()


async def test_a_mask_of_the_caller_hides_no_spec_and_no_env_file(
    site: Site, gateway: FakeGateway
) -> None:
    gateway.want(site.node_id, assignment(1, site.devices()[0]), generation=1)
    mask = os.umask(0o077)
    try:
        shutil.rmtree(site.cdi, ignore_errors=True)
        daemon = await start_bcd(site)
        await gateway.until(lambda: bool(gateway.said(Bound)))
    finally:
        os.umask(mask)
    spec = site.cdi / f"bcd-{alloc_id(1)}.json"
    for path in (spec, site.env / f"{alloc_id(1)}.env"):
        assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o755, 0o644)
    assert site.state.stat().st_mode & 0o777 == 0o700
    assert await daemon.end() == 0, daemon.log()


async def test_sighup_reads_the_settings_again(
    site: Site, gateway: FakeGateway, config: Path
) -> None:
    gateway.want(site.node_id, assignment(1, site.devices()[0], limits=limits()), generation=1)
    daemon = await start_bcd(site)
    await gateway.until(lambda: bool(gateway.said(Bound)))
    spec = site.cdi / f"bcd-{alloc_id(1)}.json"
    assert "annotations" in json.loads(spec.read_bytes())
    change(config, "[gateway\n")
    daemon.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "settings stay as they were" in daemon.log())
    write_config(site)
    change(config, read(config) + '[cdi]\nannotations = "never"\n')
    daemon.process.send_signal(signal.SIGHUP)
    await eventually(lambda: "annotations" not in json.loads(spec.read_bytes()))
    assert await daemon.end() == 0, daemon.log()


def change(config: Path, text: str) -> None:
    config.write_text(text)


def read(config: Path) -> str:
    return config.read_text()


async def test_systemd_hears_ready_without_a_gateway_then_the_watchdog_and_the_end(
    site: Site, gateway: FakeGateway, tmp_path: Path
) -> None:
    await held(site, gateway)
    (site.env / f"{alloc_id(1)}.env").unlink()
    await gateway.stop()
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, lambda: listen(channel, heard, site))
        systemd = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        daemon = await start_bcd(site, systemd)
        await eventually(lambda: heard.count("WATCHDOG=1") > 2)
        assert await daemon.end() == 0
        loop.remove_reader(channel)
    assert heard.index("READY=1 with env file") < heard.index("WATCHDOG=1")
    assert "STATUS=1 of 1 holds bound" in " ".join(heard)
    assert heard[-1] == "STOPPING=1"


async def test_a_slow_pass_costs_neither_the_watchdog_nor_a_quick_end(
    site: Site, gateway: FakeGateway, tmp_path: Path
) -> None:
    gpus = site.devices()[:4]
    (site.root / "faults.toml").write_text("slow_bind_seconds = 1.0\n")
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, lambda: listen(channel, heard, site))
        systemd = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        daemon = await start_bcd(site, systemd)
        await gateway.until(lambda: bool(gateway.streams))
        gateway.want(site.node_id, *map(assignment, range(4), gpus), generation=1)
        await eventually(lambda: len(site.specs()) == 1)  # three more binds of a second each
        heard.clear()
        await eventually(lambda: heard.count("WATCHDOG=1") > 3)
        assert len(site.specs()) < 4
        assert await daemon.end() == 0
        loop.remove_reader(channel)
    assert len(site.specs()) < 4
    assert gateway.said(Bound) == []
    (site.root / "faults.toml").unlink()
    daemon = await start_bcd(site)
    await gateway.until(lambda: len(gateway.said(Bound)) == 4)
    assert await daemon.end() == 0


def listen(channel: socket.socket, heard: list[str], site: Site) -> None:
    """Take one message; with READY=1 look whether the hold stands already."""
    message = channel.recv(4096).decode()
    heard.append(f"{message} with env file" if message == "READY=1" and site.envs() else message)


async def test_logs_are_json_without_secrets(site: Site, gateway: FakeGateway) -> None:
    await held(site, gateway)
    text = (site.root / "errors.log").read_text()
    assert all(json.loads(line)["message"] for line in text.splitlines())
    key = (site.state / "credentials.pem").read_text().splitlines()[1]
    assert key not in text

"""What administrators type: pools, offers, nodes, maintenance, certificates (spec 17.1)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.dev_system import Dev, Terminal


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """An administrator's terminal."""
    return Terminal(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module", autouse=True)
def dev(terminal: Terminal) -> Iterator[Dev]:
    """A system of two hosts."""
    with terminal.dev("--sim", "2") as running:
        yield running


def said(terminal: Terminal, *arguments: str) -> str:
    """What a command that must succeed prints."""
    done = terminal.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(terminal: Terminal, *arguments: str) -> Any:
    """Its answer as JSON."""
    return json.loads(said(terminal, *arguments, "-o", "json"))


def refused(terminal: Terminal, *arguments: str, code: int = 1) -> str:
    """The words of a command that must be refused."""
    done = terminal.run(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def node(terminal: Terminal, host: str = "host001") -> dict[str, Any]:
    found: dict[str, Any] = asked(terminal, "nodes", "show", host)
    return found


def test_a_pool_is_made_shown_changed_and_deleted(terminal: Terminal) -> None:
    made = asked(
        terminal, "pools", "create", "h100", "--owner", "dev", "--region", "eu",
        "--vcpu-ratio", "1.5", "--vcpu-per-gpu", "12", "--spot-grace", "1m", "--kubernetes",
    )  # fmt: skip
    assert made["policy"]["ratio"] == {"vcpu": 1.5, "memoryGiB": 1.0}
    shown = said(terminal, "pools", "show", "h100")
    lines = dict(line.split("  ", 1) for line in shown.splitlines())
    assert lines["vcpu per gpu"].strip() == "12"
    assert lines["ratio"].strip() == "vcpu 1.5, memory 1"
    assert lines["kubernetes"].strip() == "yes"
    assert lines["spot grace"].strip() == "1m"
    changed = asked(
        terminal, "pools", "update", "h100", "--no-kubernetes", "--reset", "perGpu",
        "--turnaround", "5m",
    )  # fmt: skip
    policy = changed["policy"]
    assert (policy["kubernetes"], policy["perGpu"], policy["turnaroundMs"]) == (False, {}, 300_000)
    assert policy["ratio"]["vcpu"] == 1.5
    words = refused(terminal, "pools", "update", "h100", "--vcpu-ratio", "0")
    assert "policy.ratio.vcpu" in words
    assert said(terminal, "pools", "delete", "h100") == f"{made['id']}  deleted\n"
    assert "there is no pool h100" in refused(terminal, "pools", "show", "h100")


def test_a_pool_is_offered_listed_and_withdrawn(terminal: Terminal) -> None:
    (pool,) = asked(terminal, "pools")
    out = said(terminal, "offers", "set", pool["name"], "--to", "guest", "--limit", "gpu=2")
    assert out == f"{pool['id']}  guest  gpu  2  0\n"
    guests = asked(terminal, "pools", "--tenant", "guest")
    assert [entry["id"] for entry in guests] == [pool["id"]]
    assert "gpu" in said(terminal, "offers")
    (offer,) = asked(terminal, "offers", "--tenant", "guest")
    assert offer["limits"] == [{"resource": "gpu", "limit": 2, "used": 0}]
    said(terminal, "offers", "withdraw", pool["name"], "--from", "guest")
    assert asked(terminal, "offers") == []
    assert asked(terminal, "pools", "--tenant", "guest") == []
    assert "gpu=8" in refused(
        terminal, "offers", "set", pool["name"], "--to", "guest", "--limit", "gpu", code=2
    )


def test_a_pool_of_another_tenant_is_named_with_its_owner(terminal: Terminal) -> None:
    theirs = asked(terminal, "pools", "create", "theirs", "--owner", "acme", "--region", "eu")["id"]
    asked(terminal, "pools", "create", "theirs", "--owner", "guest", "--region", "eu")
    offer = ("offers", "set", "theirs", "--to", "dev")
    assert "another tenant's is named TENANT/NAME" in refused(terminal, *offer)
    assert theirs in said(terminal, "offers", "set", "acme/theirs", "--to", "dev")
    assert theirs in said(terminal, "offers", "withdraw", "acme/theirs", "--from", "dev")
    changed = asked(terminal, "pools", "update", "acme/theirs", "--turnaround", "5m")
    assert changed["id"] == theirs
    assert said(terminal, "token", "join", "--pool", "acme/theirs").startswith("join_")
    assert "there is no pool acme/h1" in refused(terminal, "pools", "delete", "acme/h1")
    for owner in ("acme", "guest"):
        said(terminal, "pools", "delete", f"{owner}/theirs")
    assert asked(terminal, "pools", "--tenant", "acme") == []


def test_a_node_is_drained_distrusted_and_brought_back(terminal: Terminal) -> None:
    identifier = node(terminal)["id"]
    assert said(terminal, "nodes", "drain", "host001") == f"{identifier}  draining\n"
    drained = node(terminal)
    assert (drained["cordoned"], drained["draining"], drained["schedulable"]) == (True, True, False)
    assert said(terminal, "nodes", "uncordon", "host001") == f"{identifier}  ready\n"
    assert said(terminal, "nodes", "distrust", "host001") == f"{identifier}  untrusted\n"
    assert said(terminal, "nodes", "trust", identifier) == f"{identifier}  ready\n"


def test_a_node_is_labelled(terminal: Terminal) -> None:
    said(terminal, "nodes", "label", "host001", "rack=r7", "block=b1")
    labels = {label["key"]: label for label in node(terminal)["labels"]}
    assert labels["rack"] == {"key": "rack", "value": "r7", "source": "operator"}
    assert "rack=r7 (operator)" in said(terminal, "nodes", "show", "host001")
    said(terminal, "nodes", "label", "host001", "rack-", "block=")
    labels = {label["key"]: label["value"] for label in node(terminal)["labels"]}
    assert (labels.get("rack"), labels["block"]) == (None, "")
    assert "the system's own" in refused(terminal, "nodes", "label", "host001", "bc.dev/x=1")
    assert "neither" in refused(terminal, "nodes", "label", "host001", "rack", code=2)


def test_a_node_is_kept_free_for_a_time(terminal: Terminal) -> None:
    window = asked(
        terminal, "maintenance", "add", "host001", "--at", "+12h", "--for", "2h", "--reason", "fans"
    )
    assert window["end"] - window["start"] == 7_200_000
    listed = said(terminal, "maintenance", "--node", "host001")
    assert window["id"] in listed
    assert "2h" in listed
    at = refused(terminal, "maintenance", "add", "host001", "--for", "13h")
    assert window["id"] in at
    naive = ("maintenance", "add", "host001", "--at", "2030-01-01 09:00", "--for", "1h")
    assert "zone" in refused(terminal, *naive, code=2)
    said(terminal, "maintenance", "remove", window["id"])
    assert asked(terminal, "maintenance") == []


def test_certificates_are_listed_and_revoked_one_by_one(terminal: Terminal) -> None:
    identifier = node(terminal, "host000")["id"]
    (entry,) = asked(terminal, "certificates", "--of", identifier)
    assert entry["serial"] in said(terminal, "certificates")
    out = said(terminal, "certificates", "revoke", entry["serial"], "--reason", "lost disk")
    assert out == f"{entry['serial']}  node {identifier}  revoked: lost disk\n"
    (entry,) = asked(terminal, "certificates", "--of", identifier)
    assert (entry["revoked"], entry["reason"]) == (True, "lost disk")


def test_a_join_token_is_listed_without_its_secret_and_expired(terminal: Terminal) -> None:
    (pool,) = asked(terminal, "pools")
    token = said(terminal, "token", "join", "--pool", pool["name"]).strip()
    token_id, secret, _ = token.split(".")
    listed = said(terminal, "token", "list")
    assert token_id in listed
    assert secret not in listed
    assert said(terminal, "token", "expire", token) == f"{token_id}  expired\n"


def test_a_node_with_nothing_booked_is_removed(terminal: Terminal) -> None:
    identifier = node(terminal, "host000")["id"]
    assert said(terminal, "nodes", "remove", identifier) == f"{identifier}  removed\n"
    assert identifier not in said(terminal, "nodes")
    assert "there is no node" in refused(terminal, "nodes", "show", identifier)


@pytest.mark.parametrize("resource", ["gpu.slot", "vcpu", "memoryGiB"])
def test_every_resource_has_a_quota(terminal: Terminal, resource: str) -> None:
    out = said(terminal, "quota", "set", resource, "7", "--tenant", "dev")
    assert out == f"dev  {resource}  0 of 7 used\n"

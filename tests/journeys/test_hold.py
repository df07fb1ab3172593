"""The main job, through every process: reserve, place, bind, attest, active, release."""

import json
from pathlib import Path

from bcd.wire.node.v1 import envelope_pb2
from bcd.wire.report import decode_report
from tests.journeys.records import event_names, query
from tests.journeys.system import BIN, TENANT, System, wait_until


def specs(root: Path) -> list[Path]:
    """The daemon's CDI specs below its scratch root."""
    return sorted((root / "etc/cdi").glob("bcd-*.json"))


def envs(root: Path) -> list[Path]:
    """The daemon's env files below its scratch root."""
    return sorted((root / "run/bcd/allocations").glob("*.env"))


def test_four_linked_gpus_go_from_reserve_to_released(system: System) -> None:
    pool_id = system.add_pool()
    root = system.add_node("host1", pool_id)
    system.wait_nodes(1)
    client = system.client()
    made = client.create(pool_id, 4, "train-1", topology="nvlink-all", duration="8h")
    assert made.state == "placed"
    wait_until("active", lambda: client.get(made.id).state == "active")
    active = client.get(made.id)

    (report,) = query(system.url, "SELECT bound_report FROM allocations")
    envelope = envelope_pb2.Envelope.FromString(bytes(report["bound_report"]))
    signed = decode_report(envelope.payload).outcome
    assert list(active.binding.cdi_devices) == list(signed.cdi_devices)  # type: ignore[union-attr]
    assert len(active.binding.cdi_devices) == 4
    assert active.binding.attested
    assert active.during.end - active.during.start == 8 * 3_600_000

    (spec,) = specs(root)
    document = json.loads(spec.read_text())
    named = {f"{document['kind']}={device['name']}" for device in document["devices"]}
    assert named == set(active.binding.cdi_devices)
    assert [str(path) for path in envs(root)] == [active.binding.env_file]

    assert client.release(made.id).state == "released"
    wait_until("spec and env gone", lambda: not specs(root) and not envs(root))
    assert event_names(system.url, made.id) == ["placed", "binding", "active", "released"]
    client.channel.close()


def test_the_commands_do_the_same(system: System, tmp_path: Path) -> None:
    pool_id = system.add_pool()
    root = system.add_node("host1", pool_id)
    system.wait_nodes(1)
    (tmp_path / "token").write_text(system.token())
    config = tmp_path / "client.toml"
    config.write_text(
        f'api = "localhost:{system.api_port}"\nca_file = "{system.state / "ca.pem"}"\n'
        f'token_file = "{tmp_path / "token"}"\ntenant = "{TENANT}"\npool = "{pool_id}"\n'
    )
    better_compute = str(BIN / "better-compute")

    def run(*arguments: str) -> str:
        return system.run(better_compute, *arguments, "--config", str(config))

    made = json.loads(run("reserve", "--gpus", "8", "--for", "2h", "-o", "json"))
    assert made["state"] == "active"
    assert len(made["binding"]["cdiDevices"]) == 8
    assert made["during"]["end"] - made["during"]["start"] == 7_200_000
    listed = json.loads(run("list", "-o", "json"))
    assert [entry["id"] for entry in listed] == [made["id"]]
    (node,) = json.loads(run("nodes", "-o", "json"))
    assert {device["reservationId"] for device in node["devices"]} == {made["id"]}
    assert "released" in run("release", made["id"])
    assert json.loads(run("get", made["id"], "-o", "json"))["state"] == "released"
    wait_until("spec gone", lambda: not specs(root))

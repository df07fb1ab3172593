"""A container really gets a hold's devices, those and no others, from the daemon's own spec."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.system import System, wait_until
from tests.podman.container import Podman

# What differs from run to run in any container.
_VOLATILE = ("HOSTNAME", "container", "PWD", "SHLVL", "TERM", "HOME", "PATH")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A system on SQLite."""
    with System(tmp_path, f"sqlite:///{tmp_path}/bcd.db") as running:
        yield running


@pytest.fixture
def podman() -> Iterator[Podman]:
    """podman with an empty storage; it wants paths shorter than those of ``tmp_path``."""
    with tempfile.TemporaryDirectory(prefix="bcd-") as folder:
        made = Podman(Path(folder))
        made.prepare()
        yield made


def nodes_of(spec: Path, names: set[str]) -> dict[str, str]:
    """The nodes that a spec promises for these devices, as the host's have them."""
    document = json.loads(spec.read_text())
    edits = [document["containerEdits"]] + [
        device["containerEdits"]
        for device in document["devices"]
        if f"{document['kind']}={device['name']}" in names
    ]
    found = {}
    for node in (node for edit in edits for node in edit.get("deviceNodes", ())):
        status = os.stat(node.get("hostPath", node["path"]))
        found[node["path"]] = f"{os.major(status.st_rdev):x}:{os.minor(status.st_rdev):x}"
    return found


def test_a_container_sees_its_own_hold_and_nothing_else(system: System, podman: Podman) -> None:
    pool_id = system.add_pool()
    # Debian 12's podman reads no annotations, which a hold with limits would have.
    root = system.add_node("host1", pool_id, more='[cdi]\nannotations = "never"\n')
    system.wait_nodes(1)
    client = system.client()
    holds = [client.create(pool_id, count, f"k{count}") for count in (4, 2)]
    wait_until("active", lambda: all(client.get(h.id).state == "active" for h in holds))
    mine, other = (client.get(hold.id).binding for hold in holds)
    folder = root / "etc/cdi"
    bare = podman.look(folder, [])

    seen = podman.look(folder, list(mine.cdi_devices))
    spec = folder / f"bcd-{mine.allocation_id}.json"
    promised = nodes_of(spec, set(mine.cdi_devices))
    own = [path for path in promised if path.removeprefix("/dev/nvidia").isdigit()]
    assert len(own) == 4
    assert len(set(promised.values())) == len(promised)
    assert seen.devices == {**bare.devices, **promised}
    theirs = nodes_of(folder / f"bcd-{other.allocation_id}.json", set(other.cdi_devices))
    assert (theirs.keys() - promised.keys()).isdisjoint(seen.devices)

    document = json.loads(spec.read_text())
    expected = dict(entry.split("=", 1) for entry in document["containerEdits"]["env"])
    added = {k: v for k, v in seen.env.items() if k not in (*bare.env, *_VOLATILE)}
    assert added == expected
    assert expected["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert expected["BCD_ALLOCATION_ID"] == mine.allocation_id

    one = podman.look(folder, [mine.cdi_devices[0]])
    assert one.devices == {**bare.devices, **nodes_of(spec, {mine.cdi_devices[0]})}

    client.release(mine_id := holds[0].id)
    wait_until("spec gone", lambda: not spec.exists())
    refused = podman.run(folder, list(mine.cdi_devices))
    assert refused.returncode != 0
    assert "unresolvable CDI devices" in refused.stderr
    assert client.get(mine_id).state == "released"
    assert podman.look(folder, list(other.cdi_devices)).devices == {**bare.devices, **theirs}
    client.channel.close()

"""A second daemon with the same identity, against the real gateway: one takes over, for good."""

import shutil
import time

import pytest

from bcd.node.daemon import EXIT_SUPERSEDED
from tests.journeys.records import query
from tests.journeys.system import BIN, System, wait_until

WATCHED_S = 30


def sessions_opened(system: System) -> int:
    """How many sessions the node has had."""
    (row,) = query(system.url, "SELECT epoch FROM sessions")
    return int(row["epoch"])


@pytest.mark.timeout(180)
def test_a_copied_identity_takes_over_once_and_the_other_stays_down(system: System) -> None:
    pool_id = system.add_pool()
    root = system.add_node("host1", pool_id)
    system.wait_nodes(1)
    client = system.client()
    made = client.create(pool_id, 2, "held")
    wait_until("active", lambda: client.get(made.id).state == "active")
    before = sorted((root / "etc/cdi").iterdir())
    first = sessions_opened(system)

    shutil.copytree(root / "var", system.folder / "twin/var")
    config = system.folder / "twin.toml"
    text = (system.folder / "host1.toml").read_text()
    config.write_text(text.replace(f'root = "{root}"', f'root = "{system.folder / "twin"}"'))
    twin = system.program(
        "twin", str(BIN / "bcd"), "run", "--config", str(config), "--sim", "dgx-h100"
    )
    twin.start()
    wait_until("the first daemon ends", lambda: not system.programs["host1"].alive())
    loser = system.programs["host1"].process
    assert loser is not None
    assert loser.returncode == EXIT_SUPERSEDED
    assert "another daemon has this node's identity" in system.programs["host1"].log.read_text()

    deadline = time.monotonic() + WATCHED_S
    while time.monotonic() < deadline:
        assert sessions_opened(system) == first + 1
        assert twin.alive()
        time.sleep(0.5)
    assert sorted((root / "etc/cdi").iterdir()) == before
    assert client.get(made.id).state == "active"
    client.channel.close()

"""The contracts of imports.ini hold, and each of them bites when it is broken."""

import configparser
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, copy_tree, run

CONTRACTS = ROOT / "tests/architecture/imports.ini"

# By contract: a module and the line that breaks it there.
BREACHES = {
    "layers": ("bcd/model/units.py", "import bcd.wire.bounds"),
    "sim": ("bcd/sim/machine.py", "import sqlite3"),
    "daemon-command": ("bcd/cli/bcd_status.py", "import bcd.store.open"),
    "client": ("bcd/cli/better_compute/show.py", "import bcd.store.open"),
    "node": ("bcd/node/hold.py", "import bcd.store.database"),
    "control-plane": ("bcd/placer/loops.py", "import psutil"),
    "hardware": ("bcd/node/observe.py", "import pynvml"),
    "sql": ("bcd/placer/loops.py", "import psycopg"),
    "planners": ("bcd/node/fit.py", "import time"),
    "generated": ("bcd/gateway/connected.py", "import bcd.wire.node.v1.gateway_pb2"),
    "acyclic": ("bcd/placer/placement/view.py", "import bcd.placer.api.edge"),
}


def contracts() -> dict[str, str]:
    """Names by id."""
    parser = configparser.ConfigParser()
    parser.read(CONTRACTS)
    prefix = "importlinter:contract:"
    return {
        section.removeprefix(prefix): parser[section]["name"]
        for section in parser.sections()
        if section.startswith(prefix)
    }


def test_the_tree_keeps_every_contract() -> None:
    done = run("lint-imports", "--no-cache", "--no-logo", str(CONTRACTS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_contract_is_broken_once_by_a_test() -> None:
    assert set(contracts()) == set(BREACHES)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imports")
    copy_tree(folder, "bcd")
    return folder


@pytest.mark.parametrize("contract", BREACHES)
def test_a_breach_is_reported(copy: Path, contract: str) -> None:
    module, line = BREACHES[contract]
    path = copy / module
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    try:
        done = run(
            "lint-imports", "--no-cache", "--no-logo", f"--contract={contract}", str(CONTRACTS),
            cwd=copy,
        )  # fmt: skip
    finally:
        path.write_text(before)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contracts()[contract]} BROKEN" in done.stdout


def test_the_copy_without_a_breach_is_clean(copy: Path) -> None:
    done = run("lint-imports", "--no-cache", "--no-logo", str(CONTRACTS), cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr

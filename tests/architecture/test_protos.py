"""Generated code is what the protos say, and the protos are well made and change compatibly."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, copy_tree, run


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "proto/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_code_is_fresh() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    copy_tree(tmp_path, "proto", "bcd/wire")
    return tmp_path


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_a_changed_proto_is_noticed(copy: Path) -> None:
    edit(copy / "proto/bcd/wire/node/v1/gateway.proto", "string boot_id = 5;", "bytes boot_id = 5;")
    done = check(copy)
    assert done.returncode == 1
    assert "differs: bcd/wire/node/v1/gateway_pb2.py\n" in done.stdout
    assert "enrollment" not in done.stdout


def test_a_forgotten_and_a_stale_file_are_noticed(copy: Path) -> None:
    generated = copy / "bcd/wire/node/v1"
    (generated / "report_pb2.py").rename(generated / "old_pb2.py")
    done = check(copy)
    assert done.returncode == 1
    assert set(done.stdout.splitlines()) == {
        "missing: bcd/wire/node/v1/report_pb2.py",
        "stale, no .proto makes it: bcd/wire/node/v1/old_pb2.py",
    }


def test_the_protos_are_well_made() -> None:
    done = run("buf", "lint", "proto")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_badly_made_proto_is_noticed(copy: Path) -> None:
    edit(copy / "proto/bcd/wire/node/v1/gateway.proto", "string boot_id = 5;", "string Boot = 5;")
    done = run("buf", "lint", "proto", cwd=copy)
    assert done.returncode != 0
    assert "lower_snake_case" in done.stdout


def breaking(against: Path, root: Path) -> subprocess.CompletedProcess[str]:
    return run("buf", "breaking", "proto", "--against", str(against), cwd=root)


def test_the_node_protocol_still_reads_what_it_read_when_it_was_frozen() -> None:
    """Daemons of older versions speak it. A release freezes it again:
    ``buf build proto --path proto/bcd/wire/node -o tests/wire/data/protos.binpb``.
    """
    done = breaking(ROOT / "tests/wire/data/protos.binpb", ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_incompatible_change_is_noticed(copy: Path) -> None:
    path = copy / "proto/bcd/wire/node/v1/gateway.proto"
    for before, after in (
        ("string boot_id = 5;", "bytes boot_id = 5;"),
        ("bytes boot_id = 5;", "string boot_id = 50;"),
    ):
        edit(path, before, after)
        assert breaking(ROOT / "tests/wire/data/protos.binpb", copy).returncode != 0
    edit(path, "string boot_id = 50;", "string boot_id = 5;\n  string new_field = 12;")
    done = breaking(ROOT / "tests/wire/data/protos.binpb", copy)
    assert done.returncode == 0, done.stdout + done.stderr

"""The outbox: nothing in it is lost or repeated, numbers only grow, releases wait their turn."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcd.model.errors import BrokenFile
from bcd.model.report import Bound, Failed, Outcome, Released
from bcd.node.outbox import FILE, Outbox
from tests.node.world import alloc_id

BOUND = Bound(("bcd.dev/gpu=GPU-0",), "/run/x.env")
FAILED = Failed("device-unhealthy", "Xid 79")
NOW_MS = 1_800_000_000_000


def sign(allocation_id: str, outcome: Outcome, number: int) -> bytes:
    return f"{allocation_id} {type(outcome).__name__} {number}".encode()


def sent(outbox: Outbox) -> list[tuple[int, bytes]]:
    return [(entry.number - NOW_MS, entry.envelope.split()[1]) for entry in outbox.pending()]


def test_a_new_outbox_counts_from_the_clock(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), BOUND)], sign)
    assert [entry.number for entry in outbox.pending()] == [NOW_MS]


def test_what_was_added_is_there_after_a_restart(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), BOUND), (alloc_id(2), FAILED)], sign)
    again = Outbox.load(tmp_path, 0)
    assert again.pending() == outbox.pending()
    assert again.next_number == NOW_MS + 2


def test_a_lost_outbox_repeats_no_number(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(n), BOUND) for n in range(5)], sign)
    (tmp_path / FILE).unlink()
    assert Outbox.load(tmp_path, NOW_MS + 1_000).next_number > outbox.next_number


def test_an_outbox_of_a_backup_repeats_no_number(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), Released(True))], sign, held=True)
    backup = (tmp_path / FILE).read_bytes()
    outbox.add([(alloc_id(n), BOUND) for n in range(5)], sign)
    (tmp_path / FILE).write_bytes(backup)
    restored = Outbox.load(tmp_path, NOW_MS + 1_000)
    restored.free(alloc_id(1), sign)  # held under a number that others may have had since
    restored.add([(alloc_id(2), BOUND)], sign)
    assert sent(restored) == [(1_000, b"Released"), (1_001, b"Bound")]


def test_a_clock_that_was_ahead_once_stays_the_floor(tmp_path: Path) -> None:
    ahead = Outbox.load(tmp_path, NOW_MS + 10**9)
    ahead.add([(alloc_id(1), BOUND)], sign)
    assert Outbox.load(tmp_path, NOW_MS).next_number == NOW_MS + 10**9 + 1


def test_the_newest_outcome_of_an_allocation_replaces_older_ones(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), FAILED), (alloc_id(2), BOUND)], sign)
    outbox.add([(alloc_id(1), BOUND)], sign)
    assert sent(outbox) == [(1, b"Bound"), (2, b"Bound")]


def test_an_acknowledged_report_is_gone_and_after_a_flush_for_good(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), BOUND)], sign)
    assert outbox.acknowledge(NOW_MS)
    assert not outbox.acknowledge(NOW_MS)
    assert len(Outbox.load(tmp_path, 0)) == 1
    assert outbox.flush()
    assert not outbox.flush()
    assert len(Outbox.load(tmp_path, 0)) == 0


def test_a_held_release_is_not_sent_until_it_is_freed(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), Released(True))], sign, held=True)
    assert sent(outbox) == []
    assert outbox.owed() == (frozenset({alloc_id(1)}), frozenset({alloc_id(1)}))
    outbox.free(alloc_id(1), sign)
    assert sent(outbox) == [(0, b"Released")]
    assert outbox.owed() == (frozenset({alloc_id(1)}), frozenset())


def test_a_freed_release_that_was_overtaken_gets_a_higher_number(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), Released(False))], sign, held=True)
    outbox.add([(alloc_id(2), BOUND)], sign)
    outbox.free(alloc_id(1), sign)
    assert sent(outbox) == [(1, b"Bound"), (2, b"Released")]
    assert outbox.pending()[1].slice_empty is False


def test_after_a_restart_a_held_release_is_still_held(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), Released(True))], sign, held=True)
    outbox.free(alloc_id(1), sign)
    again = Outbox.load(tmp_path, 0)
    assert sent(again) == []
    again.free(alloc_id(1), sign)
    assert sent(again) == [(1, b"Released")]


def test_freeing_what_is_not_held_changes_nothing(tmp_path: Path) -> None:
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), BOUND)], sign)
    outbox.free(alloc_id(1), sign)
    outbox.free(alloc_id(2), sign)
    assert sent(outbox) == [(0, b"Bound")]


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    outbox = Outbox.load(folder, NOW_MS)
    outbox.add([(alloc_id(1), BOUND)], sign)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="No such file"):
        outbox.add([(alloc_id(2), BOUND)], sign)
    assert sent(outbox) == [(0, b"Bound")]
    assert outbox.next_number == NOW_MS + 1


@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_file_with_any_byte_changed_is_refused(
    tmp_path: Path, position: float, flip: int
) -> None:
    (tmp_path / FILE).unlink(missing_ok=True)
    outbox = Outbox.load(tmp_path, NOW_MS)
    outbox.add([(alloc_id(1), BOUND)], sign)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[int(position * len(content))] ^= flip
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BrokenFile, match="move it away"):
        Outbox.load(tmp_path, NOW_MS)


@pytest.mark.parametrize("content", [b"", b"x", b"bcd-outbox 1\n", b"\0" * 4096])
def test_a_file_that_is_no_outbox_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BrokenFile, match=FILE):
        Outbox.load(tmp_path, NOW_MS)


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["bound", "owe", "free", "ack", "restart"]), st.integers(0, 3)),
    max_size=25,
)


@given(OPERATIONS)
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_numbers_that_are_sent_never_go_back(
    tmp_path: Path, operations: list[tuple[str, int]]
) -> None:
    (tmp_path / FILE).unlink(missing_ok=True)
    outbox = Outbox.load(tmp_path, NOW_MS)
    seen: dict[int, bytes] = {}
    for name, number in operations:
        match name:
            case "bound":
                outbox.add([(alloc_id(number), BOUND)], sign)
            case "owe":
                outbox.add([(alloc_id(number), Released(True))], sign, held=True)
            case "free":
                outbox.free(alloc_id(number), sign)
            case "ack" if outbox.pending():
                outbox.acknowledge(outbox.pending()[0].number)
            case "restart":
                outbox = Outbox.load(tmp_path, NOW_MS)
        for entry in outbox.pending():
            if entry.number in seen:
                assert seen[entry.number] == entry.envelope
            else:
                assert entry.number > max(seen, default=0)
                seen[entry.number] = entry.envelope

"""The pipe between the daemon and its child: whole messages only, and within bounds."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd.node.host.nvml import messages
from bcd.node.host.nvml.calls import pci_address
from bcd.node.host.nvml.messages import Fabric, GpuReading, Inbox, Link, Malformed, MigReading

READING = messages.Reading(
    gpus=(
        GpuReading(index=0, error="GPU is lost"),
        GpuReading(
            index=1,
            uuid="GPU-1",
            migs=(MigReading(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb", memory_bytes=1 << 40),),
            links=(Link(2, "0000:01:00.0"),),
            fabric=Fabric(3, 0, "ab", 1, 0),
            p2p=(0,),
            uncorrected=1 << 63,
        ),
    )
)
ANSWERS: list[messages.Answer] = [
    READING,
    messages.Pong(),
    messages.Progress(call="nvmlInit"),
    messages.Event(uuid="GPU-1", kind=8, data=79, gi=None, ci=3),
    messages.Failure(code=18, text="mismatch", nvml="12.550", library="/usr/lib/x"),
    messages.Ready(driver="550", nvml="12.550", cuda="12.4", library=""),
    messages.Counts(busy=("GPU-1",)),
]


@given(st.sets(st.integers(1, 600)))
def test_messages_come_whole_out_of_any_pieces(cuts: set[int]) -> None:
    stream = b"".join(messages.frame(answer) for answer in ANSWERS)
    inbox = Inbox()
    found = []
    for begin, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]):
        found += [messages.answer(body) for body in inbox.take(stream[begin:end])]
    assert found == ANSWERS


def test_requests_come_back_as_they_were() -> None:
    for asked in (messages.Read(ignored=("a",)), messages.Ping(), messages.Count(ids=("x",))):
        [body] = Inbox().take(messages.frame(asked))
        assert messages.request(body) == asked


@given(st.binary(max_size=64))
def test_what_is_no_message_is_refused_and_nothing_else_happens(body: bytes) -> None:
    for decode in (messages.answer, messages.request):
        try:
            decode(body)
        except Malformed:
            continue


def test_a_length_beyond_all_bounds_is_refused_before_it_is_read() -> None:
    with pytest.raises(Malformed):
        list(Inbox().take((messages.MAX_BYTES + 1).to_bytes(4, "big")))


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00001128:00:00.0", "1128:00:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("FFFFFFFF:FF:FF.0", "ffffffff:ff:ff.0"),
        ("", ""),
        ("../../etc", ""),
        ("00000000:3B:00.0\n", ""),
    ],
)
def test_bus_ids_become_addresses_as_sysfs_writes_them(bus_id: str, address: str) -> None:
    assert pci_address(bus_id) == address


def test_the_child_carries_nothing_of_the_daemon_and_the_daemon_no_nvml() -> None:
    code = (
        "import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}}"
        " & {{'grpc', 'google', 'cryptography', 'asyncio', 'psutil', 'pynvml'}}))"
    )

    def loaded(module: str) -> str:
        command = [sys.executable, "-c", code.format(module=module)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert loaded("bcd.node.host.nvml.child") == "pynvml"
    assert loaded("bcd.node.host.nvml.gpus") == ""

"""Whatever NVML says, the node's inventory is one that its receiver takes."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bcd.model.device import DeviceClass
from bcd.model.host import Inventory
from bcd.node.cdi_format import is_device_name
from bcd.node.host.nvml.devices import devices_of, last_places, placed
from bcd.node.host.nvml.messages import GpuReading, MigReading
from bcd.node.host.nvml.plausible import MAX_DEVICES, plausible
from bcd.wire.inventory import decode_inventory, encode_inventory
from tests.node.memory import HOST
from tests.nvml.conftest import MakeHost
from tests.nvml.stub import SOURCE, Host, Mig, State, build, gpu

IDS = st.sampled_from(["GPU-a", "GPU-b", "MIG-a", "GPU-a::1", "MIG-GPU-a/1/0", "", "x" * 300])
TEXTS = st.text(max_size=20) | st.sampled_from(["x" * 5_000, "\x7f", "\udcff"])
SIZES = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(-(1 << 31), (1 << 32) - 1)
MIGS = st.builds(
    MigReading, uuid=IDS | TEXTS, gi=SMALL, ci=SMALL, profile=TEXTS, memory_bytes=SIZES
)
GPUS = st.builds(
    GpuReading,
    index=st.integers(0, 255),
    error=TEXTS,
    uuid=IDS | TEXTS,
    name=TEXTS,
    minor=SMALL,
    address=st.sampled_from(["", "0000:01:00.0", "0000:02:00.0"]),
    memory_bytes=SIZES,
    mig_enabled=st.booleans(),
    migs=st.lists(MIGS, max_size=3).map(tuple),
    recovery=SMALL,
)


@settings(max_examples=300, deadline=None)
@given(gpus=st.lists(GPUS, max_size=4), node=st.none() | st.integers(-5, 1 << 70))
def test_whatever_nvml_says_the_inventory_is_accepted(
    gpus: list[GpuReading], node: int | None
) -> None:
    devices = devices_of(gpus, {"": node, "0000:01:00.0": node})
    sent = Inventory(HOST, devices)
    assert decode_inventory(encode_inventory(sent)) == (sent, ())
    assert all(is_device_name(device.id) for device in devices)
    assert all(c.message.isprintable() for c in plausible(gpus).conditions)


@settings(deadline=None)
@given(gpus=st.lists(GPUS, max_size=4))
def test_what_is_left_out_is_said_and_the_rest_stays(gpus: list[GpuReading]) -> None:
    found = plausible(gpus)
    named = [one for one in gpus if one.uuid]
    left = len(named) - len([one for one in found.gpus if one.uuid])
    whole = {one.index for one in found.gpus}
    assert len(found.conditions) >= left
    assert all(one.index in whole for one in gpus if not one.uuid)
    assert plausible(found.gpus).gpus == found.gpus


def test_no_more_devices_are_sent_than_are_taken() -> None:
    migs = tuple(
        MigReading(uuid=f"MIG-{n}", gi=n, ci=0, profile="1g", memory_bytes=1) for n in range(2_000)
    )
    found = plausible([GpuReading(index=0, uuid="GPU-a", mig_enabled=True, migs=migs)])
    assert len(devices_of(found.gpus, {})) == MAX_DEVICES


def test_an_odd_gpu_costs_itself_only_and_is_not_missing(host: MakeHost) -> None:
    odd = ("GPU-a/../../x", "GPU-d", "GPU-d", "GPU-e")
    made = host(gpus=(*(gpu(i, uuid=uuid) for i, uuid in enumerate(odd)), gpu(5)))
    with made.running() as running:
        found = running.gpus.snapshot()
    assert [device.id for device in found.devices] == ["GPU-d", "GPU-e", gpu(5).uuid]
    assert [(c.type, c.subject) for c in found.conditions] == [
        ("DeviceLeftOut", gpu(0).address),
        ("DeviceLeftOut", gpu(2).address),
    ]
    assert "no name of a CDI device" in found.conditions[0].message
    assert "names GPU-d twice" in found.conditions[1].message


def test_instances_as_old_drivers_name_them_are_left_out_with_the_remedy(host: MakeHost) -> None:
    old = Mig(uuid=f"MIG-{gpu(0).uuid}/1/0", gi=1)
    made = host(gpus=(gpu(0, mig=True, migs=(old, Mig(uuid="MIG-b", gi=2))),))
    with made.running() as running:
        found = running.gpus.snapshot()
        assert "install driver 470 or newer" in running.conditions()["DeviceLeftOut"]
    assert [d.id for d in found.devices if d.device_class is DeviceClass.MIG] == ["MIG-b"]


def test_a_count_of_instances_beyond_all_bounds_keeps_nobody_waiting(tmp_path: Path) -> None:
    text, plain = SOURCE.read_text(), "*to = 7;"
    assert plain in text
    source = tmp_path / "stub.c"
    source.write_text(text.replace(plain, "*to = 4000000000u;"))
    library = build(tmp_path / "library", source=source)
    one = gpu(0, mig=True, migs=(Mig(uuid="MIG-a", gi=1),))
    with Host(tmp_path, library, State(gpus=(one,))).running() as running:
        assert [device.id for device in running.gpus.snapshot().devices] == [one.uuid, "MIG-a"]


def test_a_gpu_that_moved_is_forgotten_where_it_was() -> None:
    seen = {"0000:01:00.0": "GPU-a", "0000:02:00.0": "GPU-b"}
    gpus = [GpuReading(index=0, uuid="GPU-a", address="0000:09:00.0")]
    assert last_places(seen, gpus) == {"0000:02:00.0": "GPU-b", "0000:09:00.0": "GPU-a"}
    nowhere = [GpuReading(index=0, uuid="GPU-a"), GpuReading(index=1, uuid="GPU-c")]
    assert [one.address for one in placed(nowhere, seen)] == ["0000:01:00.0", ""]
    assert last_places(seen, nowhere) == seen

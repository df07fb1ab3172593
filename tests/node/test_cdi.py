"""CDI specs: what is written is what every reader takes, and is read back as the hold it is."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd.model.assignment import AssignedDevice
from bcd.model.device import Device, DeviceClass
from bcd.node import cdi
from bcd.node.cdi_format import is_device_name, minimum_version, problem_of
from bcd.node.edits import NO_EDITS, DeviceEdits, DeviceNode, Hook, Mount
from bcd.node.hold import hold_of
from bcd.node.ports import ForeignSpec, GpuSnapshot
from tests.node.memory import MIG, SLOTS, WHOLE, snapshot
from tests.node.world import alloc_id, assignment, limits, node_id

# The upstream schema's rules (schema.json and defs.json of the CDI repository), as far as our
# specs reach: a second opinion beside our own, stricter rules.
_NODES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["path"],
        "properties": {
            "path": {"type": "string"},
            "hostPath": {"type": "string"},
            "permissions": {"type": "string"},
            "type": {"type": "string", "enum": ["b", "c", "u", "p", ""]},
            "major": {"type": "integer"},
            "minor": {"type": "integer"},
        },
    },
}
_EDITS = {
    "type": "object",
    "properties": {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+=.*$"}},
        "deviceNodes": _NODES,
        "mounts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["hostPath", "containerPath"],
                "properties": {
                    "hostPath": {"type": "string"},
                    "containerPath": {"type": "string"},
                    "options": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
        "hooks": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["hookName", "path"],
                "properties": {
                    "hookName": {"type": "string"},
                    "path": {"type": "string"},
                    "args": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    },
}
UPSTREAM = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices", "containerEdits"],
    "properties": {
        "cdiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "devices": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "properties": {"name": {"type": "string"}, "containerEdits": _EDITS},
            },
        },
        "containerEdits": _EDITS,
    },
}

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0")
PLAIN = assignment(1, WHOLE[0], WHOLE[1])
LIMITED = assignment(2, WHOLE[0], limits=limits(cpus="0-3", mems="0"))
MIXED = assignment(3, MIG[0], WHOLE[0], SLOTS[0], MIG[1])


def rendered(wanted: Any, annotate: bool = True) -> dict[str, dict[str, Any]]:
    files = cdi.render(hold_of(wanted), snapshot(), node_id(), annotate=annotate)
    assert files is not None
    return {file.name: json.loads(file.content) for file in files}


@pytest.mark.parametrize("wanted", [PLAIN, LIMITED, MIXED])
@pytest.mark.parametrize("annotate", [True, False])
def test_every_spec_passes_our_rules_and_the_upstream_schema(wanted: Any, annotate: bool) -> None:
    for document in rendered(wanted, annotate).values():
        assert problem_of(document) is None
        jsonschema.validate(document, UPSTREAM)


def test_a_plain_hold_stays_readable_for_podman_of_debian_12() -> None:
    [document] = rendered(PLAIN).values()
    assert document["cdiVersion"] == "0.3.0"
    assert "annotations" not in document


def test_a_hold_with_limits_names_its_slice_twice() -> None:
    [document] = rendered(LIMITED).values()
    unit = f"bcd-alloc-{alloc_id(2)}.slice"
    assert document["annotations"] == {"bcd.dev/cgroup-parent": unit}
    assert f"BCD_CGROUP_PARENT={unit}" in document["containerEdits"]["env"]
    assert document["cdiVersion"] == "0.6.0"


def test_without_annotations_a_hold_with_limits_needs_no_newer_reader() -> None:
    [document] = rendered(LIMITED, annotate=False).values()
    assert document["cdiVersion"] == "0.3.0"
    assert "annotations" not in document


def test_every_class_has_a_file_of_its_own_and_the_first_ones_is_last() -> None:
    files = rendered(MIXED)
    assert list(files) == [
        f"bcd-{alloc_id(3)}.gpu.json",
        f"bcd-{alloc_id(3)}.gpu.slot.json",
        f"bcd-{alloc_id(3)}.json",
    ]
    assert [d["kind"] for d in files.values()] == [
        "bcd.dev/gpu",
        "bcd.dev/gpu.slot",
        "bcd.dev/gpu.mig",
    ]
    names = [entry["name"] for d in files.values() for entry in d["devices"]]
    assert sorted(names) == sorted(d.id for d in MIXED.devices)


def test_an_images_nvidia_visible_devices_cannot_add_gpus() -> None:
    for document in rendered(MIXED).values():
        assert document["containerEdits"]["env"][0] == "NVIDIA_VISIBLE_DEVICES=void"


def test_nodes_carry_no_numbers_and_a_host_path_only_where_it_differs() -> None:
    hold = hold_of(PLAIN)
    gpus = GpuSnapshot(
        edits={
            "GPU-0": DeviceEdits(nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0"),)),
            "GPU-1": DeviceEdits(nodes=(DeviceNode("/dev/nvidia1", "/root/dev/nvidia1"),)),
        }
    )
    [file] = cdi.render(hold, gpus, node_id(), annotate=True) or ()
    nodes = [d["containerEdits"]["deviceNodes"] for d in json.loads(file.content)["devices"]]
    assert nodes == [
        [{"path": "/dev/nvidia0", "permissions": "rw"}],
        [{"path": "/dev/nvidia1", "hostPath": "/root/dev/nvidia1", "permissions": "rw"}],
    ]


def test_a_node_that_the_host_has_not_made_is_fully_specified() -> None:
    node = DeviceNode(
        "/dev/nvidia-caps/nvidia-cap66", "/host/dev/nvidia-caps/nvidia-cap66", (61, 66)
    )
    gpus = GpuSnapshot(edits={"MIG-0": DeviceEdits(nodes=(node,))})
    [file] = cdi.render(hold_of(assignment(1, MIG[0])), gpus, node_id(), annotate=True) or ()
    [device] = json.loads(file.content)["devices"]
    assert device["containerEdits"]["deviceNodes"] == [
        {
            "path": "/dev/nvidia-caps/nvidia-cap66",
            "type": "c",
            "major": 61,
            "minor": 66,
            "permissions": "rw",
        }
    ]


def test_mounts_and_hooks_of_the_driver_are_in_every_file_of_a_hold() -> None:
    common = DeviceEdits(
        mounts=(Mount("/host/libcuda.so.1", "/lib/libcuda.so.1", ("ro", "nosuid")),),
        hooks=(Hook("createContainer", "/usr/bin/hook", ("hook", "update-ldcache")),),
    )
    gpus = replace(snapshot(), common=common)
    files = cdi.render(hold_of(MIXED), gpus, node_id(), annotate=True) or ()
    assert len(files) == 3
    for file in files:
        edits = json.loads(file.content)["containerEdits"]
        assert edits["mounts"] == [
            {
                "hostPath": "/host/libcuda.so.1",
                "containerPath": "/lib/libcuda.so.1",
                "options": ["ro", "nosuid"],
            }
        ]
        assert edits["hooks"] == [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/hook",
                "args": ["hook", "update-ldcache"],
            }
        ]


def test_a_slot_has_the_edits_of_its_gpu_under_a_name_of_its_own() -> None:
    slots = [AssignedDevice(f"GPU-0::{i}", DeviceClass.SLOT) for i in (0, 3)]
    gpus = snapshot(WHOLE)
    [file] = cdi.render(hold_of(assignment(1, *slots)), gpus, node_id(), annotate=True) or ()
    document = json.loads(file.content)
    assert document["kind"] == "bcd.dev/gpu.slot"
    assert [d["name"] for d in document["devices"]] == ["GPU-0::0", "GPU-0::3"]
    edits = [d["containerEdits"]["deviceNodes"] for d in document["devices"]]
    assert edits == [[{"path": "/dev/GPU-0", "permissions": "rw"}]] * 2
    assert (
        cdi.render(hold_of(assignment(1, *slots)), snapshot(WHOLE[1:]), node_id(), annotate=True)
        is None
    )


PATHS = st.from_regex(r"/[a-zA-Z0-9._/-]{1,30}", fullmatch=True)
WORDS = st.text("abcxyz019:=./-", min_size=1, max_size=12)
EDITS = st.builds(
    DeviceEdits,
    nodes=st.lists(
        st.builds(
            DeviceNode,
            PATHS,
            PATHS,
            st.none() | st.tuples(st.integers(1, 511), st.integers(0, 2**20 - 1)),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    env=st.lists(WORDS.map("A={}".format), max_size=2).map(tuple),
    mounts=st.lists(
        st.builds(Mount, PATHS, PATHS, st.lists(WORDS, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    hooks=st.lists(
        st.builds(
            Hook,
            st.sampled_from(["createContainer", "prestart", "poststop"]),
            PATHS,
            st.lists(WORDS, max_size=3).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(
    devices=st.lists(st.sampled_from([*WHOLE, *MIG, *SLOTS]), min_size=1, unique=True),
    edits=EDITS,
    common=EDITS,
    limited=st.booleans(),
    annotate=st.booleans(),
)
def test_whatever_is_rendered_passes_the_rules_at_the_lowest_version(
    devices: list[Device], edits: DeviceEdits, common: DeviceEdits, limited: bool, annotate: bool
) -> None:
    gpus = GpuSnapshot(edits={d.id: edits for d in devices}, common=common)
    hold = hold_of(assignment(1, *devices, limits=limits() if limited else None))
    for file in cdi.render(hold, gpus, node_id(), annotate=annotate) or ():
        document = json.loads(file.content)
        assert problem_of(document) is None
        jsonschema.validate(document, UPSTREAM)
        below = [v for v in VERSIONS if v < document["cdiVersion"]]
        assert all(problem_of(document | {"cdiVersion": v}) is not None for v in below)
        assert cdi.read_spec(file.content, hold.allocation_id) == hold


@pytest.mark.parametrize("wanted", [PLAIN, LIMITED, MIXED])
def test_every_file_reads_back_as_the_whole_hold(wanted: Any) -> None:
    hold = hold_of(wanted)
    for file in cdi.render(hold, snapshot(), node_id(), annotate=True) or ():
        assert cdi.read_spec(file.content, hold.allocation_id) == hold


def test_a_device_that_would_bring_nothing_is_never_written() -> None:
    """Readers drop a whole file for one device with empty edits."""
    gpus = GpuSnapshot(edits={**snapshot().edits, "GPU-1": NO_EDITS})
    with pytest.raises(cdi.MalformedSpec, match="containerEdits: is empty"):
        cdi.render(hold_of(PLAIN), gpus, node_id(), annotate=True)


def test_a_spec_follows_whatever_it_is_made_of() -> None:
    """One after the other, as in pass after pass: no change is lost in what is remembered."""
    hold, gpus = hold_of(LIMITED), snapshot()
    own = gpus.edits[WHOLE[0].id]
    moved = replace(own, nodes=(DeviceNode("/dev/nvidia9", "/dev/nvidia9"),))
    changes: list[tuple[Any, GpuSnapshot, str, bool]] = [
        (hold, gpus, node_id(), True),
        (replace(hold, limits=limits(cpus="0-1", mems="0")), gpus, node_id(), True),
        (replace(hold, allocation_id=alloc_id(7)), gpus, node_id(), True),
        (hold, replace(gpus, edits={**gpus.edits, WHOLE[0].id: moved}), node_id(), True),
        (hold, replace(gpus, common=DeviceEdits(env=("A=b",))), node_id(), True),
        (hold, gpus, node_id(2), True),
        (hold, gpus, node_id(), False),
    ]
    made = [cdi.render(h, g, node, annotate=annotate) for h, g, node, annotate in changes * 2]
    assert made[: len(changes)] == made[len(changes) :]
    assert len({files[0].content for files in made if files}) == len(changes)


@pytest.mark.parametrize("text", ["we\udcff", "two\nlines", "bell\x07"])
def test_a_text_that_cannot_be_printed_costs_its_own_hold_only(text: str) -> None:
    for odd in (
        DeviceEdits(env=(f"A={text}",)),
        DeviceEdits(mounts=(Mount("/a", "/a", (text,)),)),
        DeviceEdits(hooks=(Hook("createContainer", "/bin/h", ("h", text)),)),
    ):
        gpus = GpuSnapshot(edits=snapshot().edits, common=odd)
        with pytest.raises(cdi.MalformedSpec, match=r"is not a list of texts|entries"):
            cdi.render(hold_of(PLAIN), gpus, node_id(), annotate=True)


def test_a_hold_of_a_lost_device_cannot_be_rendered() -> None:
    gpus = snapshot(WHOLE[1:])
    assert cdi.render(hold_of(PLAIN), gpus, node_id(), annotate=True) is None


@pytest.mark.parametrize(
    "name",
    [
        "bcd-../../etc/passwd.json",
        "bcd-alloc_.json",
        "bcd-.json",
        f"bcd-{alloc_id(1)}.JSON",
        f"bcd-{alloc_id(1)}.disk.json",
        f"bcd-{alloc_id(1)}.json\n",
        f".bcd-{alloc_id(1)}.json",
        f"bcd-{alloc_id(1)}.json.tmp",
        "nvidia.yaml",
    ],
)
def test_a_name_that_is_not_exactly_ours_is_foreign(name: str) -> None:
    assert cdi.parse_file_name(name) is None


def good() -> dict[str, Any]:
    return {
        "cdiVersion": "0.6.0",
        "kind": "bcd.dev/gpu",
        "annotations": {"bcd.dev/x": "y"},
        "devices": [
            {
                "name": "GPU-0",
                "containerEdits": {
                    "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}],
                    "mounts": [{"hostPath": "/a", "containerPath": "/a", "options": ["ro"]}],
                    "hooks": [{"hookName": "createContainer", "path": "/bin/h", "args": ["h"]}],
                },
            }
        ],
        "containerEdits": {"env": ["A=b"]},
    }


def test_the_rules_accept_what_the_format_allows() -> None:
    assert problem_of(good()) is None


def at(path: str, value: Any) -> dict[str, Any]:
    """A good spec with one place set; a value of None removes it."""
    document: Any = good()
    place = document
    *parents, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    for step in parents:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document  # type: ignore[no-any-return]


NUMBERED = {"path": "/dev/x", "type": "c", "major": 61, "minor": 66}
ACCEPTED: list[Any] = [
    at("devices/0/containerEdits/deviceNodes", [NUMBERED]),
    at("devices/0/containerEdits/deviceNodes/0/permissions", "none"),
    at("devices/0/containerEdits/deviceNodes/0/permissions", "rwm"),
    at("devices/0/containerEdits/deviceNodes/0/permissions", None),
    at("devices/0/containerEdits/mounts/0/options", None),
    at("devices/0/containerEdits/mounts/0/options", []),
    at("devices/0/containerEdits/mounts/0/type", "bind"),
    at("devices/0/containerEdits/hooks/0/args", None),
    at("devices/0/containerEdits/hooks/0/env", ["A="]),
    at("devices/0/annotations", {"a": ""}),
    at("devices/0/name", "GPU-0::1"),
    at("devices/0/name", "0"),
    at("annotations", {"a.b-c/" + "x" * 63: "y"}),
    at("kind", "bcd.dev/gpu.mig"),
    at("kind", "b/g"),
    at("cdiVersion", "1.1.0"),
    at("containerEdits", None),
]


@pytest.mark.parametrize("document", ACCEPTED, ids=range(len(ACCEPTED)))
def test_the_rules_accept_what_every_reader_takes(document: Any) -> None:
    assert problem_of(document) is None


REFUSED: list[Any] = [
    [],
    "text",
    None,
    {},
    at("cdiVersion", "9.9.9"),
    at("cdiVersion", "0.5.0"),
    at("cdiVersion", 1),
    at("kind", "gpu"),
    at("kind", "bcd.dev/"),
    at("kind", "bcd.dev/gpu."),
    at("kind", "1bcd/gpu"),
    at("kind", None),
    at("extra", 1),
    at("annotations", {"bad key!!": "x"}),
    at("annotations", {"a": 1}),
    at("annotations", {"a": "x" * 300_000}),
    at("devices", []),
    at("devices", good()["devices"] * 2),
    at("devices/0/name", "a b"),
    at("devices/0/name", "a/b"),
    at("devices/0/name", "../x"),
    at("devices/0/name", "-a"),
    at("devices/0/name", ""),
    at("devices/0/containerEdits", {}),
    at("devices/0/containerEdits", None),
    at("devices/0/containerEdits/netDevices", []),
    at("devices/0/containerEdits/deviceNodes", []),
    at("devices/0/containerEdits/deviceNodes/0/path", "nvidia0"),
    at("devices/0/containerEdits/deviceNodes/0/path", None),
    at("devices/0/containerEdits/deviceNodes/0/permissions", "x"),
    at("devices/0/containerEdits/deviceNodes/0/permissions", ""),
    at("devices/0/containerEdits/deviceNodes/0/permissions", "rr"),
    at("devices/0/containerEdits/deviceNodes/0/major", 195),
    at("devices/0/containerEdits/deviceNodes/0/type", "c"),
    at("devices/0/containerEdits/deviceNodes", [NUMBERED | {"type": "b"}]),
    at("devices/0/containerEdits/deviceNodes", [NUMBERED | {"major": "61"}]),
    at("devices/0/containerEdits/deviceNodes", [NUMBERED | {"major": True}]),
    at("devices/0/containerEdits/deviceNodes", [NUMBERED | {"minor": -1}]),
    at("devices/0/containerEdits/deviceNodes", [NUMBERED | {"minor": 1 << 20}]),
    at("devices/0/containerEdits/deviceNodes", [NUMBERED | {"fileMode": 438}]),
    at("devices/0/containerEdits/deviceNodes", [[]]),
    at("devices/0/containerEdits/deviceNodes/0/hostPath", "dev/nvidia0"),
    at("devices/0/containerEdits/deviceNodes/0/path", "/dev/a\nb"),
    at("devices/0/containerEdits/mounts", {}),
    at("devices/0/containerEdits/mounts/0/hostPath", "relative"),
    at("devices/0/containerEdits/mounts/0/options", ["ro", ""]),
    at("devices/0/containerEdits/mounts/0/options", "ro"),
    at("devices/0/containerEdits/mounts/0/readOnly", True),
    at("devices/0/containerEdits/hooks/0/path", "hook"),
    at("devices/0/containerEdits/hooks/0/args", [1]),
    at("devices/0/containerEdits/hooks/0/timeout", 1),
    at("devices/0/containerEdits/additionalGids", [44]),
    at("devices/0/containerEdits/intelRdt", {}),
    at("devices/0/annotations", {"-a": "x"}),
    at("devices/0/extra", 1),
    at("annotations", {"a/" + "x" * 64: "y"}),
    at("annotations", {"bcd.dev/a/b": "y"}),
    at("cdiVersion", "v0.6.0"),
    at("cdiVersion", "0.6"),
    at("kind", "bcd.dev/gpu/x"),
    at("kind", "bcd.dev/1gpu"),
    at("kind", "-bcd/gpu"),
    at("devices/0/name", "a\n"),
    at("devices/0/name", "a:"),
    at("devices/0/containerEdits/mounts/0/containerPath", None),
    at("devices/0/containerEdits/hooks/0/hookName", "onStart"),
    at("containerEdits/env", ["NOEQUALS"]),
    at("containerEdits/env", ["=x"]),
    at("containerEdits/env", ["A=b\nC=d"]),
    at("containerEdits/env", []),
    at("containerEdits", {}),
]


@pytest.mark.parametrize("document", REFUSED, ids=range(len(REFUSED)))
def test_the_rules_refuse_what_a_reader_would_drop(document: Any) -> None:
    assert problem_of(document) is not None


def test_the_lowest_version_follows_from_the_fields() -> None:
    assert minimum_version(good()) == "0.6.0"
    assert minimum_version(at("annotations", None)) == "0.3.0"
    assert minimum_version(at("annotations", None) | {"kind": "bcd.dev/gpu.mig"}) == "0.6.0"
    typed = at("devices/0/containerEdits/mounts/0/type", "bind")
    del typed["annotations"]
    assert minimum_version(typed) == "0.4.0"
    named = at("devices/0/name", "0")
    del named["annotations"]
    assert minimum_version(named) == "0.5.0"
    host_path = at("devices/0/containerEdits/deviceNodes/0/hostPath", "/dev/x")
    del host_path["annotations"]
    assert minimum_version(host_path) == "0.5.0"


@pytest.mark.parametrize("name", ["GPU-9::1", "MIG-1", "0"])
def test_device_names_of_ours_are_legal(name: str) -> None:
    assert is_device_name(name)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"cdiVersion":"0.5.0"}',
        json.dumps(good()).encode(),
    ],
)
def test_a_corrupt_own_spec_is_named_as_such(content: bytes | None) -> None:
    with pytest.raises(cdi.MalformedSpec):
        cdi.read_spec(content, alloc_id(1))


def test_an_own_spec_under_another_holds_name_is_corrupt() -> None:
    [file] = cdi.render(hold_of(PLAIN), snapshot(), node_id(), annotate=True) or ()
    with pytest.raises(cdi.MalformedSpec):
        cdi.read_spec(file.content, alloc_id(2))


def test_a_spec_whose_devices_were_edited_is_corrupt() -> None:
    [document] = rendered(PLAIN).values()
    document["devices"][0]["name"] = "GPU-3"
    with pytest.raises(cdi.MalformedSpec):
        cdi.read_spec(json.dumps(document).encode(), alloc_id(1))


GPU0 = hold_of(PLAIN).devices[0]


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ('{"kind": "bcd.dev/gpu", "devices": [{"name": "GPU-0"}]}', True),
        ('{"kind": "bcd.dev/gpu", "devices": [{"name": "GPU-01"}]}', False),
        ('{"kind": "bcd.dev/gpu.mig", "devices": [{"name": "GPU-0"}]}', False),
        ("kind: bcd.dev/gpu\ndevices:\n- name: GPU-0\n", True),
        ('kind: "bcd.dev/gpu"\ndevices:\n- name: "GPU-0"\n', True),
        ("kind: bcd.dev/gpu.mig\ndevices:\n- name: GPU-0\n", False),
        ("kind: bcd.dev/gpu\ndevices:\n- name: GPU-01\n", False),
        ("kind: nvidia.com/gpu\ndevices:\n- name: GPU-0\n", False),
        ('{"kind": "bcd.dev/gpu", "devices": 3}', False),
        ("{", False),
    ],
)
def test_a_foreign_file_claims_a_device_by_its_exact_name(text: str, claims: bool) -> None:
    assert cdi.names_device(ForeignSpec("/etc/cdi/x", text), GPU0) is claims

"""``tests/reports.toml``: every known report of an operator has the tests of its kind."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.tree import ROOT, parsed

TABLE = ROOT / "tests/reports.toml"
KEYS = {"ids", "failure", "here", "tests"}
_TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)::(?P<name>\w+)(?:\[(?P<case>[\w-]+)\])?\Z")
_REPORT = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:#[0-9]+|@[0-9.]+)\Z")
# Who reported, and under which numbers.
KNOWN = """
    aws/eks-node-monitoring-agent 94
    cncf-tags/container-device-interface 78 115
    coldzerofear/vgpu-manager 70
    containers/common 2460
    containers/podman 496 6549 13154 15727 20044 29582
    cri-o/cri-o 2213
    DataDog/datadog-agent 54128
    google/cadvisor 3828 3931
    google/gvisor 9389 13251
    HaveAGitGat/Tdarr 1423
    kubernetes-sigs/dra-driver-nvidia-gpu 773 787 1018 1144 1380 1458
    kubernetes/enhancements 5726
    kubernetes/kubernetes 63231 67107 79823 83196 84333 87862 104289 110478 114422 116125 135581
    kubernetes/kubernetes 138172
    kubewharf/katalyst-core 1196
    lxc/incus 769
    microsoft/pai 4344
    moby/moby 31086 41233 47633 51446
    nestybox/sysbox 986
    NVIDIA/go-nvml 152
    NVIDIA/gpu-operator 485 1065 1361
    NVIDIA/k8s-device-plugin 111 189 222 225 234 343 403 415 679 992 1431 1614
    NVIDIA/k8s-test-infra 823
    NVIDIA/kubevirt-gpu-device-plugin 86
    NVIDIA/mig-parted 82
    NVIDIA/nccl 1182
    NVIDIA/NemoClaw 4658 4733
    NVIDIA/NVSentinel 155 684
    NVIDIA/nvidia-container-toolkit 38 48 63 146 251 450 1227 1611 1744 1860 1895
    NVIDIA/nvidia-docker 288 1432 1543
    opencontainers/runc 1344 1651 3611 3859 4073 4622
    opencontainers/runtime-spec 1050
    pando85/homelab 4110
    Project-HAMi/HAMi 1903 2200 2833
    prometheus/node_exporter 734
    ROCm/k8s-gpu-dra-driver 75
    sysreport 8
    systemd/systemd 14662 27127 33171 34407 35190 40438
"""
# The same of reservations.
KNOWN_OF_RESERVATIONS = """
    ansible/awx 15809
    armadaproject/armada 4390
    aws/karpenter-provider-aws 8514
    blazar 1786031 1791741 2120655
    calcom/cal.com 1092 30021
    canonical/lxd 7321
    dstackai/dstack 2068 3449 4146
    hashicorp/nomad 25808 27820
    hashicorp/terraform-provider-aws 30819
    idempot-js 191
    kubernetes-sigs/kueue 1654 8309 9715 12545 12735 14570 14609 14811
    kubernetes/kubernetes 136269
    LibreBooking/librebooking 147
    maas 3307
    novuhq/novu 4531
    NVIDIA/k8s-device-plugin 135
    NVIDIA/KAI-Scheduler 1217 2075
    openpbs/openpbs 813 1006 1305 1909 1921 2071
    promtior-challenge 73
    skypilot-org/skypilot 4410 4431
    volcano-sh/volcano 2045
"""
# Told in the notes of a release, without a number.
KNOWN_OF_RELEASES = ("slurm@25.11", "slurm@26.05")


def known() -> Iterator[str]:
    """Every id that the table must have."""
    yield from KNOWN_OF_RELEASES
    lines = (KNOWN + KNOWN_OF_RESERVATIONS).splitlines()
    for line in filter(None, map(str.strip, lines)):
        repository, *numbers = line.split()
        yield from (f"{repository}#{number}" for number in numbers)


def table() -> list[dict[str, Any]]:
    """The entries, as they are written."""
    found: list[dict[str, Any]] = tomllib.loads(TABLE.read_text("utf-8"))["report"]
    return found


@functools.cache
def _module(path: Path) -> ast.Module:
    return parsed(path)


def problem(test: str, root: Path = ROOT) -> str:
    """What is wrong with the name of a test; empty when it stands and is run."""
    match = _TEST.match(test)
    if match is None:
        return "is no name of a test"
    path = root / match["file"]
    if not path.is_file():
        return "names a file that is not there"
    module = _module(path)
    functions = {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    if match["name"] not in functions:
        return "names a function that is not there"
    if path.name.startswith("test_"):
        if not match["name"].startswith("test_"):
            return "names a function that is no test"
    elif match["name"] not in _scenarios(module):
        return "names a function that no table of scenarios has"
    if match["case"] and match["case"] not in _texts(module):
        return "names a case that is not there"
    return ""


def _scenarios(module: ast.Module) -> set[str]:
    """Names in the module's tuples in capitals, such as SCENARIOS, which are run one by one."""
    values = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple)
    ]
    return {name.id for value in values for name in value.elts if isinstance(name, ast.Name)}


def _texts(module: ast.Module) -> set[object]:
    return {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}


def test_every_known_report_is_in_the_table_once() -> None:
    ids = [id_ for entry in table() for id_ in entry["ids"]]
    assert sorted(ids) == sorted(known())
    assert [id_ for id_ in ids if not _REPORT.match(id_)] == []


def test_every_entry_says_what_failed_what_happens_here_and_which_tests_show_it() -> None:
    for entry in table():
        assert entry.keys() == KEYS
        assert all(entry.values()), entry
        assert len(set(entry["tests"])) == len(entry["tests"]), entry


def test_every_named_test_stands_and_is_run() -> None:
    named = {test for entry in table() for test in entry["tests"]}
    assert {test: problem(test) for test in named if problem(test)} == {}


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("tests/test_it.py::test_a", ""),
        ("tests/test_it.py::test_a[red]", ""),
        ("tests/scenes.py::one", ""),
        ("tests/test_it.py::test_a[blue]", "case"),
        ("tests/test_it.py::test_b", "function that is not there"),
        ("tests/test_it.py::helps", "no test"),
        ("tests/scenes.py::two", "no table"),
        ("tests/test_gone.py::test_a", "file"),
        ("test_a", "no name"),
    ],
)
def test_a_name_that_leads_nowhere_is_found(tmp_path: Path, test: str, words: str) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_it.py").write_text("def helps(): 'red'\nasync def test_a(): pass\n")
    (folder / "scenes.py").write_text("def one(): pass\ndef two(): pass\nSCENES = (one,)\n")
    found = problem(test, tmp_path)
    assert (words in found) if words else (found == "")

"""Captured machines from ``tests/data`` as what the stub answers."""

import re
import xml.etree.ElementTree as Xml
from dataclasses import replace

from tests.captured import DATA
from tests.nvml.stub import SWITCHED, Gpu, Mig, State, gpu

V100_MESH = "topo-m-v100-hybrid-cube-mesh.txt"
DGX_A100 = "topo-m-dgx-a100.txt"
H100 = "nvidia-smi-qx-h100-real.xml"
A100_MIG = "nvidia-smi-q-a100-sxm4-mig4.xml"

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def matrix(name: str, *, switched: bool) -> tuple[Gpu, ...]:
    """GPUs of ``nvidia-smi topo -m``; it does not say whether its links end at a switch."""
    lines = _ESCAPE.sub("", (DATA / name).read_text()).splitlines()
    heads = lines[0].split("\t")
    rows = [
        [cell.strip() for cell in line.split("\t")] for line in lines[1:] if line.startswith("GPU")
    ]
    numa = heads.index("NUMA Affinity")
    return tuple(
        gpu(number, numa=int(row[numa]), links=tuple(_links(heads, row, switched)))
        for number, row in enumerate(rows)
    )


def _links(heads: list[str], row: list[str], switched: bool) -> list[str]:
    counts = {
        int(head[3:]): int(cell[2:])
        for head, cell in zip(heads, row, strict=False)
        if head.startswith("GPU") and re.fullmatch(r"NV\d+", cell)
    }
    if switched:
        return [SWITCHED] * max(counts.values())
    return [f"gpu@{gpu(peer).bus}" for peer, count in counts.items() for _ in range(count)]


def document(name: str) -> State:
    """A machine of ``nvidia-smi -q -x``; instances get the UUIDs that it leaves out."""
    root = Xml.parse(DATA / name).getroot()
    return State(
        driver=_text(root, "driver_version"),
        nvml=f"12.{_text(root, 'driver_version')}",
        cuda=round(float(_text(root, "cuda_version")) * 1000),
        gpus=tuple(_gpu(element) for element in root.iter("gpu")),
    )


def _gpu(element: Xml.Element) -> Gpu:
    enabled = _text(element, "mig_mode/current_mig") == "Enabled"
    minor = int(_text(element, "minor_number"))
    made = gpu(
        minor,
        uuid=_text(element, "uuid"),
        bus=element.attrib["id"],
        name=_text(element, "product_name"),
        mem=_mib(element, "fb_memory_usage/total"),
        persistence=_text(element, "persistence_mode") == "Enabled",
        mig=enabled,
        migs=tuple(_mig(mig, minor) for mig in element.iter("mig_device")) if enabled else (),
    )
    if _text(element, "fabric/state") == "Completed":
        made = replace(made, fabric=(3, 0, int(_text(element, "fabric/cliqueId")), 0))
    return made


def _mig(element: Xml.Element, minor: int) -> Mig:
    gi = int(_text(element, "gpu_instance_id"))
    # An A100 has 14 multiprocessors to a slice.
    slices = int(_text(element, "device_attributes/shared/multiprocessor_count")) // 14
    return Mig(
        uuid=f"MIG-{minor:08x}-0000-4000-8000-{gi:012x}",
        gi=gi,
        ci=int(_text(element, "compute_instance_id")),
        name="NVIDIA A100-SXM4-80GB",
        mem=_mib(element, "fb_memory_usage/total"),
        slices=slices,
        cslices=slices,
    )


def _text(element: Xml.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _mib(element: Xml.Element, path: str) -> int:
    return int(_text(element, path).removesuffix(" MiB"))

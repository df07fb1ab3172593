"""One run of an emulated host: two NUMA nodes of two CPUs and 4 GiB each, with huge pages.

Twelve more CPUs could be plugged in, so that their ids exist and are offline.

Emulated throughout, so that it runs where no hypervisor is: ten to thirty times slower than the
machine it runs on.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.vm.image import Image, pack, run

_KERNEL = (
    "console=ttyS0 root=/dev/nvme0n1 rootfstype=ext4 rw quiet mitigations=off nokaslr audit=0"
    # Timer interrupts of a busy machine come too late for the kernel's check, which then panics.
    " no_timer_check panic=-1"
    " systemd.unit=scenarios.target systemd.show_status=false"
    " hugepagesz=2M hugepages=64 hugepagesz=1G hugepages=0:1,1:1"
)
_RESULTS_MIB = 64
_CODE = re.compile(r"HOST-RESULT code=(\d+)")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run came to: the program's exit code, None when the host never got so far."""

    code: int | None
    results: Path
    console: str


def boot(image: Image, payload: Path, results: Path, *, timeout_s: int, reboots: bool) -> Ended:
    """Boot, run the payload's ``run``, and fetch what it left in ``/results``.

    With ``reboots`` a reboot from inside starts the same disk again; without it ends the run.
    """
    with tempfile.TemporaryDirectory(prefix="better-compute-run-") as folder:
        work = Path(folder)
        pack(payload, work / "payload.ext4", room_mib=32)
        with (work / "results").open("wb") as disk:
            disk.truncate(_RESULTS_MIB << 20)
        _emulate(_arguments(image, work, reboots), timeout_s)
        console = work / "console"
        text = console.read_text(errors="replace") if console.exists() else ""
        codes = _CODE.findall(text)
        if codes:
            results.mkdir(exist_ok=True)
            run("tar", "-C", str(results), "-xf", str(work / "results"))
        return Ended(int(codes[-1]) if codes else None, results, text.replace("\r", ""))


def _emulate(arguments: list[str], timeout_s: int) -> None:
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return  # the console says how far it came
    assert done.returncode == 0, done.stderr[-2000:]


def _arguments(image: Image, work: Path, reboots: bool) -> list[str]:
    def drive(name: str, path: Path, options: str) -> tuple[str, ...]:
        return "-drive", f"file={path},if=none,id={name},format=raw,cache=unsafe,{options}"

    return [
        "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
        "-display", "none", "-nodefaults", *(() if reboots else ("-no-reboot",)),
        "-serial", f"file:{work / 'console'}",
        "-smp", "4,maxcpus=16,sockets=8,cores=2,threads=1", "-m", "8G",
        "-object", "memory-backend-ram,id=m0,size=4G",
        "-object", "memory-backend-ram,id=m1,size=4G",
        "-numa", "node,nodeid=0,cpus=0-1,cpus=4-9,memdev=m0",
        "-numa", "node,nodeid=1,cpus=2-3,cpus=10-15,memdev=m1",
        "-kernel", str(image.kernel), "-append", _KERNEL,
        # The kernel looks at NVMe disks in any order: only the root is one.
        *drive("root", image.disk, "snapshot=on"), "-device", "nvme,drive=root,serial=root",
        *drive("payload", work / "payload.ext4", "readonly=on"),
        "-device", "virtio-blk-pci,drive=payload,serial=payload",
        *drive("results", work / "results", "discard=ignore"),
        "-device", "virtio-blk-pci,drive=results,serial=results",
    ]  # fmt: skip

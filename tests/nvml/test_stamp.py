"""Which driver is loaded, and whether it is still the one that was."""

from pathlib import Path

import pytest

from bcd.node.host.kernel_module import kernel_version
from bcd.node.host.nvml.stamp import driver_stamp


def write(root: Path, text: str) -> Path:
    path = root / "proc/driver/nvidia/version"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC"
            " 2023\nGCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n",
            "535.54.03",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
            "  (dvs-builder@x)\nGCC version:  gcc version 12.2.0\n",
            "580.65.06",
        ),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86  Mon\n", "570.86"),
        ("", ""),
        ("\0\xff nonsense", ""),
    ],
)
def test_the_module_says_its_version(tmp_path: Path, text: str, version: str) -> None:
    assert kernel_version(write(tmp_path, text)) == version


def test_no_module_has_no_version(tmp_path: Path) -> None:
    assert kernel_version(tmp_path) == ""


def test_another_module_library_or_link_is_another_driver(tmp_path: Path) -> None:
    write(tmp_path, "NVRM version: Kernel Module  535.54.03  Tue\n")
    library = tmp_path / "libnvidia-ml.so.535.54.03"
    library.touch()
    link = tmp_path / "libnvidia-ml.so.1"
    link.symlink_to(library)
    stamps = [driver_stamp(tmp_path, str(library))]
    assert stamps[0] == driver_stamp(tmp_path, str(library))
    fresh = tmp_path / "libnvidia-ml.so.580.65.06"
    fresh.touch()
    link.unlink()
    link.symlink_to(fresh)
    stamps.append(driver_stamp(tmp_path, str(library)))
    library.unlink()
    stamps.append(driver_stamp(tmp_path, str(library)))
    write(tmp_path, "NVRM version: Kernel Module  580.65.06  Tue\n")
    stamps.append(driver_stamp(tmp_path, str(library)))
    assert len(set(stamps)) == 4

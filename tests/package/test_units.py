"""The units, on the Debian they are installed on: well formed, and exposing little."""

import re

import pytest

from tests.package.debian import Debian

# systemd's own scale, 0 to 10; a service without any hardening has 9.6. The daemon is root and
# needs devices and cgroups.
LIMITS = {"bcd.service": 2.5, "bcd-gateway.service": 1.5, "bcd-placer.service": 1.5}


@pytest.mark.parametrize("unit", LIMITS)
def test_a_unit_exposes_no_more_than_it_must(installed: Debian, unit: str) -> None:
    said = installed.run("systemd-analyze", "security", "--offline=true", unit)
    (level,) = re.findall(rf"Overall exposure level for {re.escape(unit)}: ([0-9.]+)", said)
    assert float(level) <= LIMITS[unit], said


def test_systemd_has_nothing_to_say_about_any_unit(installed: Debian) -> None:
    units = [
        path
        for package in ("bcd", "bcd-control")
        for path in installed.files(package)
        if re.fullmatch(r"/usr/lib/systemd/system/[^/]+\.[a-z]{2,}", path)
    ]
    assert len(units) >= len(LIMITS)
    said = installed.run("systemd-analyze", "verify", "--man=no", *units, check=False)
    # The driver's own programs come with the driver.
    assert [line for line in said.splitlines() if "Command nvidia-" not in line] == []

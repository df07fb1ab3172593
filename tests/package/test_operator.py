"""An operator's day on one machine, with systemd as PID 1, from the packages alone."""

import shutil
from pathlib import Path

import pytest

from tests.package import booted
from tests.package.build import Debs, next_version
from tests.package.debian import Debian

JOURNEY = Path(__file__).with_name("operator.sh")


@pytest.mark.timeout(600)
def test_install_join_reserve_upgrade_and_remove_work_and_keep_the_hold(
    host: Debian, debs: Debs, tmp_path: Path
) -> None:
    host.install(debs.daemon, debs.control)
    host.path("/root/newer").mkdir()
    for deb in (debs.daemon, debs.control):
        newer = next_version(deb, tmp_path)
        shutil.copy(newer, host.path("/root/newer") / newer.name.removeprefix("newer-"))
    said = booted.run(host, JOURNEY.read_text())
    assert "1 of 1 holds bound" in said
    assert "Traceback" not in said

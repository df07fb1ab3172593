"""Boots a Debian folder with systemd as PID 1, runs a script in it, and shuts it down.

systemd-nspawn without any resource controller: units, their sandboxes and their signals are real,
limits are not. It has a network of its own, with nothing in it but itself.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tests.package.debian import Debian

_SERVICE = """
[Unit]
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=infinity
Environment=HOME=/root LC_ALL=C.UTF-8
WorkingDirectory=/root
ExecStart=/bin/sh /root/script
StandardOutput=file:/root/script.log
StandardError=inherit
"""
# Ours alone; what a whole boot would start besides, takes time and is of no use here.
_TARGET = """
[Unit]
Requires=basic.target script.service
After=basic.target
AllowIsolate=yes
"""


def run(host: Debian, script: str, timeout_s: float = 240.0) -> str:
    """Boot, run the shell script as root, and give its output; fails with it if the script does."""
    if shutil.which("systemd-nspawn") is None:
        raise RuntimeError(
            "systemd-nspawn is not installed:"
            " run apt-get install -y --no-install-recommends systemd-container"
        )
    host.write("/root/script", script)
    host.write("/etc/systemd/system/script.service", _SERVICE)
    host.write("/etc/systemd/system/script.target", _TARGET)
    host.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
    host.path("/etc/resolv.conf").unlink(missing_ok=True)
    done = subprocess.run(
        ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network",
         "--resolv-conf=off", "--timezone=off", "--machine=bcd-package",
         f"--directory={host.folder}", "--boot", "systemd.unit=script.target"],
        env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    _tidy()
    log = host.path("/root/script.log")
    said = log.read_text() if log.exists() else "the script was not started"
    journal = subprocess.run(
        ["journalctl", "--no-pager", "-D", str(host.path("/var/log/journal"))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{said}\n{journal.stdout[-4000:]}"
    return said


def _tidy() -> None:
    """Remove the empty groups that nspawn leaves in the group that it was started in."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    roots = {"": "/sys/fs/cgroup/unified", "name=systemd": "/sys/fs/cgroup/systemd"}
    for _, controllers, path in own:
        if controllers in roots:
            for name in ("payload", "supervisor"):
                left = Path(roots[controllers] + path) / name
                if left.is_dir() and not any(one.is_dir() for one in left.iterdir()):
                    left.rmdir()

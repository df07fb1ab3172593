"""Runs every scenario, cleans up after each, reboots, and goes on with those of after a reboot.

``python3 -m tests.vm.guest FOLDER`` in the emulated host writes ``outcomes.json``: for each
scenario its ``problem`` (empty when it held), what it ``said``, and ``seconds``. A scenario that
fails never stops the others.
"""

import contextlib
import io
import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from tests.contracts.slice_cases import CASES
from tests.vm.guest.host import Hold, journal, run
from tests.vm.guest.mps import MPS
from tests.vm.guest.slices import AFTER_REBOOT, SCENARIOS, Scenario, before_reboot
from tests.vm.guest.tools import TOOLS

_REBOOTED = 100_000  # the number of the hold that lives through the reboot


def main() -> None:
    """The first or the second half, as the folder says."""
    target = Path(sys.argv[1]) / "outcomes.json"
    if not target.exists():
        scenarios = enumerate((*SCENARIOS, *TOOLS, *MPS))
        _write(target, {each.__name__: _outcome(each, _hold(n)) for n, each in scenarios})
        before_reboot(Hold(_REBOOTED))
        os.sync()
        run("systemctl", "reboot", "--force", "--force")
        time.sleep(60)  # it is under way
        sys.exit("the host did not reboot")
    found = json.loads(target.read_text())
    _write(
        target, found | {each.__name__: _outcome(each, Hold(_REBOOTED)) for each in AFTER_REBOOT}
    )


def _write(target: Path, found: dict[str, Any]) -> None:
    target.write_text(json.dumps(found, indent=1))


def _hold(number: int) -> Hold:
    """A hold of the scenario's own; the contract's cases, which come first, share one.

    Whatever was loaded under a slice's name at a daemon-reload, systemd remembers.
    """
    return Hold(max(1, number - len(CASES) + 2))


def _outcome(scenario: Scenario, hold: Hold) -> dict[str, Any]:
    said = io.StringIO()
    problem = ""
    began, since = time.monotonic(), time.time()
    with contextlib.redirect_stdout(said):
        for part in (partial(scenario, hold), hold.clean):
            try:
                part()
            except Exception:
                problem = problem or f"{traceback.format_exc()}\n{journal(since)}"
    seconds = round(time.monotonic() - began, 1)
    print(f"{'FAILED' if problem else 'ok':6} {seconds:6.1f} s  {scenario.__name__}", flush=True)
    print(f"{said.getvalue()}{problem}", end="", flush=True)
    return {"problem": problem, "said": said.getvalue(), "seconds": seconds}


if __name__ == "__main__":
    main()

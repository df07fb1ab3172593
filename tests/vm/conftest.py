"""One boot for all tests here: each reads what came of its own scenario."""

import json
from pathlib import Path

import pytest

from tests.vm import payload
from tests.vm.image import image
from tests.vm.machine import boot

# An emulated host on a busy machine; it takes two minutes on an idle one.
_BOOT_S = 900
Outcomes = dict[str, dict[str, str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the image and the boot."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_BOOT_S + 300))


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of every scenario, by its name: ``problem`` is empty when it held."""
    folder = tmp_path_factory.mktemp("vm")
    payload.fill(folder / "payload")
    ended = boot(
        image(payload.suite()),
        folder / "payload",
        folder / "results",
        timeout_s=_BOOT_S,
        reboots=True,
    )
    print(ended.console)
    assert ended.code == 0, f"the host did not come to its end:\n{ended.console[-4000:]}"
    found: Outcomes = json.loads((folder / "results/outcomes.json").read_text())
    return found

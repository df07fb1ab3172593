"""One boot for all tests of a file: each reads what came of its own scenario."""

import json
from pathlib import Path

import pytest

from tests.vm import gpu_payload, payload
from tests.vm.image import Image, image
from tests.vm.machine import boot

# An emulated host on a busy machine; it takes two minutes on an idle one.
_BOOT_S = 900
Outcomes = dict[str, dict[str, str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the image and the boot."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_BOOT_S + 300))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Debian 13 as well with ``--rounds bench``: another systemd, kernel, Python and podman."""
    bench = metafunc.config.getoption("--rounds") == "bench"
    for fixture, first in (("outcomes", payload.suite()), ("journey", "bookworm")):
        if fixture in metafunc.fixturenames:
            suites = [first, "trixie"] if bench and first != "trixie" else [first]
            metafunc.parametrize(fixture, suites, indirect=True, scope="session")


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of every scenario of slices, tools and MPS daemons on one suite."""
    folder = tmp_path_factory.mktemp("vm")
    if request.param == payload.suite():
        payload.fill(folder / "payload")
        return _outcomes(image(request.param), folder)
    payload.fill_for_trixie(folder / "payload")
    return _outcomes(image(request.param, payload.TRIXIE_PACKAGES), folder)


@pytest.fixture(scope="session")
def journey(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of every scenario of the operator's host on one suite."""
    folder = tmp_path_factory.mktemp("journey")
    # Debian 12's podman reads no annotations.
    annotations = "never" if request.param == "bookworm" else "always"
    gpu_payload.fill(folder / "payload", annotations, request.param)
    return _outcomes(image(request.param, gpu_payload.PACKAGES), folder)


def _outcomes(on: Image, folder: Path) -> Outcomes:
    """Boot with the payload in ``folder``; by its name: ``problem`` is empty when it held."""
    ended = boot(on, folder / "payload", folder / "results", timeout_s=_BOOT_S, reboots=True)
    print(ended.console)
    assert ended.code == 0, f"the host did not come to its end:\n{ended.console[-4000:]}"
    found: Outcomes = json.loads((folder / "results/outcomes.json").read_text())
    return found

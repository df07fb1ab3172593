"""The stub, compiled once, and hosts on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nvml.stub import Host, State, build

MakeHost = Callable[..., Host]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub of an old driver."""
    return build(tmp_path_factory.mktemp("nvml-old"), old=True)


@pytest.fixture
def host(tmp_path: Path, library: Path) -> MakeHost:
    """Make a host with a state."""
    return lambda **state: Host(tmp_path, library, State(**state))

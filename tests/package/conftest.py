"""One build and one Debian for the whole run; each test gets a copy of the Debian."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package import debian
from tests.package.build import Debs, build
from tests.package.debian import Debian


@pytest.fixture(scope="session")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Debs:
    """The packages of this checkout."""
    return build(tmp_path_factory.mktemp("debs"))


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian without our packages. Not to be changed."""
    folder = tmp_path_factory.mktemp("debian") / "clean"
    debian.make(folder)
    return folder


@pytest.fixture(scope="session")
def installed(clean: Path, debs: Debs) -> Iterator[Debian]:
    """A Debian with both packages. Not to be changed."""
    with debian.copied(clean, clean.with_name("installed")) as host:
        host.install(debs.daemon, debs.control)
        yield host


@pytest.fixture
def host(clean: Path, tmp_path: Path) -> Iterator[Debian]:
    """A Debian of this test's own, without our packages."""
    with debian.copied(clean, tmp_path / "debian") as own:
        yield own

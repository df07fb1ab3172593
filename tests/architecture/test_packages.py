"""Where is what: the docstring of a package of the control plane names each of its modules."""

import importlib
import re

import pytest

from tests.architecture.tree import ROOT

PACKAGES = [
    ".".join(path.relative_to(ROOT).parent.parts)
    for path in sorted((*ROOT.glob("bcd/placer/**/__init__.py"), ROOT / "bcd/store/__init__.py"))
]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_each_of_its_modules(package: str) -> None:
    modules = {path.stem for path in (ROOT / package.replace(".", "/")).glob("*.py")}
    words = importlib.import_module(package).__doc__ or ""
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"``([a-z_./]+)``", words))))
    assert modules - {"__init__"} - named == set()

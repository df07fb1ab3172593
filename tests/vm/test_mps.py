"""MPS daemons as units of a real systemd; ``guest/mps.py`` says what each sentence means."""

import pytest

from tests.vm.conftest import Outcomes
from tests.vm.guest.mps import MPS


@pytest.mark.parametrize("name", [each.__name__ for each in MPS])
def test_mps(name: str, outcomes: Outcomes) -> None:
    assert name in outcomes, "the host ended before this scenario"
    assert not outcomes[name]["problem"], outcomes[name]["problem"]

"""Slices on a real systemd and a real kernel; ``guest/slices.py`` says what each sentence means."""

import pytest

from tests.vm.conftest import Outcomes
from tests.vm.guest.slices import AFTER_REBOOT, SCENARIOS


@pytest.mark.parametrize("name", [each.__name__ for each in (*SCENARIOS, *AFTER_REBOOT)])
def test_slices(name: str, outcomes: Outcomes) -> None:
    assert name in outcomes, "the host ended before this scenario"
    assert not outcomes[name]["problem"], outcomes[name]["problem"]

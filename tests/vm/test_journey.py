"""An operator's host from installation to removal; ``guest/journey.py`` has the sentences."""

import pytest

from tests.vm.conftest import Outcomes
from tests.vm.guest.journey import AFTER_REBOOT, SCENARIOS


@pytest.mark.parametrize("name", [each.__name__ for each in (*SCENARIOS, *AFTER_REBOOT)])
def test_journey(name: str, journey: Outcomes) -> None:
    assert name in journey, "the host ended before this scenario"
    assert not journey[name]["problem"], journey[name]["problem"]

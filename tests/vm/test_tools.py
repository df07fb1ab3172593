"""The operator's commands on a real systemd; ``guest/tools.py`` says what each sentence means."""

import pytest

from tests.vm.conftest import Outcomes
from tests.vm.guest.tools import TOOLS


@pytest.mark.parametrize("name", [each.__name__ for each in TOOLS])
def test_tools(name: str, outcomes: Outcomes) -> None:
    assert name in outcomes, "the host ended before this scenario"
    assert not outcomes[name]["problem"], outcomes[name]["problem"]

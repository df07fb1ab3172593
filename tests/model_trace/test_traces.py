"""Random histories of the real service do what the rules say, on either engine (spec 3 to 10)."""

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import Rounds
from tests.model_trace.machine import Trace
from tests.model_trace.test_tours import strangers

SEED = int(os.environ.get("BCD_TRACE_SEED", "1"))
STEPS = 30


def run_traces(traces: type[Trace], count: int) -> None:
    """So many histories of up to 30 steps, from the seed."""
    seed(SEED)(traces)
    run_state_machine_as_test(
        traces,
        settings=settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(7200)
def test_random_histories_do_what_the_rules_say(
    traces: type[Trace], rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f" seed {SEED}", end="")
        run_traces(traces, rounds(100, 2000))
        print(f", {len(traces.histories)} histories, {sum(traces.histories)} operations", end="")
    assert strangers(traces.steps) == []
    assert len(traces.histories) >= rounds(100, 2000)

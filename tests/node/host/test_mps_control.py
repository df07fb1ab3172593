"""The MPS control program, played by scripts: what it says is an answer, a deadline, or nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bcd.node.host.mps_control import ControlProgram, Timing
from tests.node.host.made_mps import Clock
from tests.node.world import eventually

Make = Callable[[str], ControlProgram]
CLOCK = Clock()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A control program that runs these lines of a shell."""

    def made(script: str) -> ControlProgram:
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return ControlProgram(
            Timing(answer_s=1.5, start_s=0.0, avoid_s=60.0),
            environment={"PATH": f"{tmp_path}:{os.defpath}", "SECRET": "x"},
            clock=CLOCK.now,
        )

    return made


def test_it_is_asked_on_its_input_and_told_the_pipe_directory_only(
    make: Make, tmp_path: Path
) -> None:
    control = make('read -r line; echo "$line $CUDA_MPS_PIPE_DIRECTORY$SECRET"')
    assert control.ask(tmp_path, "get_server_list") == f"get_server_list {tmp_path}\n"


@pytest.mark.parametrize(
    "script",
    ["echo Cannot find MPS control daemon process", "exit 1", "echo 25.0; exit 1", "exec yes"],
)
def test_what_is_no_answer_is_none_and_the_next_question_is_asked(
    make: Make, tmp_path: Path, script: str
) -> None:
    control = make(script)
    assert control.ask(tmp_path, "x") is None
    assert not control.avoids(tmp_path)


def test_a_program_that_answers_without_reading_has_answered(make: Make, tmp_path: Path) -> None:
    assert make("exec <&-; echo 25.0").ask(tmp_path, "x") == "25.0\n"


@pytest.mark.parametrize("script", ["exec sleep 60", "echo 25.0; exec >&-; exec sleep 60"])
@pytest.mark.asyncio
async def test_a_program_that_hangs_is_ended_and_its_daemon_left_alone_for_a_while(
    make: Make, tmp_path: Path, script: str
) -> None:
    control = make(f'echo $$ >"{tmp_path}/pid"; {script}')
    assert control.ask(tmp_path, "x") is None
    pid = int((tmp_path / "pid").read_text())
    assert control.avoids(tmp_path)
    assert not control.avoids(tmp_path / "another")
    (tmp_path / "pid").unlink()
    assert control.ask(tmp_path, "x") is None
    assert not (tmp_path / "pid").exists(), "it was not asked"
    await eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    CLOCK.slept += 60.0
    assert control.ask(tmp_path / "another", "x") is None
    assert not psutil.pid_exists(pid)
    assert not control.avoids(tmp_path)


def test_a_daemon_that_was_started_anew_is_asked_at_once(make: Make, tmp_path: Path) -> None:
    control = make("[ -e hung ] || exec sleep 60; echo 25.0".replace("hung", f"{tmp_path}/hung"))
    assert control.ask(tmp_path, "x") is None
    (tmp_path / "hung").touch()
    control.forgive(tmp_path)
    assert control.ask(tmp_path, "x") == "25.0\n"

"""The Slurm recipe under a real Slurm: a job sees its hold's GPUs, and no node is drained."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.world import alloc_id, limits
from tests.packaging.recipe import RECIPES, Recipes
from tests.slurm.cluster import Slurm, running

SHOW = 'echo "$CUDA_VISIBLE_DEVICES|$NVIDIA_VISIBLE_DEVICES|$GPU_DEVICE_ORDINAL|$BCD_CPUS"'


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Recipes:
    return Recipes(tmp_path_factory.mktemp("recipes"))


@pytest.fixture(scope="module")
def slurm(recipes: Recipes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    for name in ("prolog.sh", "task_prolog.sh", "epilog.sh"):
        recipes.script(f"slurm/{name}")
    lines = (RECIPES / "slurm/slurm.conf").read_text()
    with running(
        tmp_path_factory.mktemp("slurm"), lines.replace("/etc/slurm/bcd", str(recipes.folder))
    ) as cluster:
        yield cluster


def links(recipes: Recipes) -> list[Path]:
    return list((recipes.folder / "slurm").glob("*.env"))


def test_a_job_sees_the_gpus_of_its_hold(slurm: Slurm, recipes: Recipes) -> None:
    recipes.hold(1, 5, 6, limits=limits(cpus="0-3"))
    done = slurm.run(
        "srun", f"--comment=bcd={alloc_id(1)}", "--gres=gpu:2", "sh", "-c", f"{SHOW}; exit 5"
    )
    assert done.stdout.splitlines() == ["GPU-5,GPU-6|GPU-5,GPU-6||0-3"], done
    assert done.returncode == 5
    slurm.until_idle()


def test_a_job_without_a_hold_has_what_slurm_gives(slurm: Slurm) -> None:
    done = slurm.run("srun", "--gres=gpu:1", "sh", "-c", SHOW)
    assert done.stdout.splitlines() == ["0||0|"], done


def test_a_job_whose_hold_is_not_here_fails_with_a_sentence_and_drains_nothing(
    slurm: Slurm,
) -> None:
    done = slurm.run("srun", f"--comment=bcd={alloc_id(9)}", "--gres=gpu:1", "sh", "-c", SHOW)
    assert done.returncode == 1, done
    assert "the hold that this job's comment names is not on" in done.stdout
    assert "|" not in done.stdout
    slurm.until_idle()
    again = slurm.run("srun", "true")
    assert (again.returncode, slurm.node_state().startswith(("IDLE", "ALLOC"))) == (0, True)


def test_a_finished_job_leaves_no_link(slurm: Slurm, recipes: Recipes) -> None:
    recipes.hold(1, 5)
    assert slurm.run("srun", f"--comment=bcd={alloc_id(1)}", "true").returncode == 0
    slurm.until_idle()
    assert links(recipes) == []


def test_a_prolog_that_fails_would_drain_the_node(slurm: Slurm, recipes: Recipes) -> None:
    script = recipes.folder / "prolog.sh"
    before = script.read_text()
    script.write_text("#!/bin/sh\nexit 1\n")
    try:
        slurm.run("srun", "--immediate=5", "true")
        assert "DRAIN" in slurm.node_state()
    finally:
        script.write_text(before)
        slurm.run("scontrol", "update", "NodeName=made", "State=RESUME")

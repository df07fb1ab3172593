"""The recipes for workload managers: what scripts do with made holds, and settings."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from bcd.model.assignment import slice_name
from bcd.model.ids import AllocationId, is_allocation_id
from bcd.node.host.doctor.runtimes import _enable_cdi, _feature
from tests.node.world import alloc_id, limits
from tests.packaging.recipe import RECIPES, Recipes, exported

SCRIPTS = ("slurm/prolog.sh", "slurm/task_prolog.sh", "slurm/epilog.sh", "run-in-hold")
SHELLS = ("sh", "bash")


@pytest.fixture
def recipes(tmp_path: Path) -> Recipes:
    return Recipes(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_sound_and_may_be_run(name: str, shell: str) -> None:
    done = subprocess.run(
        [shell, "-n", RECIPES / name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (RECIPES / name).stat().st_mode & 0o777 == 0o755


def prolog(recipes: Recipes, comment: str, shell: str = "sh") -> None:
    done = recipes.run("slurm/prolog.sh", shell=shell, SLURM_JOB_ID="7", SLURM_JOB_COMMENT=comment)
    assert (done.returncode, done.stdout) == (0, ""), done  # anything else drains the node


@pytest.mark.parametrize("shell", SHELLS)
def test_a_job_whose_comment_names_a_hold_gets_its_variables(recipes: Recipes, shell: str) -> None:
    recipes.hold(1, 3, 4, limits=limits(cpus="0-7"))
    prolog(recipes, f"nightly bcd={alloc_id(1)} run", shell)
    done = recipes.run("slurm/task_prolog.sh", shell=shell, SLURM_JOB_ID="7")
    assert (done.returncode, done.stderr) == (0, "")
    found = exported(done.stdout)
    assert found["CUDA_VISIBLE_DEVICES"] == found["NVIDIA_VISIBLE_DEVICES"] == "GPU-3,GPU-4"
    assert found["BCD_ALLOCATION_ID"] == alloc_id(1)
    assert found["BCD_CPUS"] == "0-7"
    unset = [line for line in done.stdout.splitlines() if line.startswith("unset ")]
    assert "unset GPU_DEVICE_ORDINAL" in unset
    assert recipes.run("slurm/epilog.sh", SLURM_JOB_ID="7").returncode == 0
    assert not recipes.link(7).is_symlink()


def test_a_hold_that_comes_a_moment_later_is_waited_for(recipes: Recipes) -> None:
    recipes.hold(1, 3)
    path = recipes.folder / f"allocations/{alloc_id(1)}.env"
    away = path.rename(recipes.folder / "away")
    # The first look finds nothing; while the script sleeps, the hold comes.
    recipes.program("sleep", f"mv {away} {path}")
    script = recipes.script("slurm/prolog.sh")
    script.write_text(script.read_text().replace("wait_seconds=0", "wait_seconds=2"))
    words = {"SLURM_JOB_ID": "7", "SLURM_JOB_COMMENT": f"bcd={alloc_id(1)}"}
    done = subprocess.run(
        ["sh", script],
        check=False,
        env={"PATH": f"{recipes.folder}/bin:/usr/bin:/bin", **words},
        timeout=30,
    )
    assert done.returncode == 0
    assert recipes.link(7).exists()


@pytest.mark.parametrize("comment", ["", "nightly", "abcd=x", "BCD=alloc_1"])
def test_a_job_that_names_no_hold_is_left_alone(recipes: Recipes, comment: str) -> None:
    prolog(recipes, comment)
    assert not recipes.link(7).is_symlink()
    done = recipes.run("slurm/task_prolog.sh", SLURM_JOB_ID="7")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_job_without_a_comment_is_left_alone(recipes: Recipes) -> None:
    done = recipes.run("slurm/prolog.sh", SLURM_JOB_ID="7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HOSTILE = [
    "../../../etc/passwd",
    "alloc_$(touch${IFS}owned)aaaaaaaaaaaa",
    "alloc_;touch",
    "alloc_" + "a" * 25,
    "alloc_" + "a" * 27,
    "alloc_" + "A" * 26,
    "*",
    "",
]


@pytest.mark.parametrize("name", [str(alloc_id(9)), *HOSTILE])
def test_a_hold_that_is_not_here_ends_the_task_and_not_the_node(
    recipes: Recipes, name: str
) -> None:
    recipes.hold(1, 3)
    recipes.program("logger", f'echo "$@" >> {recipes.folder}/log')
    prolog(recipes, f"bcd={name}")
    done = recipes.run("slurm/task_prolog.sh", SLURM_JOB_ID="7")
    if name:
        assert done.returncode == 1
        assert done.stdout.startswith(
            "print bcd: the hold that this job's comment names is not on "
        )
        assert "see: bcd holds" in (recipes.folder / "log").read_text()
    assert "export" not in done.stdout
    assert not list(recipes.folder.rglob("owned"))


def test_a_line_of_another_kind_is_not_passed_on(recipes: Recipes) -> None:
    recipes.hold(1, 3)
    path = recipes.folder / f"allocations/{alloc_id(1)}.env"
    path.write_text(path.read_text() + "LD_PRELOAD=/x.so\nPATH=/x\nbcd_x=1\nBCD_=1\n")
    prolog(recipes, f"bcd={alloc_id(1)}")
    found = exported(recipes.run("slurm/task_prolog.sh", SLURM_JOB_ID="7").stdout)
    assert {key for key in found if not key.startswith("BCD_")} == {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    }
    assert "BCD_" not in found


# Containers.


@pytest.mark.parametrize("program", ["podman", "docker"])
def test_a_container_gets_every_device_and_the_slice(recipes: Recipes, program: str) -> None:
    recipes.hold(1, 3, 4, limits=limits())
    recipes.program(program, 'printf "%s\\n" "$@"')
    words = ("--rm", "image", "sh", "-c", "a  b")
    done = recipes.run("run-in-hold", program, str(alloc_id(1)), *words)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said[0] == "run"
    assert set(said[1:-5]) == {
        f"--env-file={recipes.folder}/allocations/{alloc_id(1)}.env",
        "--device=bcd.dev/gpu=GPU-3",
        "--device=bcd.dev/gpu=GPU-4",
        f"--cgroup-parent=bcd-alloc-{alloc_id(1)}.slice",
    }
    assert tuple(said[-5:]) == words


def test_a_hold_without_limits_has_no_slice_to_go_to(recipes: Recipes) -> None:
    recipes.hold(1, 3)
    recipes.program("podman", 'printf "%s\\n" "$@"')
    done = recipes.run("run-in-hold", "podman", str(alloc_id(1)), "image")
    assert "--cgroup-parent" not in done.stdout


@pytest.mark.parametrize("name", ["../x", "alloc_none", "a b", "$(id)"])
def test_a_container_without_its_hold_is_not_started(recipes: Recipes, name: str) -> None:
    recipes.program("podman", "echo started")
    done = recipes.run("run-in-hold", "podman", name, "image")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("run-in-hold: ")
    assert "bcd holds" in done.stderr


@pytest.mark.parametrize("version", ["4.3.1", "4.9.3", "5.4.2"])
def test_podman_before_5_is_not_asked_for_a_mig_instance(recipes: Recipes, version: str) -> None:
    recipes.hold(1, 3)
    path = recipes.folder / f"allocations/{alloc_id(1)}.env"
    path.write_text(path.read_text().replace("bcd.dev/gpu=", "bcd.dev/gpu.mig="))
    recipes.program("podman", f"echo podman version {version}")
    done = recipes.run("run-in-hold", "podman", str(alloc_id(1)), "image")
    if version[0] == "5":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stdout) == (1, "")
        assert f"podman {version} cannot read specs of MIG instances and slots" in done.stderr


# Settings of others.


@pytest.mark.parametrize("name", ["config-1.7.toml", "config-2.toml"])
def test_containerds_settings_are_what_the_doctor_wants(name: str) -> None:
    text = (RECIPES / "containerd" / name).read_text()
    assert _enable_cdi(text) is True
    [plugin] = tomllib.loads(text)["plugins"].values()
    assert plugin["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]


def test_dockers_settings_are_what_the_doctor_wants() -> None:
    text = (RECIPES / "docker/daemon.json").read_text()
    assert _feature(text) is True
    assert json.loads(text)["cdi-spec-dirs"] == ["/etc/cdi", "/var/run/cdi"]


def test_slurms_lines_name_scripts_that_there_are() -> None:
    lines = (RECIPES / "slurm/slurm.conf").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and line[0] != "#")
    for key in ("Prolog", "TaskProlog", "Epilog"):
        assert (RECIPES / "slurm" / Path(settings[key]).name).exists()


def test_the_example_of_a_slurmd_in_a_hold_is_its_lines_filled_in() -> None:
    lines = (RECIPES / "slurm/slurmd-in-hold.conf").read_text().splitlines()
    shown = [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]
    (slice_line, env_line) = shown
    id_ = env_line.partition("allocations/")[2].removesuffix(".env")
    assert is_allocation_id(id_)
    assert slice_line == f"Slice={slice_name(AllocationId(id_))}"
    for line in shown:
        assert line.replace(id_, "ALLOCATION") in lines


def test_the_packages_say_how_they_are_built() -> None:
    for word in ("-h", "--help"):
        done = subprocess.run(
            [RECIPES.parent / "build-deb", word], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "packaging/build-deb OUT" in done.stdout
        assert "SOURCE_DATE_EPOCH" in done.stdout
        assert "set -" not in done.stdout

"""The settings that the recipes give other runtimes, judged by those programs of Debian 13.

Nothing of them runs but the reading of their settings. containerd 2 is in no Debian yet.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.podman.container import build_tree

RECIPES = Path(__file__).parents[2] / "packaging/recipes"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Debian 13's containerd and Docker, with the recipes beside them."""
    folder = tmp_path_factory.mktemp("runtimes") / "tree"
    build_tree("trixie", folder, ("busybox-static", "containerd", "docker.io"))
    shutil.copytree(RECIPES, folder / "recipes")
    yield folder
    shutil.rmtree(folder)


def inside(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["chroot", str(tree), *command], capture_output=True, text=True, check=False, timeout=60
    )


def test_containerd_takes_the_recipe_and_turns_cdi_on(tree: Path) -> None:
    recipe = "/recipes/containerd/config-1.7.toml"
    plain = inside(tree, "/usr/bin/containerd", "config", "default")
    assert "enable_cdi = false" in plain.stdout
    with_it = inside(tree, "/usr/bin/containerd", "-c", recipe, "config", "dump")
    assert with_it.returncode == 0, with_it.stderr
    assert "enable_cdi = true" in with_it.stdout
    assert 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]' in with_it.stdout


def test_docker_takes_the_recipe(tree: Path) -> None:
    command = ("/usr/sbin/dockerd", "--validate", "--config-file")
    done = inside(tree, *command, "/recipes/docker/daemon.json")
    assert done.returncode == 0, done.stderr
    wrong = tree / "recipes/docker/wrong.json"
    wrong.write_text('{"featuresx": {"cdi": true}}')
    assert inside(tree, *command, "/recipes/docker/wrong.json").returncode != 0

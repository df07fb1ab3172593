"""The section ``nvml`` of the settings file."""

from pathlib import Path

import pytest

from bcd.cli.program import load_settings
from bcd.model.errors import BadConfiguration
from bcd.node.settings import NvmlSettings, Settings

GATEWAY = '[gateway]\naddress = "g:7443"\nenroll_address = "g:7444"\n[nvml]\n'


def load(tmp_path: Path, text: str) -> NvmlSettings:
    path = tmp_path / "bcd.toml"
    path.write_text(GATEWAY + text)
    return load_settings(path, Settings).nvml


def test_a_host_s_own_xids_and_programs_are_taken(tmp_path: Path) -> None:
    text = "fatal_xids = [94]\nignored_xids = [63, 79]\nignored_processes = ['dcgm']\n"
    assert load(tmp_path, text) == NvmlSettings(
        fatal_xids=(94,), ignored_xids=(63, 79), ignored_processes=("dcgm",)
    )


@pytest.mark.parametrize(
    "text",
    [
        "deadline_seconds = 0\n",
        "probe_seconds = 1e9\n",
        "init_seconds = 'long'\n",
        "busy_check = 1\n",
        "fatal_xids = [0]\n",
        "ignored_xids = [70000]\n",
        "ignored_xids = ['79']\n",
        "ignored_processes = ['']\n",
        "unknown = 1\n",
    ],
)
def test_a_bad_value_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfiguration, match=text.split(" ")[0]):
        load(tmp_path, text)

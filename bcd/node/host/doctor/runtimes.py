"""Checks of container runtimes: whether they read the specs of holds.

podman 4.3.1 takes CDI up to 0.5.0 and no annotations, 5.4.2 up to 0.8.0 with them; containerd
1.6.20 drops CDI devices without a word (all three measured). Annotations, and classes with a dot
in their name, need CDI 0.6.0, whatever the settings say of annotations. containerd 1.7 reads
specs when ``enable_cdi`` is set, and 2.0 by default; Docker from 25.0 with a feature flag, from
28.2 by default (moby/moby pull request 49963).
"""

import contextlib
import json
import re
import tomllib
from typing import Any

from bcd.model.report import Failed
from bcd.node.host.doctor.finding import Answer, failed, ok, warning
from bcd.node.host.doctor.patient import Patient, Told
from bcd.node.host.standing import standing_holds

_VERSION = re.compile(r"\bv?([0-9]+)\.([0-9]+)(?:\.([0-9]+))?")
_CONTAINERD = "etc/containerd/config.toml"
_DOCKER = "etc/docker/daemon.json"
_CDI_0_6 = (5, 0, 0)  # the first podman that is known to read it


def podman(patient: Patient) -> Answer:
    """Reads /etc/cdi on every run."""
    version = _version(patient, "podman")
    if isinstance(version, Answer):
        return version
    if version < (4, 1, 0):
        return failed(f"{_dotted(version)} reads no CDI", "install podman 4.1 or newer")
    dotted = _dotted_classes(patient) if version < _CDI_0_6 else []
    if dotted:
        return warning(
            f"{_dotted(version)} cannot read specs of {' and '.join(dotted)} (CDI 0.6), which this"
            " host has",
            "install podman 5 or newer, or book whole GPUs for containers of podman here",
        )
    if version < (4, 4, 0) and patient.settings.cdi.annotations == "always":
        return warning(
            f"{_dotted(version)} refuses specs with annotations, which holds with limits have",
            'set annotations = "never" in [cdi] of the settings; then: systemctl reload bcd',
        )
    return ok(f"{_dotted(version)} reads CDI")


def _dotted_classes(patient: Patient) -> list[str]:
    """The classes with a dot that this host has to give, or holds."""
    found = set(patient.daemon.classes) if isinstance(patient.daemon, Told) else set()
    with contextlib.suppress(OSError):  # which other checks tell of
        for standing in standing_holds(patient.paths, patient.slices):
            if standing.hold is not None:
                found |= {str(device.device_class) for device in standing.hold.devices}
    return sorted(name for name in found if "." in name)


def containerd(patient: Patient) -> Answer:
    """1.6 starts a container without its devices and says nothing."""
    version = _version(patient, "containerd")
    if isinstance(version, Answer):
        return version
    if version < (1, 7, 0):
        return failed(
            f"{_dotted(version)} drops CDI devices without a word",
            "install containerd 1.7 or newer",
        )
    setting = _enable_cdi(patient.text(_CONTAINERD))
    on = version >= (2, 0, 0) if setting is None else setting
    if on:
        return ok(f"{_dotted(version)} reads CDI")
    return failed(
        f"{_dotted(version)} has CDI off",
        f"set enable_cdi = true in /{_CONTAINERD}; then: systemctl restart containerd",
    )


def docker(patient: Patient) -> Answer:
    """Needs a feature flag for some versions."""
    version = _version(patient, "dockerd" if patient.program("dockerd") else "docker")
    if isinstance(version, Answer):
        return version
    if version < (25, 0, 0):
        return failed(f"{_dotted(version)} reads no CDI", "install Docker 25 or newer")
    setting = _feature(patient.text(_DOCKER))
    on = version >= (28, 2, 0) if setting is None else setting
    if on:
        return ok(f"{_dotted(version)} reads CDI")
    return failed(
        f"{_dotted(version)} has CDI off",
        f'set "features": {{"cdi": true}} in /{_DOCKER}; then: systemctl restart docker',
    )


def _version(patient: Patient, program: str) -> tuple[int, int, int] | Answer:
    """The version that a program prints; the answer where it is missing, fails or hangs."""
    said = patient.run(program, "--version")
    if said is None:
        return ok("not installed")
    match = None if isinstance(said, Failed) else _VERSION.search(said)
    if match is None:
        problem = said.message if isinstance(said, Failed) else "names no version"
        return warning(
            f"{program} --version {problem}, so whether it reads CDI is unknown",
            f"mend or remove it: ls -l {patient.program(program)}",
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def _enable_cdi(text: str) -> bool | None:
    """``enable_cdi`` of whichever plugin has it; None where it is not set."""
    try:
        plugins = tomllib.loads(text).get("plugins", {})
    except (ValueError, RecursionError):
        return None
    for plugin in plugins.values() if isinstance(plugins, dict) else ():
        if isinstance(plugin, dict) and isinstance(plugin.get("enable_cdi"), bool):
            return bool(plugin["enable_cdi"])
    return None


def _feature(text: str) -> bool | None:
    try:
        document: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    features = document.get("features") if isinstance(document, dict) else None
    value = features.get("cdi") if isinstance(features, dict) else None
    return value if isinstance(value, bool) else None

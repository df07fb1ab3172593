"""What a simulated machine looks like: TOML files in ``profiles``."""

import hashlib
import tomllib
import uuid
from importlib import resources

import msgspec

from bcd.model.errors import BadConfiguration


class NumaProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NUMA node; its id is its place in the file. An empty ``cpus`` is memory only."""

    cpus: str = ""
    memory_gib: int
    hugepages_2mi: int = 0
    hugepages_1gi: int = 0


class HostProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The host beside its GPUs."""

    kernel: str
    numa: tuple[NumaProfile, ...]
    isolated_cpus: str = ""


class MigProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A MIG instance: its profile's name, GPU instance and memory."""

    profile: str
    gi: int
    memory_mib: int


class GpuProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU; with ``mig`` it is in MIG mode. ``peers`` are indices of direct NVLinks."""

    pci: str
    numa: int
    mig: tuple[MigProfile, ...] = ()
    peers: tuple[int, ...] = ()


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine. ``fabric`` joins all GPUs that are not in MIG mode in one NVSwitch domain."""

    model: str
    memory_mib: int
    driver: str
    cuda: str
    host: HostProfile
    gpus: tuple[GpuProfile, ...]
    fabric: bool = False


def profile_names() -> tuple[str, ...]:
    """The profiles that there are, ascending."""
    files = resources.files("bcd.sim").joinpath("profiles").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load_profile(name: str) -> Profile:
    """Read a profile; raises BadConfiguration naming those that there are."""
    if name not in profile_names():
        raise BadConfiguration(
            f"profile {name[:64]!r} is not known; there are: {', '.join(profile_names())}"
        )
    text = resources.files("bcd.sim").joinpath("profiles", f"{name}.toml").read_text()
    return msgspec.convert(tomllib.loads(text), Profile)


def unit_uuid(seed: str, *parts: object) -> str:
    """A UUID that is the same for the same seed and parts, and for no others."""
    text = "\0".join([seed, *(str(part) for part in parts)])
    digest = hashlib.sha256(text.encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))

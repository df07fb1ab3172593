"""What a container needs for a device: nodes, files, variables and hooks, as CDI names them.

Values only; ``host.driver`` finds them on a real host, ``sim`` makes them up, ``cdi`` writes them.
https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device: where a container sees it, and where it lies on the host.

    ``number`` is (major, minor) of a device that exists without a node on the host, as MIG's
    capabilities may: the runtime then makes the node. None lets it look at the live node.
    """

    path: str
    host_path: str
    number: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A file, folder or socket of the host that appears in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hook:
    """A program that the runtime runs at a moment of the container's life; ``args`` has argv[0]."""

    name: str
    path: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEdits:
    """What a container needs for one device, or for any device of the host."""

    nodes: tuple[DeviceNode, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


NO_EDITS = DeviceEdits()


def together(edits: Sequence[DeviceEdits]) -> DeviceEdits:
    """Everything that several devices need, in their order."""
    return DeviceEdits(
        nodes=tuple(node for one in edits for node in one.nodes),
        env=tuple(variable for one in edits for variable in one.env),
        mounts=tuple(mount for one in edits for mount in one.mounts),
        hooks=tuple(hook for one in edits for hook in one.hooks),
    )

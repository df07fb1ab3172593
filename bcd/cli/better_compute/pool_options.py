"""The options of a pool's policy, for ``pools create`` and ``pools update``."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bcd.cli.better_compute.parameters import Duration
from bcd.model.pool import PlacerKind, SharingMode
from bcd.model.units import SECOND_MS
from bcd.wire.compute.v1 import admin_pb2 as pb

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--turnaround", type=Duration(zero=True), help="A gap after every booking: 5m."),
    click.option("--vcpu-per-gpu", type=int, metavar="N", help="CPUs that ride on each GPU."),
    click.option(
        "--memory-per-gpu", type=int, metavar="GIB", help="Memory that rides on each GPU."
    ),
    click.option("--vcpu-ratio", type=float, metavar="RATIO", help="How often a CPU is sold: 1.5."),
    click.option(
        "--memory-ratio",
        type=float,
        metavar="RATIO",
        help="How much of the memory is sold, at most 1.",
    ),
    click.option(
        "--reserve-vcpu", type=int, metavar="N", help="CPUs that every host keeps for itself."
    ),
    click.option(
        "--reserve-memory", type=int, metavar="GIB", help="Memory that every host keeps for itself."
    ),
    click.option(
        "--sharing",
        type=click.Choice([mode.value for mode in SharingMode]),
        help="How GPUs are cut into slots.",
    ),
    click.option("--replicas", type=int, metavar="N", help="Slots of a shared GPU."),
    click.option("--kubernetes/--no-kubernetes", default=None, help="May be handed to kubelets."),
    click.option(
        "--tenant-root/--no-tenant-root",
        default=None,
        help="Whole machines, by lease; not built yet.",
    ),
    click.option(
        "--spot-grace",
        type=Duration(zero=True),
        help="How long spot reservations may stay when others need the devices: 2m.",
    ),
    click.option(
        "--placer",
        type=click.Choice([kind.value for kind in PlacerKind]),
        help="Place inside the create, or queue it and place in batches.",
    ),
)


def policy_options(function: F) -> F:
    """All of them; the command takes them as keyword arguments for ``policy_of``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def policy_of(options: dict[str, Any]) -> pb.PoolPolicy:
    """The policy that the given options make; what was not given stays unset."""
    grace_ms = options["spot_grace"]
    if grace_ms is not None and grace_ms % SECOND_MS:
        raise click.UsageError("--spot-grace is in whole seconds")
    return pb.PoolPolicy(
        turnaround_ms=options["turnaround"],
        placer=options["placer"] or "",
        per_gpu=pb.HostAmounts(vcpu=options["vcpu_per_gpu"], memory_gib=options["memory_per_gpu"]),
        ratio=pb.HostRatio(vcpu=options["vcpu_ratio"], memory_gib=options["memory_ratio"]),
        host_reserve=pb.HostAmounts(
            vcpu=options["reserve_vcpu"], memory_gib=options["reserve_memory"]
        ),
        sharing=pb.Sharing(mode=options["sharing"] or "", replicas=options["replicas"]),
        kubernetes=options["kubernetes"],
        tenant_root=options["tenant_root"],
        spot=pb.Spot(grace_seconds=None if grace_ms is None else grace_ms // SECOND_MS),
    )

"""The options that say what to reserve, for ``reserve`` and ``capacity --preview``."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from bcd.cli.better_compute.parameters import Duration, Moment
from bcd.model.reservation import Topology
from bcd.wire.compute.v1 import reservations_pb2 as pb
from bcd.wire.document import MAX_DOCUMENT_BYTES, from_document, parse_json

F = TypeVar("F", bound=Callable[..., Any])

_MIG = re.compile(r"([A-Za-z0-9.+-]+)(?::([1-9][0-9]{0,3}))?\Z")
_OPTIONS = (
    click.option(
        "--gpus", type=click.IntRange(1, 1024), metavar="N", help="How many GPUs, on one node."
    ),
    click.option("--mig", multiple=True, metavar="PROFILE[:N]", help="MIG instances: 1g.10gb:2."),
    click.option(
        "--slots", type=click.IntRange(1, 1024), metavar="N", help="How many slots of shared GPUs."
    ),
    click.option(
        "--topology",
        type=click.Choice([topology.value for topology in Topology]),
        help="How the GPUs must be connected.",
    ),
    click.option(
        "--model",
        metavar="WORDS",
        help="Only GPUs of this model; a word of its name will do: H100.",
    ),
    click.option(
        "--cpus",
        type=click.IntRange(0, 4096),
        metavar="N",
        help="Host CPUs  [default: your GPUs' share].",
    ),
    click.option(
        "--memory",
        type=click.IntRange(0, 65536),
        metavar="GIB",
        help="Host memory, GiB  [default: your GPUs' share].",
    ),
    click.option("--kubernetes", is_flag=True, help="Give the devices to the host's kubelet."),
    click.option("--for", "duration", type=Duration(), help="How long: 8h, 90m, 3d, 1d12h."),
    click.option(
        "--at",
        "start",
        type=Moment(ahead=True),
        help='When: "2026-12-07 09:00 Europe/Berlin", or +2h from now; without it, now.',
    ),
    click.option(
        "--gang",
        type=click.IntRange(1, 1024),
        metavar="N",
        help="So many distinct nodes, all or none.",
    ),
    click.option("--spot", is_flag=True, help="Yield to whoever needs the devices more."),
    click.option(
        "-f",
        "--file",
        type=click.File("rb"),
        metavar="FILE",
        help="A request as JSON, - for standard input.",
    ),
)


def request_options(function: F) -> F:
    """All of them; the command takes them as keyword arguments for ``request_of``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def request_of(file: Any, options: dict[str, Any]) -> pb.CreateReservationRequest:
    """The file's request with the options laid over it; raises UsageError for what is missing."""
    request = pb.CreateReservationRequest()
    if file is not None:
        document = parse_json(file.read(MAX_DOCUMENT_BYTES + 1), file.name)
        request = from_document(document, pb.CreateReservationRequest)
    _lay_devices(request, options)
    _lay_host(request, options)
    _lay_terms(request, options)
    if options["duration"] is not None:
        request.duration = f"{options['duration']}ms"
    if not request.devices:
        raise click.UsageError(
            "say what to reserve: --gpus, --slots, --mig, or devices in a file with -f"
        )
    if not request.duration:
        raise click.UsageError("say for how long: --for, or duration in a file with -f")
    return request


def _lay_devices(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    asked: list[tuple[str, int, str]] = []
    if options["gpus"] is not None:
        asked.append(("gpu", options["gpus"], ""))
    if options["slots"] is not None:
        asked.append(("gpu.slot", options["slots"], ""))
    for text in options["mig"]:
        match = _MIG.match(text)
        if match is None:
            raise click.UsageError(f"--mig {text!r} is not PROFILE or PROFILE:N, such as 1g.10gb:2")
        asked.append(("gpu.mig", int(match[2] or 1), match[1]))
    if asked and request.devices:
        raise click.UsageError(
            "the file names devices already; leave out --gpus, --slots and --mig"
        )
    for device_class, count, profile in asked:
        request.devices.add(**{"class": device_class}, count=count, profile=profile)
    for name in ("topology", "model"):
        if options[name] and len(request.devices) != 1:
            raise click.UsageError(f"--{name} needs exactly one kind of device")
        if options[name]:
            setattr(request.devices[0], name, options[name])


def _lay_host(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    if options["cpus"] is not None:
        request.resources.vcpu = options["cpus"]
    if options["memory"] is not None:
        request.resources.memory_gib = options["memory"]
    if options["kubernetes"]:
        request.binding = "kubernetes"


def _lay_terms(request: pb.CreateReservationRequest, options: dict[str, Any]) -> None:
    """When, on how many nodes, and how firmly."""
    if options["start"] is not None:
        request.start = options["start"]
    if options["gang"] is not None:
        request.gang.size = options["gang"]
    if options["spot"]:
        request.spot = True

"""Validates a create into its normal form, its hash and its deterministic id. Pure.

The input is a JSON-like document, whichever way it came in; every refusal names the field's path
and the rule.
"""

import hashlib
import re
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec

from bcd.model.assignment import Binding
from bcd.model.caller import Caller
from bcd.model.device import DeviceClass
from bcd.model.errors import InvalidInput, Unsupported
from bcd.model.ids import PoolId, ReservationId, parse_type_id
from bcd.model.reservation import DeviceAsk, Gang, Request, Resources, Topology
from bcd.model.texts import check_text
from bcd.model.units import MAX_DURATION_MS, MINUTE_MS, parse_duration_ms

MAX_WAIT_MS = 30_000
START_SLACK_MS = 5 * MINUTE_MS
_BINDINGS = ("hold", "kubernetes", "node", "instance")


class _Strict(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What every part of the input shares."""


class _DeviceInput(_Strict):
    device_class: DeviceClass = msgspec.field(name="class")
    count: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    topology: Topology = Topology.ANY
    model: str = ""
    profile: str = ""


class _ResourcesInput(_Strict):
    vcpu: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    memory_gib: Annotated[int, msgspec.Meta(ge=0, le=65536)] = msgspec.field(
        default=0, name="memoryGiB"
    )
    hugepages_1gi: Annotated[int, msgspec.Meta(ge=0, le=65536)] = msgspec.field(
        default=0, name="hugepages1Gi"
    )


class _GangInput(_Strict):
    size: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class _NodeInput(_Strict):
    profile_id: str
    profile_version: Annotated[int, msgspec.Meta(ge=0)] = 0


class _WaitInput(_Strict):
    timeout_ms: Annotated[int, msgspec.Meta(ge=0)]


class _WantedInput(_Strict):
    """What a create and a preview have in common."""

    tenant_id: str
    pool_id: str
    devices: Annotated[tuple[_DeviceInput, ...], msgspec.Meta(min_length=1, max_length=8)]
    duration: str | int
    start: Annotated[int, msgspec.Meta(ge=0)] | None = None
    binding: str = Binding.HOLD
    resources: _ResourcesInput | None = None
    gang: _GangInput | None = None
    spot: bool = False
    node: _NodeInput | None = None


class _CreateInput(_WantedInput, kw_only=True):
    idempotency_key: str
    lease_seconds: Annotated[int, msgspec.Meta(ge=1, le=31_536_000)] | None = None
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=32)] = {}
    wait: _WaitInput | None = None
    dry_run: bool = False


_I = TypeVar("_I", bound=_WantedInput)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for, and for which tenant."""

    tenant_id: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """A validated create; ``wait_ms`` is capped at 30 seconds."""

    tenant_id: str
    idempotency_key: str
    request: Request
    wait_ms: int
    dry_run: bool


def parse_create(document: Mapping[str, Any]) -> Create:
    """The normal form of a create; raises InvalidInput or Unsupported naming the field."""
    given = _converted(document, _CreateInput)
    check_text("idempotencyKey", given.idempotency_key)
    for key, value in given.labels.items():
        check_text("labels", key)
        check_text(f"labels.{key}", value, empty=True)
    wanted = _wanted(given)
    return Create(
        tenant_id=wanted.tenant_id,
        idempotency_key=given.idempotency_key,
        request=msgspec.structs.replace(
            wanted.request,
            lease_seconds=given.lease_seconds,
            labels=dict(sorted(given.labels.items())),
        ),
        wait_ms=0 if given.wait is None else min(given.wait.timeout_ms, MAX_WAIT_MS),
        dry_run=given.dry_run,
    )


def parse_wanted(document: Mapping[str, Any]) -> Wanted:
    """The normal form of a create without what placement does not depend on; raises likewise."""
    return _wanted(_converted(document, _WantedInput))


def _converted(document: Mapping[str, Any], kind: type[_I]) -> _I:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except UnicodeEncodeError as error:
        raise InvalidInput("document", "has half a surrogate pair, which is no text") from error


def _wanted(given: _WantedInput) -> Wanted:
    _refuse_unsound_texts(given)
    _refuse_unsupported(given)
    return Wanted(
        given.tenant_id,
        Request(
            pool_id=PoolId(parse_type_id("pool", given.pool_id, "poolId")),
            devices=tuple(_ask(device) for device in given.devices),
            duration=f"{parse_duration_ms(str(given.duration))}ms",
            start=given.start,
            binding=Binding(given.binding),
            resources=None if given.resources is None else _resources(given.resources),
            gang=_gang(given.gang),
            spot=given.spot,
        ),
    )


def _ask(device: _DeviceInput) -> DeviceAsk:
    return DeviceAsk(
        device_class=device.device_class,
        count=device.count,
        topology=device.topology,
        model=device.model,
        profile=device.profile,
    )


def _resources(given: _ResourcesInput) -> Resources:
    return Resources(
        vcpu=given.vcpu, memory_gib=given.memory_gib, hugepages_1gi=given.hugepages_1gi
    )


def _gang(given: _GangInput | None) -> Gang | None:
    """A gang of one is none: both are one request."""
    return None if given is None or given.size == 1 else Gang(size=given.size)


def _refuse_unsound_texts(given: _WantedInput) -> None:
    """Refuse names that break their rule.

    The pool's id, the duration and the binding have forms of their own, checked elsewhere.
    """
    check_text("tenantId", given.tenant_id)
    if given.node is not None:
        check_text("node.profileId", given.node.profile_id)
    for position, device in enumerate(given.devices):
        check_text(f"devices[{position}].model", device.model, empty=True)
        check_text(f"devices[{position}].profile", device.profile, empty=True)


def _refuse_unsupported(given: _WantedInput) -> None:
    if given.binding not in _BINDINGS:
        raise InvalidInput("binding", f"must be one of {', '.join(_BINDINGS)}")
    absent = {
        "binding": given.binding not in (Binding.HOLD, Binding.KUBERNETES),
        "node": given.node is not None,
    }
    for field, used in absent.items():
        if used:
            value = f" {given.binding}" if field == "binding" else ""
            raise Unsupported(f"{field}{value} is not supported yet; leave it out", field=field)


_AT = re.compile(r"(.*) - at `(?:key` in `)?\$\.?(.*)`\Z", re.DOTALL)
_NAMED = re.compile(r"Object (contains unknown|missing required) field `(.*)`\Z", re.DOTALL)
_ENUMS: Mapping[str, type[StrEnum]] = {"class": DeviceClass, "topology": Topology}
_MAX_RULE = 200


def _invalid(message: str) -> InvalidInput:
    """msgspec's sentence, taken apart into the field's path and the rule."""
    match = _AT.match(message)
    rule, path = (match[1], match[2]) if match else (message, "")
    values = _ENUMS.get(path.rpartition(".")[2])
    if values is not None and rule.startswith("Invalid enum value"):
        rule = f"must be one of {', '.join(values)}"
    named = _NAMED.match(rule)
    if named:
        path = f"{path}.{named[2]}" if path else named[2]
        rule = "is not a known field" if "unknown" in named[1] else "is required"
    return InvalidInput(path, rule[:_MAX_RULE])


def check_start(request: Request, now_ms: int) -> None:
    """Refuse a start that is over or out of reach; one just past means now.

    Raises InvalidInput. Only a new draft is checked: a key stays good for its own request.
    """
    if request.start is None:
        return
    if request.start < now_ms - START_SLACK_MS:
        raise InvalidInput("start", "is in the past; leave it out to start at once")
    if request.start > now_ms + MAX_DURATION_MS:
        raise InvalidInput("start", "must be at most ten years ahead")


def request_hash(request: Request) -> str:
    """Lower-case hex SHA-256 of the request's canonical JSON (spec 3.2)."""
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()


def reservation_id(tenant_id: str, caller: Caller, idempotency_key: str) -> ReservationId:
    """``rsv_`` and the base32 SHA-256 of tenant, caller identity and key (spec 3.1)."""
    digest = hashlib.sha256()
    for part in (tenant_id, *_identity_parts(caller), idempotency_key):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return ReservationId("rsv_" + b32encode(digest.digest()).decode().rstrip("=").lower())


def _identity_parts(caller: Caller) -> tuple[str, str, str]:
    return (caller.issuer, caller.subject, caller.actor)

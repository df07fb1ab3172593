"""The policy: may this caller do this to that reservation? Files in the Cedar language.

Cedar skips a rule whose condition errors, also a forbidding one, so only Allow without any
diagnostic error is an allowance. Policies are validated against our schema when they are loaded.
Decisions run outside every transaction.

An agent that acts for a person is asked about twice in one batch: as things are, and as if the
person had confirmed it (spec 13). What only the second allows is a refusal that a confirmation
turns into an allowance.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import cedarpy

from bcd.durable import read_plain
from bcd.model.caller import Caller
from bcd.model.errors import BadConfiguration
from bcd.placer.admission.attributes import Attributes

logger = logging.getLogger(__name__)

_OWN = resources.files("bcd.placer.admission").joinpath("policies")
_MAX_POLICY_BYTES = 1 << 20
_MAX_NESTING = 100
_NAMED_RULES = 5
_AMOUNTS = frozenset({"gpus", "duration"})
# A cap is named when the decision turns with this one attribute at its most modest value.
_MODEST: Mapping[str, Mapping[str, object]] = {
    "gpus": {"gpus": 0},
    "duration": {"durationHours": 0, "durationMs": 0},
    "models": {"models": []},
    "classes": {"classes": []},
    "topologies": {"topologies": []},
    "labels": {"labels": []},
}


class Action(StrEnum):
    """The actions that tenants' policies name (spec 4.3)."""

    CREATE = "compute:reservations:create"
    EXTEND = "compute:reservations:extend"
    RELEASE = "compute:reservations:release"
    READ = "compute:reservations:read"


class Confirmation(StrEnum):
    """What the person for whom an agent acts said; policies see it as ``context.confirmation``."""

    NONE = ""
    APPROVED = "approved"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Go on."""


@dataclass(frozen=True, slots=True)
class Denied:
    """Refused; ``rules`` are ids of forbidding policies, ``caps`` attributes that were too much.

    ``broken`` says that a policy could not be evaluated, which refuses whatever the others say;
    ``confirmable`` that it would be allowed once the person for whom the agent acts confirmed it.
    """

    rules: tuple[str, ...] = ()
    caps: tuple[str, ...] = ()
    broken: bool = False
    confirmable: bool = False

    @property
    def sentence(self) -> str:
        """Why, for people."""
        if self.broken:
            return "a policy could not be evaluated; ask an administrator to look at the log"
        parts = []
        amounts = [cap for cap in self.caps if cap in _AMOUNTS]
        kinds = [cap for cap in self.caps if cap not in _AMOUNTS]
        if amounts:
            parts.append(f"over the cap on {', '.join(amounts)}")
        if kinds:
            parts.append(f"other {', '.join(kinds)} might pass")
        if self.rules:
            named = sorted(self.rules)[:_NAMED_RULES]
            more = len(self.rules) - len(named)
            also = f" and {more} more" if more else ""
            parts.append(f"forbidden by {', '.join(named)}{also}")
        if self.confirmable:
            parts.append("it needs the word of the person for whom this agent acts")
        return "; ".join(parts) or "no policy permits it"


Decision = Allowed | Denied


class Policy(Protocol):
    """Decides; never called inside a transaction."""

    def decide(
        self,
        caller: Caller,
        action: Action,
        resource: Attributes,
        confirmation: Confirmation = Confirmation.NONE,
    ) -> Decision:
        """Whether the caller may do this, given what the person for whom it acts said."""


class CedarPolicy:
    """Policies of one folder (``*.cedar``), or the default: everybody within their own tenants.

    Raises BadConfiguration naming the file for policies that do not parse or do not fit the schema.
    """

    def __init__(self, folder: Path | None = None) -> None:
        schema = _OWN.joinpath("schema.cedarschema").read_text("utf-8")
        self._schema = cedarpy.Schema.from_str(schema)
        self.load(folder)

    def load(self, folder: Path | None) -> None:
        """Decide by these policies from now on; by the old ones still when it raises."""
        if folder is None:
            text = _OWN.joinpath("default.cedar").read_text("utf-8")
        else:
            text = _read_folder(folder, self._schema)
        self._policies = cedarpy.PolicySet.from_str(text)

    def decide(
        self,
        caller: Caller,
        action: Action,
        resource: Attributes,
        confirmation: Confirmation = Confirmation.NONE,
    ) -> Decision:
        """See Policy. A rule that errors refuses, and is logged as a policy error."""
        asked = [confirmation]
        if caller.actor and confirmation is not Confirmation.APPROVED:
            asked.append(Confirmation.APPROVED)
        result, *confirmed = self._ask(caller, action, resource, asked)
        if result.diagnostics.errors:
            # The texts repeat the entities: for operators only.
            logger.error("policy error", extra={"errors": result.diagnostics.errors})
            return Denied(broken=True)
        if _allows(result):
            return Allowed()
        names = result.diagnostics.id_annotations_by_reason
        return Denied(
            rules=tuple(names.get(reason, reason) for reason in result.diagnostics.reasons),
            # Whoever may not read could not ask for less; and lists ask about every row.
            caps=()
            if action is Action.READ
            else self._failed_caps(caller, action, resource, confirmation),
            confirmable=any(_allows(other) for other in confirmed),
        )

    def _failed_caps(
        self, caller: Caller, action: Action, resource: Attributes, confirmation: Confirmation
    ) -> tuple[str, ...]:
        failed = []
        for name, modest in _MODEST.items():
            attrs = {**resource.attrs, **modest}
            tags = {} if name in ("gpus", "models", "classes") else resource.tags
            (result,) = self._ask(caller, action, Attributes(attrs, tags), [confirmation])
            if _allows(result):
                failed.append(name)
        return tuple(failed)

    def _ask(
        self,
        caller: Caller,
        action: Action,
        resource: Attributes,
        confirmations: Sequence[Confirmation],
    ) -> Sequence[cedarpy.AuthzResult]:
        """One result for each of the confirmations, in their order."""
        user = {"type": "Compute::User", "id": caller.identity}
        reservation = {"type": "Compute::Reservation", "id": "asked"}
        groups = [{"type": "Compute::Group", "id": group} for group in sorted(caller.groups)]
        attrs, tags = dict(resource.attrs), dict(resource.tags)
        entities: list[dict[str, Any]] = [
            {"uid": user, "attrs": _user_attributes(caller), "parents": groups},
            {"uid": reservation, "attrs": attrs, "parents": [], "tags": tags},
            *({"uid": group, "attrs": {}, "parents": []} for group in groups),
        ]
        requests = [
            {
                "principal": user,
                "action": {"type": "Compute::Action", "id": action.value},
                "resource": reservation,
                "context": {"confirmation": confirmation.value},
            }
            for confirmation in confirmations
        ]
        known = json.dumps(entities)
        return cedarpy.is_authorized_batch(requests, self._policies, known, self._schema)


def _allows(result: cedarpy.AuthzResult) -> bool:
    return result.decision is cedarpy.Decision.Allow and not result.diagnostics.errors


def _user_attributes(caller: Caller) -> Mapping[str, Any]:
    return {
        "issuer": caller.issuer,
        "subject": caller.subject,
        "owner": caller.owner,
        "actor": caller.actor,
        "delegated": bool(caller.actor),
        "tenants": sorted(caller.tenants),
    }


def _read_folder(folder: Path, schema: cedarpy.Schema) -> str:
    texts: list[str] = []
    for path in _policy_files(folder):
        text = _read_policy(path)
        try:
            policies = cedarpy.PolicySet.from_str(text)
            result = cedarpy.validate_policies(text, schema)
        except ValueError as error:
            raise BadConfiguration(f"{path}: is not Cedar: {error}") from error
        if not result.validation_passed:
            first = "; ".join(str(error) for error in list(result.errors)[:3])
            raise BadConfiguration(f"{path}: does not fit the schema: {first}")
        if not len(policies):
            raise BadConfiguration(f"{path}: has no policy; remove the file, or write one")
        texts.append(text)
    return "\n".join(texts)


def _read_policy(path: Path) -> str:
    try:
        text = read_plain(path, _MAX_POLICY_BYTES).decode(errors="replace")
    except OSError as error:
        raise BadConfiguration(f"{path}: cannot be read ({error.strerror})") from error
    # Cedar's parser recurses until the stack ends.
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_NESTING:
        raise BadConfiguration(f"{path}: is nested more than {_MAX_NESTING} deep")
    return text


def _policy_files(folder: Path) -> Sequence[Path]:
    files = sorted(folder.glob("*.cedar"))
    if not files:
        raise BadConfiguration(
            f"{folder}: has no *.cedar file, which would refuse everything; put policies there "
            "or remove the setting policy.folder"
        )
    return files

"""The rules of the CDI format, stricter than any reader: what passes here, all of them load.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. Runtimes drop a file
that breaks one rule without saying so ("unresolvable CDI devices"), hence ``cdi`` checks every
file before it is written, and every own file that it reads. Pure.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_VENDOR = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")
_PERMISSIONS = re.compile(r"(?:none|(?=[rwm]+\Z)r?w?m?)\Z")
_ANNOTATION = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z"
)
_HOOKS = frozenset(
    {
        "prestart",
        "createRuntime",
        "createContainer",
        "startContainer",
        "poststart",
        "poststop",
    }
)
_MAX_ANNOTATION_BYTES = 256 * 1024

_Check = Callable[[Any], str | None]


def is_device_name(text: str) -> bool:
    """Whether CDI accepts a device name: letters, digits, and ``_-.:`` inside."""
    return len(text) <= 253 and _DEVICE_NAME.match(text) is not None


def problem_of(document: Any) -> str | None:
    """The first rule that a decoded spec breaks, or None; fields we never write are refused."""
    problem = _record(document, _SPEC, {"cdiVersion", "kind", "devices"}, "spec")
    if problem is not None:
        return problem
    names = [entry["name"] for entry in document["devices"]]
    if len(set(names)) != len(names):
        return "devices: one name stands twice"
    if document["cdiVersion"] not in _VERSIONS:
        return "cdiVersion: is no version that readers know"
    if document["cdiVersion"] < minimum_version(document):
        return f"cdiVersion: is lower than its fields need ({minimum_version(document)})"
    return None


def minimum_version(document: Mapping[str, Any]) -> str:
    """The lowest version whose readers accept a well-formed document."""
    needed = "0.3.0"
    devices = document["devices"]
    edits = [document.get("containerEdits", {}), *(d.get("containerEdits", {}) for d in devices)]
    if any("type" in mount for edit in edits for mount in edit.get("mounts", ())):
        needed = "0.4.0"
    nodes = [node for edit in edits for node in edit.get("deviceNodes", ())]
    if any("hostPath" in node for node in nodes) or any(d["name"][0].isdigit() for d in devices):
        needed = "0.5.0"
    annotated = "annotations" in document or any("annotations" in device for device in devices)
    if annotated or "." in document["kind"].partition("/")[2]:
        needed = "0.6.0"
    return needed


def _record(value: Any, fields: Mapping[str, _Check], required: set[str], where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where}: is not an object"
    missing = required - set(value)
    if missing:
        return f"{where}: {min(missing)} is missing"
    for key, item in value.items():
        check = fields.get(key)
        if check is None:
            return f"{where}: {str(key)[:64]!r} is not a field of the format"
        problem = check(item)
        if problem is not None:
            return f"{where}.{key}: {problem}"
    return None


def _each(check_one: _Check) -> _Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list) or not value:
            return "is not a list with entries"
        problems = ((i, check_one(item)) for i, item in enumerate(value))
        return next((f"[{i}]: {problem}" for i, problem in problems if problem is not None), None)

    return check


def _records(fields: Mapping[str, _Check], required: set[str]) -> _Check:
    return _each(lambda item: _record(item, fields, required, "entry"))


def _matches(pattern: re.Pattern[str], rule: str) -> _Check:
    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and pattern.match(value) else rule

    return check


def _path(value: Any) -> str | None:
    ok = isinstance(value, str) and value.startswith("/") and value.isprintable()
    return None if ok else "is not an absolute path"


def _texts(value: Any) -> str | None:
    ok = isinstance(value, list) and all(_is_text(item) and item for item in value)
    return None if ok else "is not a list of texts that can be printed"


def _env(value: Any) -> str | None:
    if _texts(value) is not None or not value:
        return "is not a list with entries"
    ok = all(item.find("=") > 0 for item in value)
    return None if ok else "has an entry that is not KEY=VALUE"


def _kind(value: Any) -> str | None:
    vendor, slash, device_class = value.partition("/") if isinstance(value, str) else ("", "", "")
    ok = slash and _VENDOR.match(vendor) and _VENDOR.match(device_class)
    return None if ok else "is not vendor/class"


def _annotations(value: Any) -> str | None:
    if not isinstance(value, dict) or not all(_is_text(v) for v in value.values()):
        return "is not an object of texts"
    if not all(_ANNOTATION.match(key) for key in value):
        return "has a key that is no qualified name"
    size = sum(len(key) + len(text) for key, text in value.items())
    return None if size <= _MAX_ANNOTATION_BYTES else "is too large"


def _text(value: Any) -> str | None:
    return None if _is_text(value) else "is not a text that can be printed"


def _is_text(value: Any) -> bool:
    """No line breaks, no control characters, and nothing that UTF-8 cannot carry."""
    return isinstance(value, str) and value.isprintable()


def _number(value: Any) -> str | None:
    # Linux has 12 bits for majors and 20 for minors (makedev(3)); true is no number.
    return None if type(value) is int and 0 <= value < 1 << 20 else "is no device number"


def _device_node(value: Any) -> str | None:
    problem = _record(value, _NODE, {"path"}, "node")
    numbered = {"type", "major", "minor"}
    if problem is None and not numbered.isdisjoint(value) and not numbered <= set(value):
        return "node: type, major and minor stand together or not at all"
    return problem


def _container_edits(value: Any) -> str | None:
    if value == {}:
        return "is empty"
    return _record(value, _EDITS, set(), "edits")


_HOOK_NAME = re.compile("(?:" + "|".join(sorted(_HOOKS)) + r")\Z")
_NODE: Mapping[str, _Check] = {
    "path": _path,
    "hostPath": _path,
    "type": _matches(re.compile(r"c\Z"), "is not that of a character device"),
    "major": _number,
    "minor": _number,
    "permissions": _matches(_PERMISSIONS, "is not made of r, w and m"),
}
_MOUNT: Mapping[str, _Check] = {
    "hostPath": _path,
    "containerPath": _path,
    "options": _texts,
    "type": _text,
}
_HOOK: Mapping[str, _Check] = {
    "hookName": _matches(_HOOK_NAME, "is not a hook of the runtime specification"),
    "path": _path,
    "args": _texts,
    "env": _env,
}
_EDITS: Mapping[str, _Check] = {
    "env": _env,
    "deviceNodes": _each(_device_node),
    "mounts": _records(_MOUNT, {"hostPath", "containerPath"}),
    "hooks": _records(_HOOK, {"hookName", "path"}),
}
_DEVICE: Mapping[str, _Check] = {
    "name": _matches(_DEVICE_NAME, "is not a device name"),
    "annotations": _annotations,
    "containerEdits": _container_edits,
}
_SPEC: Mapping[str, _Check] = {
    "cdiVersion": _text,
    "kind": _kind,
    "annotations": _annotations,
    "devices": _records(_DEVICE, {"name", "containerEdits"}),
    "containerEdits": _container_edits,
}

"""The one root of the project's exceptions, and the reasons that cross the API.

Expected outcomes are values, not exceptions; an exception here ends a request or a program with
a sentence that names the thing and the remedy.
"""

from collections.abc import Mapping
from enum import StrEnum

from bcd.model.printable import printable


class Reason(StrEnum):
    """Why a request was refused; travels as ``google.rpc.ErrorInfo.reason`` (spec 15.2)."""

    INVALID_INPUT = "INVALID_INPUT"
    UNSUPPORTED = "UNSUPPORTED"
    CONFLICT = "CONFLICT"
    ACCESS_DENIED = "ACCESS_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    CONFIRMATION_REQUIRED = "CONFIRMATION_REQUIRED"
    INVALID_STATE = "INVALID_STATE"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class BcdError(Exception):
    """An error with a message for people, a reason for programs and details for both.

    Details are short strings keyed in lower camel case, as they appear in ErrorInfo metadata.
    """

    reason = Reason.INTERNAL

    def __init__(self, message: str, /, **details: str) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, str] = details


_MAX_PATH = 256
_MAX_RULE = 4096


class InvalidInput(BcdError):
    """A field that breaks a rule; ``field`` is its path, such as ``devices[0].count``.

    Paths and rules may quote what somebody sent: they are made fit for a terminal here.
    """

    reason = Reason.INVALID_INPUT

    def __init__(self, field: str, rule: str) -> None:
        field, rule = printable(field, _MAX_PATH), printable(rule, _MAX_RULE)
        super().__init__(f"{field}: {rule}" if field else rule, field=field, rule=rule)
        self.field = field
        self.rule = rule


class Unsupported(BcdError):
    """A field or method that is part of the contract and not built yet."""

    reason = Reason.UNSUPPORTED


class Conflict(BcdError):
    """Somebody else's change, or an idempotency key used for another request."""

    reason = Reason.CONFLICT


class AccessDenied(BcdError):
    """The caller is known and may not do this."""

    reason = Reason.ACCESS_DENIED


class Unauthenticated(BcdError):
    """The caller did not show a valid bearer token."""

    reason = Reason.UNAUTHENTICATED


class QuotaExceeded(BcdError):
    """A charge that a tenant's quota does not cover."""

    reason = Reason.QUOTA_EXCEEDED


class NotFound(BcdError):
    """No such thing, or none that the caller may know of."""

    reason = Reason.NOT_FOUND


class ConfirmationRequired(BcdError):
    """An agent asked for what the person for whom it acts must confirm first."""

    reason = Reason.CONFIRMATION_REQUIRED


class InvalidState(BcdError):
    """The thing is not in a state that allows this."""

    reason = Reason.INVALID_STATE


class Unavailable(BcdError):
    """A service that this one needs does not answer; the same call may be tried again."""

    reason = Reason.UNAVAILABLE


class BrokenFile(BcdError):
    """A file of our own that cannot be used: names it and says what to do."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}", path=path)


class BadConfiguration(BcdError):
    """A setting, flag or environment variable that cannot be used."""

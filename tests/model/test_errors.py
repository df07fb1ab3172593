"""Errors: one root, a message for people, a reason and details for programs."""

import pytest

from bcd.model import errors
from bcd.model.errors import BcdError, BrokenFile, InvalidInput, Reason


def subclasses(kind: type[BcdError]) -> set[type[BcdError]]:
    direct = {c for c in kind.__subclasses__() if c.__module__ == errors.__name__}
    return direct | {deeper for child in direct for deeper in subclasses(child)}


def test_every_error_has_a_reason_that_travels() -> None:
    assert {kind.reason for kind in subclasses(BcdError)} <= set(Reason)


def test_an_invalid_field_names_its_path_and_rule() -> None:
    error = InvalidInput("devices[0].count", "must be at least 1")
    assert error.message == "devices[0].count: must be at least 1"
    assert error.details == {"field": "devices[0].count", "rule": "must be at least 1"}
    assert InvalidInput("", "is not JSON").message == "is not JSON"


def test_a_broken_file_names_itself_and_what_to_do() -> None:
    error = BrokenFile("/x/key.pem", "does not parse", "run: bcd enroll")
    assert str(error) == "/x/key.pem: does not parse; run: bcd enroll"
    assert error.details == {"path": "/x/key.pem"}


def test_an_error_is_raised_and_read_back() -> None:
    with pytest.raises(BcdError) as caught:
        raise errors.Conflict("the name is taken", name="east")
    assert (caught.value.reason, caught.value.details) == (Reason.CONFLICT, {"name": "east"})

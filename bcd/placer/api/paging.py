"""Pages of lists: how long they are, in entries and in bytes, and where the next one begins."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from bcd.model.errors import InvalidInput

MAX_PAGE = 200
# A page ends behind the entry that goes over it. Clients take 4 MiB unless told otherwise, and no
# entry comes near one.
MAX_PAGE_BYTES = 3 << 20
_MAX_CURSOR = 512

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class PagedRequest(Protocol):
    """What every request for a page has."""

    @property
    def limit(self) -> int:
        """How many entries the caller wants."""

    @property
    def cursor(self) -> str:
        """Where the page before ended."""


def page_of(request: PagedRequest) -> tuple[str, int]:
    """(cursor, limit) of a request; the limit is 200 where none is given.

    Clients that know of no pages get as much as one page holds. Raises InvalidInput.
    """
    limit = request.limit if request.HasField("limit") else MAX_PAGE  # type: ignore[attr-defined]
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput("limit", f"must be 1 to {MAX_PAGE}")
    if len(request.cursor) > _MAX_CURSOR:
        raise InvalidInput("cursor", "must be the next cursor of the page before")
    return request.cursor, limit


def cut(found: Sequence[T], limit: int, cursor: Callable[[T], str]) -> tuple[Sequence[T], str]:
    """One page of entries read with one too many, and the next page's cursor, empty for none."""
    if len(found) <= limit:
        return found, ""
    return found[:limit], cursor(found[limit - 1])


def fitting(messages: Sequence[Message]) -> int:
    """How many of these one answer takes; one at least."""
    size = 0
    for count, message in enumerate(messages, start=1):
        size += message.ByteSize()
        if size > MAX_PAGE_BYTES:
            return count
    return len(messages)


def cut_messages(
    found: Sequence[M], limit: int, cursor: Callable[[M], str]
) -> tuple[Sequence[M], str]:
    """The same for entries that may be large: as many as one answer takes."""
    return cut(found, fitting(found[:limit]), cursor)

"""Pages of the administrators' lists: how long they are, and where the next one begins."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from bcd.model.errors import InvalidInput

MAX_PAGE = 200
_MAX_CURSOR = 512

T = TypeVar("T")


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

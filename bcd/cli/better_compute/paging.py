"""Follows a list of the API from page to page."""

from collections.abc import Callable
from typing import Any

from bcd.cli.better_compute.connection import Connection


def every(
    connection: Connection, method: Callable[..., Any], request: Any, entries: str
) -> list[Any]:
    """All entries of a list, in the API's order; ``entries`` is their field in the answer."""
    found: list[Any] = []
    while True:
        page = connection.call(method, request)
        found += getattr(page, entries)
        if page.next_cursor in ("", request.cursor):
            return found
        request.cursor = page.next_cursor

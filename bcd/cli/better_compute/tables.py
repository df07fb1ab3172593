"""Prints tables that fit: whole in a pipe; on a terminal as narrow as it is, still to be copied.

What is too wide for a terminal gets shorter ids of reservations first, which every verb takes, then
of devices, and stands in blocks of lines then, so that no word is broken in the middle.
"""

import re
import sys
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bcd.model.printable import printable

_ENDLESS = 100_000
_MAX_TEXT = 4096
_WORDS = 10  # columns of a terminal in which a last column can be read
_LONG_IDS = (
    re.compile(r"\b(rsv_[a-z2-7]{12})[a-z2-7]{40}\b"),
    re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table; NO_COLOR and redirection are honoured."""
    cells = [[printable(cell, _MAX_TEXT) for cell in row] for row in rows]
    terminal = Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty():
        _print(columns, cells, Console(width=_ENDLESS, highlight=False, markup=False, emoji=False))
        return
    room = terminal.width
    for long_id in _LONG_IDS:
        if _width(columns, cells) > room:
            cells = [[long_id.sub(r"\1", cell) for cell in row] for row in cells]
    rigid = _width(columns[:-1], [row[:-1] for row in cells])
    longest = max((len(word) for row in cells for word in row[-1].split()), default=0)
    if min(rigid + 2 + max(_WORDS, longest), _width(columns, cells)) <= room:
        _print(columns, cells, terminal)
        return
    for number, row in enumerate(cells):
        if number:
            click.echo()
        named = zip(columns, row, strict=True)
        print_fields([(name.lower(), cell) for name, cell in named if cell])


def print_fields(lines: Sequence[tuple[str, str]]) -> None:
    """Names and values of one thing, a line each."""
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {printable(value, _MAX_TEXT)}".rstrip())


def _width(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """How wide a table is when nothing in it is broken."""
    widest = [
        max(len(name), *(Text(row[index]).cell_len for row in cells)) if cells else len(name)
        for index, name in enumerate(columns)
    ]
    return sum(widest) + 2 * (len(widest) - 1)


def _print(columns: Sequence[str], cells: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns, 1):
        table.add_column(column, overflow="fold", no_wrap=number < len(columns))
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())

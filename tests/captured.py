"""Captured machines from ``tests/data``, laid out as folders again."""

from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"


def unpack(name: str, root: Path) -> Path:
    """Write a capture of the form ``== path``, then content, below a root; returns the root."""
    for path, content in _files((DATA / name).read_text()):
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return root


def _files(text: str) -> Iterator[tuple[str, str]]:
    for part in ("\n" + text).split("\n== ")[1:]:
        path, _, content = part.partition("\n")
        yield path.strip(), content + "\n"

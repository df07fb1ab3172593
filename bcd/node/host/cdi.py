"""The folders of CDI specs: ``/etc/cdi``, where holds stand, and ``/var/run/cdi``.

A file in the second folder wins over the first without a word, so foreign files are read in
both. Files of our own never lie in the second.
"""

from collections.abc import Iterator
from pathlib import Path

from bcd.durable import remove_file, replace_file
from bcd.node.cdi import VENDOR, parse_file_name
from bcd.node.host.files import fingerprint, read_own, sweep
from bcd.node.ports import CdiFiles, ForeignSpec, OwnSpec

_MAX_OWN_BYTES = 1 << 20
_MAX_FOREIGN_BYTES = 4 << 20
_SUFFIXES = frozenset({".json", ".yaml"})  # what readers load; hidden files too


class SpecFolders:
    """Implements the ``CdiDir`` port."""

    def __init__(self, folder: Path, dynamic: Path) -> None:
        """Make the folder of holds where it is missing; raises OSError."""
        self._folder = folder
        self._dynamic = dynamic
        self._ready()
        sweep(folder, "bcd-")
        # Foreign files are large and rarely change: (mtime, size, inode) -> what matters of it.
        self._foreign: dict[str, tuple[tuple[int, int, int], ForeignSpec | None]] = {}

    def _ready(self) -> None:
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def read(self) -> CdiFiles:
        """Every own file, ascending by name, and foreign ones that mention ``bcd.dev``."""
        own: list[OwnSpec] = []
        self._ready()
        for path in sorted(self._folder.iterdir()):
            parsed = parse_file_name(path.name)
            if parsed is None:
                continue
            try:
                content = read_own(path, _MAX_OWN_BYTES)
            except FileNotFoundError:
                continue
            own.append(OwnSpec(path.name, parsed[0], parsed[1], content))
        seen = {str(path): spec for path, spec in self._read_foreign()}
        self._foreign = {path: self._foreign[path] for path in seen}
        return CdiFiles(tuple(own), tuple(spec for spec in seen.values() if spec is not None))

    def _read_foreign(self) -> Iterator[tuple[Path, ForeignSpec | None]]:
        for folder in (self._folder, self._dynamic):
            try:
                paths = sorted(folder.iterdir())
            except OSError:  # what we cannot list, a reader cannot either
                continue
            for path in paths:
                ours = folder is self._folder and parse_file_name(path.name) is not None
                if path.suffix in _SUFFIXES and not ours:
                    yield path, self._foreign_spec(path)

    def _foreign_spec(self, path: Path) -> ForeignSpec | None:
        try:
            found = path.stat()  # readers follow links here
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            known = self._foreign.get(str(path))
            if known is not None and known[0] == stamp:
                return known[1]
            spec = None
            if path.is_file() and found.st_size <= _MAX_FOREIGN_BYTES:
                text = path.read_bytes().decode(errors="replace")
                # Without the slash: JSON may write it with a backslash before it.
                spec = ForeignSpec(str(path), text) if VENDOR in text else None
        except OSError:
            stamp, spec = (0, 0, 0), None
        self._foreign[str(path)] = (stamp, spec)
        return spec

    def write(self, name: str, content: bytes) -> None:
        """Replace an own file durably, readable by rootless runtimes; raises OSError."""
        replace_file(self._own(name), content, mode=0o644)

    def remove(self, name: str) -> None:
        """Unlink an own file durably; fine when it is gone. Raises OSError."""
        remove_file(self._own(name))

    def _own(self, name: str) -> Path:
        parsed = parse_file_name(name)
        if parsed is None:
            raise ValueError(f"{name!r} is not the name of a hold's spec")
        return self._folder / name

    def fingerprint(self) -> object:
        """Differs when a file in either folder was touched."""
        return fingerprint(self._folder), fingerprint(self._dynamic)

"""The SONAME of a shared library: the name under which programs load it.

elf(5): program headers, the dynamic section, its string table. Only 64-bit little-endian files,
which is what NVIDIA's driver comes as; reads are bounded and every offset is taken as hostile.
"""

import os
import re
import struct

from bcd.node.host.driver.tree import open_plain

_HEADER = 64
_PROGRAM = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAX_PROGRAMS = 64
_MAX_DYNAMIC = 64 * 1024
_MAX_NAME = 256
_TRIPLETS = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu"}  # e_machine
_NAME = re.compile(rb"[A-Za-z0-9_.+-]{1,255}\Z")


def soname(path: str) -> str:
    """The library's own name; empty for what is no 64-bit shared library, or has none."""
    try:
        with open_plain(path, os.O_NOFOLLOW) as descriptor:
            return _soname(descriptor)
    except (OSError, ValueError, OverflowError, struct.error):
        return ""


def triplet(path: str) -> str:
    """The name of a 64-bit library's platform as Debian writes it; empty for any other file."""
    try:
        with open_plain(path) as descriptor:
            head = os.pread(descriptor, 20, 0)
    except (OSError, ValueError):
        return ""
    if len(head) < 20 or head[:6] != b"\x7fELF\x02\x01":
        return ""
    return _TRIPLETS.get(int.from_bytes(head[18:20], "little"), "")


def _soname(descriptor: int) -> str:
    header = os.pread(descriptor, _HEADER, 0)
    if len(header) < _HEADER or header[:6] != b"\x7fELF\x02\x01":
        return ""
    offset, size, count = _layout(header)
    if size < _PROGRAM.size or size > _MAX_NAME or count > _MAX_PROGRAMS:
        return ""
    table = os.pread(descriptor, size * count, offset)
    programs = [_PROGRAM.unpack_from(table, size * i) for i in range(len(table) // size)]
    loads = [(p[3], p[2], p[5]) for p in programs if p[0] == _PT_LOAD]
    dynamic = next((p for p in programs if p[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return ""
    found: dict[int, int] = {}
    data = os.pread(descriptor, min(dynamic[5], _MAX_DYNAMIC), dynamic[2])
    for tag, value in _DYNAMIC.iter_unpack(data[: len(data) // _DYNAMIC.size * _DYNAMIC.size]):
        if tag == _DT_NULL:
            break
        found[tag] = value
    for address, start, length in loads:
        strings = found.get(_DT_STRTAB, -1)
        if _DT_SONAME in found and address <= strings < address + length:
            at = strings - address + start + found[_DT_SONAME]
            name = os.pread(descriptor, _MAX_NAME, at).split(b"\0")[0]
            return name.decode() if _NAME.match(name) else ""
    return ""


def _layout(header: bytes) -> tuple[int, int, int]:
    """Offset, entry size and count of the program headers."""
    (offset,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    return offset, size, count

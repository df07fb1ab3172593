"""Files that survive power loss: written beside, synced, renamed, and the folder synced.

Every process keeps a few files of its own (keys, certificates, the last desired state, specs);
all of them are replaced here and nowhere else. Imports nothing of the project.
"""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path


def read_plain(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The content of a plain file of at most ``limit`` bytes; raises OSError for anything else.

    A pipe or a device would keep the reader waiting, or fill its memory.
    """
    links = 0 if follow else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a plain file", str(path))
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
    return content


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` with ``content`` so that a reader, or a crash, sees old or new, whole.

    Without ``durable`` a power loss may take the file, or leave it empty.

    The temporary file lies in the same folder under a name without a known suffix (CDI readers
    load every ``*.json``, hidden ones too). Raises OSError naming ``path``, and then leaves nothing
    behind.
    """
    try:
        _replace(path, content, mode, durable)
    except OSError as error:
        # A full disk's error names no file, and others the temporary one.
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes, mode: int, durable: bool) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the mask must not decide who may read
            file.write(content)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(path.parent)


# What lies there, or whose it is: the same with every try, until a person changes it.
_LASTING = frozenset(
    {
        errno.EACCES, errno.EEXIST, errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.EPERM,
    }
)  # fmt: skip


def may_pass(error: OSError) -> bool:
    """Whether trying again may help without anybody's doing: no room, no descriptors, a sick disk.

    A daemon that ends on such an error is to be started again.
    """
    return error.errno not in _LASTING


def why(error: OSError) -> str:
    """What the system said, for the middle of a sentence."""
    if isinstance(error, FileExistsError):
        return "what is there is no folder"  # only the making of a folder meets it
    return error.strerror or str(error)


def remove_file(path: Path) -> bool:
    """Unlink ``path`` durably; False when it was not there. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` survive power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

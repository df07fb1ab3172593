"""Refuses to begin where gRPC would find too few file descriptors.

Its first channel or server opens some and does not get over their lack: the process ends by a
signal, and says nothing. What it has opened then it keeps, so that a lack that comes later is
answered as any other error.
"""

import os

from bcd.model.errors import Unavailable

_SPARE = 32


def need_descriptors() -> None:
    """Raises Unavailable unless this process may open 32 more files now."""
    opened: list[int] = []
    try:
        while len(opened) < _SPARE:
            opened += os.pipe()
    except OSError as error:
        raise Unavailable(
            f"fewer than {_SPARE} files can be opened ({error.strerror}); raise the limit (ulimit"
            " -n, or LimitNOFILE= of its unit), or try again once others have closed theirs"
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)

"""What an ordinary user meets where root may look at everything."""

import contextlib
import os
from collections.abc import Iterator

_NOBODY = 65534


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Whoever runs the tests, without root's rights meanwhile."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)

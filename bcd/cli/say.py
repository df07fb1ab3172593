"""Words and data of the command ``bcd`` on standard output, whatever that is connected to."""

import os
import sys
from collections.abc import Iterable

from bcd.model.errors import Unavailable


def say(lines: Iterable[str]) -> None:
    """Print lines at once, nothing for none; raises Unavailable when standard output takes nothing.

    What a terminal cannot show is escaped. A closed pipe stays a BrokenPipeError, which
    ``run_program`` knows.
    """
    said = list(lines)
    if not said:
        return
    if sys.stdout is None:
        raise Unavailable("standard output: is closed; open it, such as with: >/dev/null")
    text = "\n".join(said).encode(sys.stdout.encoding or "utf-8", errors="backslashreplace")
    try:
        print(text.decode(sys.stdout.encoding or "utf-8"), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Unavailable(
            f"standard output: cannot be written ({error.strerror}); make room there"
        ) from error

"""The four commands, one file per verb. Data on stdout, words on stderr.

Exit codes: 0 done, 1 refused or failed, 2 usage, 3 still pending. ``bcd`` never imports placer,
gateway or store; of ``better-compute`` only ``dev`` imports programs.
"""

import os
import sys


def better_compute() -> None:
    """The console script: says what to install where the command's own libraries are missing."""
    # gRPC reads this when it is loaded; what goes wrong is told in our own words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from bcd.cli.better_compute import main
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("bcd"):
            raise
        print(
            f"better-compute: the library {error.name} is not installed; install the extra cli:"
            " pip install '/path/to/better-compute[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(1) from error
    try:
        main()
    except OSError as error:  # standard output is full or gone
        print(f"better-compute: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from error

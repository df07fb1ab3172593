"""The four commands, one file per verb. Data on stdout, words on stderr.

Exit codes: 0 done, 1 refused or failed, 2 usage, 3 still pending. ``bcd`` never imports placer,
gateway or store; of ``better-compute`` only ``dev`` imports programs.
"""

import os
import sys
import warnings
from importlib import import_module

_CLI_LIBRARIES = frozenset({"click", "rich"})


def bcd_gateway() -> None:
    """The console script."""
    _run("bcd-gateway", "bcd.cli.gateway")


def bcd_placer() -> None:
    """The console script."""
    _run("bcd-placer", "bcd.cli.placer")


def better_compute() -> None:
    """The console script."""
    try:
        _run("better-compute", "bcd.cli.better_compute")
    except OSError as error:  # standard output is full or gone
        print(f"better-compute: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from error


def _run(program: str, module: str) -> None:
    """Run a module's ``main``; says what to install where its libraries are missing."""
    # gRPC reads this when it is loaded; what goes wrong is told in our own words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # libraries' remarks on files that we refuse anyway
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("bcd"):
            raise
        library = error.name.partition(".")[0]
        extra = "cli" if library in _CLI_LIBRARIES else "control"
        print(
            f"{program}: the library {library} is not installed; install the extra {extra}:"
            f" pip install '/path/to/better-compute[{extra}]'",
            file=sys.stderr,
        )
        raise SystemExit(1) from error

"""The four commands: a file each, ``bcd`` and ``better-compute`` one more for each of their verbs.

Data goes to stdout, words to stderr. Each command sets what gRPC reads before it loads gRPC, and
none does it for ``bcd exec``: the environment there is a tenant's.

Exit codes: 0 done, 1 refused or failed, 2 usage, 3 still pending. ``bcd`` never imports placer,
gateway or store; of ``better-compute`` only ``dev`` imports programs.
"""

import logging
import os
import sys
import warnings
from importlib import import_module
from typing import NoReturn

_CLI_LIBRARIES = frozenset({"click", "rich"})


def bcd_gateway() -> None:
    """The console script."""
    _run("bcd-gateway", "bcd.cli.gateway")


def bcd_placer() -> None:
    """The console script."""
    _run("bcd-placer", "bcd.cli.placer")


def better_compute() -> None:
    """The console script."""
    # What goes wrong is told in our own words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        _run("better-compute", "bcd.cli.better_compute")
    except OSError as error:  # standard output is full or gone
        _give_up("better-compute", str(error), error)


def bcd_daemon() -> None:
    """The console script ``bcd``."""
    _run("bcd", "bcd.cli.bcd")


def _run(program: str, module: str) -> None:
    """Run a module's ``main``; what it cannot start with, or did not expect, is one sentence."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # libraries' remarks on files that we refuse anyway
    _check_start(program)
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("bcd"):
            raise
        library = error.name.partition(".")[0]
        extra = "cli" if library in _CLI_LIBRARIES else "control"
        remedy = f"install the extra {extra}: pip install '/path/to/better-compute[{extra}]'"
        _give_up(program, f"the library {library} is not installed; {remedy}", error)
    except OSError:
        raise
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        if logging.getLogger().handlers:
            logging.getLogger(program).critical("unexpected; please report it", exc_info=True)
        said = f"unexpected {type(error).__name__}: {error}"
        _give_up(program, f"{said}; please report it, with what PYTHONDEVMODE=1 shows", error)


def _check_start(program: str) -> None:
    closed = _stand_in()
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            _give_up(program, f"the argument {argument!r} is not UTF-8", error, 2)
    # Of bcd each verb knows whether it has anything to say there.
    if closed and program != "bcd":
        _give_up(program, "standard output is closed", None)


def _stand_in() -> bool:
    """Put /dev/null in the place of closed streams; whether standard output was one.

    Else the next file that is opened gets that number, and what is printed goes into it. A
    program that we become finds them closed, as we did.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
    closed = sys.stdout is None
    if closed:
        os.open(os.devnull, os.O_RDONLY)  # takes no word: who prints there is told so
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - print() would take standard output
    return closed


def _give_up(program: str, words: str, error: BaseException | None, code: int = 1) -> NoReturn:
    if sys.stderr is not None:
        print(f"{program}: {words}", file=sys.stderr)
    # What is still in the buffer must not fail again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(code) from error

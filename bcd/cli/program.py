"""What the three daemons' commands share: settings, logs, and an end without a traceback."""

import argparse
import contextlib
import json
import logging
import os
import re
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bcd.cli.descriptors import need_descriptors
from bcd.durable import may_pass, why
from bcd.model.address import FORMS
from bcd.model.errors import BadConfiguration, BcdError, BrokenFile, InvalidInput, Unavailable
from bcd.model.printable import printable
from bcd.model.units import parse_duration_ms

logger = logging.getLogger(__name__)

T = TypeVar("T")
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h
EXIT_CODES = (
    "exit codes: 0 done, 1 refused or failed, 2 usage, 78 (run) settings or own files cannot be"
    " used"
)
SETTINGS, SAMPLES = Path("/etc/bcd"), Path("/usr/share")  # where the packages have them
_MAX_SETTINGS_BYTES = 1 << 20
_AT = re.compile(r"(.*) - at `\$\.?(.*)`\Z", re.DOTALL)
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def load_settings(path: Path, kind: type[T]) -> T:
    """Read a TOML file into a settings struct; unknown keys and wrong types are refused.

    Raises BadConfiguration naming the file, the key and the rule; Unavailable when the system
    cannot read it now.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SETTINGS_BYTES + 1)
    except OSError as error:
        if may_pass(error):
            raise Unavailable(f"{path}: cannot be read now ({why(error)}); try again") from error
        raise BadConfiguration(
            f"{path}: cannot be read ({error.strerror}); {_remedy(path, error)}"
        ) from error
    if len(content) > _MAX_SETTINGS_BYTES:
        raise BadConfiguration(f"{path}: is larger than {_MAX_SETTINGS_BYTES} bytes")
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # also of numbers that are too long to read
        raise BadConfiguration(f"{path}: is not TOML: {error}") from error
    try:
        return msgspec.convert(document, kind, dec_hook=_from_toml)
    except msgspec.ValidationError as error:
        raise BadConfiguration(f"{path}: {_setting_and_rule(str(error))}") from error


def _remedy(path: Path, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run it as root, or name another file with --config"
    if isinstance(error, FileNotFoundError) and path.parent == SETTINGS:
        for package in ("bcd", "bcd-control"):
            sample = SAMPLES / package / path.name
            if sample.exists():
                return f"make it: install -D -m 644 {sample} {path}"
    return "name another file with --config"


def _setting_and_rule(message: str) -> str:
    """msgspec's sentence, the setting first and patterns in words."""
    match = _AT.match(message)
    rule, setting = (match[1], f"{match[2]}: ") if match else (message, "")
    for pattern, words in FORMS.items():
        if rule == f"Expected `str` matching regex {pattern!r}":
            rule = words
    return setting + rule


def _from_toml(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and "\0" not in value:
        with contextlib.suppress(RuntimeError):  # there is no such user
            return Path(value).expanduser()
    raise ValueError("must be a path")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the call's ``extra`` fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logs(level: str = "info") -> None:
    """JSON lines on stderr, for journald or a collector."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.raiseExceptions = False  # a full disk must not fill the terminal too
    # gRPC forks nothing here; its fork handlers only add log noise.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def read_again(path: Path, kind: type[T], take_over: Callable[[T], None]) -> Callable[[], None]:
    """A handler for SIGHUP that reads a daemon's settings again and lets ``take_over`` use them.

    Settings that cannot be used are logged, and the old ones stay.
    """

    def handler() -> None:
        try:
            take_over(load_settings(path, kind))
        except BcdError as error:
            logger.error("settings stay as they were", extra={"problem": error.message})
        else:
            logger.info("settings read again")

    return handler


def read_secret(name: str, limit: int) -> str:
    """A short text from a file, or from standard input for ``-``; raises BadConfiguration.

    Says on stderr when others may read the file, too.
    """
    try:
        if name == "-":
            return sys.stdin.buffer.read(limit).decode("ascii", "replace")
        with open(name, encoding="ascii", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(limit)
    except OSError as error:
        raise BadConfiguration(f"{name}: cannot be read ({error.strerror})") from error
    if stat.S_ISREG(mode) and mode & 0o077:
        print(
            f"warning: {name}: has mode {mode & 0o777:o}, so others may have read the token; make"
            " such files with umask 077",
            file=sys.stderr,
        )
    return text


def check_verb_first(
    parser: argparse.ArgumentParser, words: Sequence[str], verbs: Collection[str]
) -> None:
    """End with a sentence where an option stands before the verb; argparse would puzzle."""
    if not words or not words[0].startswith("-"):
        return
    for before, word in pairwise(words):
        is_value = before.startswith("-") and "=" not in before  # of an option
        if word in verbs and not is_value:
            parser.error(f"options come after the verb, as in: {parser.prog} {word} {words[0]} ...")


def duration_argument(text: str) -> int:
    """A duration option in milliseconds; a bare number is refused, because 8 would be 8 ms."""
    if text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} has no unit; write 8h, 90m or 1d12h")
    try:
        return parse_duration_ms(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(error.rule) from error


def run_program(
    name: str, body: Callable[[], int], *, daemon: bool = False, calls: bool = False
) -> None:
    """Run a command's body and exit with its code; an error ends in one sentence on stderr.

    A ``daemon`` whose settings or own files cannot be used ends with EXIT_CONFIGURATION, on which
    its unit does not start it again: somebody has to look first. What the system lacks for a
    while ends with 1, and the unit tries again. What serves or ``calls`` over the network needs
    descriptors before anything else.
    """
    try:
        if daemon or calls:
            need_descriptors()
        code = body()
    except (BadConfiguration, BrokenFile) as error:
        print(f"{name}: {error.message}", file=sys.stderr)
        code = EXIT_CONFIGURATION if daemon else 1
    except BcdError as error:
        print(f"{name}: {error.message}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except OSError as error:  # no descriptors, no memory, a sick disk: never for good
        about = f"{printable(str(error.filename))}: " if error.filename else ""
        print(f"{name}: {about}{why(error)}; try again once that has passed", file=sys.stderr)
        code = 1
    raise SystemExit(code)

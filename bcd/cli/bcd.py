"""The command ``bcd``: runs the daemon, enrols the host, and shows and uses what is held on it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import bcd
from bcd.cli.program import EXIT_CODES, SETTINGS, check_verb_first, run_program

_CONFIG = SETTINGS / "bcd.toml"
_VERBS = ("run", "enroll", "status", "inventory", "holds", "doctor", "exec")
_EPILOG = EXIT_CODES + ", 4 (run) another daemon took this node over"


def main() -> None:
    """The console script."""
    words, command = _with_command(sys.argv[1:])
    parser = _parser()
    check_verb_first(parser, words, _VERBS)
    if words[:1] == ["exec"] and not command and not {"-h", "--help"} & set(words):
        parser.error("exec needs a COMMAND after --, such as: bcd exec ALLOCATION -- nvidia-smi")
    arguments = parser.parse_args(_with_verb(words))
    arguments.command = command
    if arguments.verb != "exec":  # whose command gets the caller's environment and the hold's
        # gRPC reads these when it is loaded, which the verbs below do.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    verb = arguments.verb
    run_program("bcd", lambda: _dispatch(arguments), daemon=verb == "run", calls=verb == "enroll")


def _with_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What comes after the first ``--`` of ``bcd exec`` is somebody else's, to the letter."""
    words = list(arguments)
    if words[:1] != ["exec"] or "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _with_verb(arguments: Sequence[str]) -> list[str]:
    """``bcd --sim PROFILE`` means ``bcd run --sim PROFILE``."""
    plain = arguments and arguments[0].startswith("-")
    if plain and arguments[0] not in ("-h", "--help", "--version"):
        return ["run", *arguments]
    return list(arguments)


def _dispatch(arguments: argparse.Namespace) -> int:
    match arguments.verb:
        case "run":
            from bcd.cli.bcd_run import run

            return run(arguments.config, arguments.sim)
        case "enroll":
            from bcd.cli.bcd_enroll import run as enroll

            return enroll(arguments.config, arguments.token_file, arguments.gateway)
        case "exec":
            from bcd.cli.bcd_exec import run as execute

            return execute(arguments.config, arguments.allocation, arguments.command)
        case "holds":
            from bcd.cli.bcd_holds import run as holds

            return holds(arguments.config, as_json=arguments.output == "json")
        case "doctor":
            from bcd.cli.bcd_doctor import run as doctor

            return doctor(arguments.config, as_json=arguments.output == "json")
        case _:
            from bcd.cli.bcd_status import run as show

            return show(arguments.config, arguments.verb, as_json=arguments.output == "json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bcd", description="Hands GPUs over on this host.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"bcd {bcd.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument(
        "--config", type=Path, default=_CONFIG, metavar="FILE", help=f"settings (default {_CONFIG})"
    )
    run = _verb(verbs, settings, "run", "run the daemon in the foreground")
    run.add_argument(
        "--sim",
        metavar="PROFILE",
        help="on simulated hardware: dgx-h100, hgx-a100-mig or l40s-pcie",
    )
    enroll = _verb(verbs, settings, "enroll", "get this host its identity")
    enroll.add_argument(
        "--token-file", required=True, metavar="FILE", help="the join token; - reads it from stdin"
    )
    enroll.add_argument(
        "--gateway", metavar="HOST:PORT", help="the enrolment port, if not that of the settings"
    )
    for verb, text in (
        ("status", "show session, holds and conditions"),
        ("inventory", "show host and devices as the control plane gets them"),
        ("holds", "show what is handed over, also without a running daemon"),
        ("doctor", "say what is missing on this host and how to mend it"),
    ):
        show = _verb(verbs, settings, verb, text)
        show.add_argument(
            "-o",
            dest="output",
            choices=["text", "json"],
            default="text",
            help="for people (default) or for programs",
        )
    _add_exec(verbs, settings)
    return parser


def _add_exec(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", settings: argparse.ArgumentParser
) -> None:
    inside = _verb(
        verbs,
        settings,
        "exec",
        "run a command in a hold: in its slice, with its variables",
        usage="bcd exec [-h] [--config FILE] ALLOCATION -- COMMAND [ARGUMENT ...]",
        epilog="exit code: the command's; 127 when it is not found, 126 when it cannot be run",
    )
    inside.add_argument("allocation", metavar="ALLOCATION", help="as bcd holds shows it")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    settings: argparse.ArgumentParser,
    name: str,
    text: str,
    usage: str | None = None,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    """A verb that says of itself what the list of verbs says of it."""
    description = f"{text[0].upper()}{text[1:]}."
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        parents=[settings],
        help=text,
        description=description,
        usage=usage,
        epilog=epilog,
    )
    return parser


if __name__ == "__main__":
    from bcd.cli import bcd_daemon

    bcd_daemon()

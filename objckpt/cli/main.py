"""The ``objckpt`` command: verbs, and what a failure looks like from outside."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console

from objckpt.cli import demo, doctor, fragment, init, ls, runs, show, verify
from objckpt.cli.options import EXIT_CODES
from objckpt.errors import (
    ConflictError,
    DataError,
    FencedError,
    IndeterminateError,
    InvalidInputError,
    NotFoundError,
    ObjckptError,
    QuorumError,
    StoreError,
)
from objckpt.version import __version__

CODES: tuple[tuple[type[ObjckptError], int], ...] = (
    (InvalidInputError, 2),
    (NotFoundError, 3),
    (QuorumError, 4),
    (StoreError, 5),
    (DataError, 6),
    (FencedError, 7),
    (IndeterminateError, 8),
    (ConflictError, 9),
)

app = typer.Typer(
    help=f"Erasure-coded checkpoint storage for PyTorch Distributed Checkpoint.\n\n{EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (init, doctor, runs, ls, show, verify, fragment, demo):
    app.command(help=f"{verb.HELP}\n\n{EXIT_CODES}")(getattr(verb, verb.__name__.rpartition(".")[2]))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _settings(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and all of objckpt's log lines.")] = False,
    version: Annotated[
        bool,
        # Eager: it is answered before anyone asks for a verb.
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    if debug:
        # Ours only: the SDKs' debug lines hold signatures and session tokens.
        logging.getLogger("objckpt").setLevel(logging.DEBUG)


def run() -> None:
    """The entry point."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; a user's mistake is one line, not a traceback."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        app(arguments, prog_name="objckpt")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except ObjckptError as error:
        if "--debug" in arguments:
            errors.print_exception()
        errors.print(f"error: {error}", markup=False)
        return exit_code(error)
    except Exception as error:  # noqa: BLE001 - the one place where anything may end up
        if "--debug" in arguments:
            errors.print_exception()
        errors.print(
            f"internal error: {type(error).__name__}: {error} (run with --debug for the traceback, and report it)",
            markup=False,
        )
    return 1


def exit_code(error: ObjckptError) -> int:
    """The exit code of an error, by what its caller does about it; 1 where nobody can do anything."""
    return next((code for kind, code in CODES if isinstance(error, kind)), 1)

"""``objckpt init``: a commented configuration file and, asked to, the run itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objckpt.api import open as open_store
from objckpt.cli.options import JsonOption, out, print_json, write_file
from objckpt.config import load_config, promise, template
from objckpt.errors import InvalidInputError

HELP = "Write a commented configuration file and, with --markers, make the run on its targets."


def init(
    targets: Annotated[list[str] | None, typer.Argument(help="One URL per target, without the run's name.")] = None,
    run: Annotated[str | None, typer.Option("--run", "-r", help="The run's name. [default: my-run]")] = None,
    file: Annotated[Path, typer.Option("--file", "-f", help="The file to write.")] = Path("objckpt.toml"),
    markers: Annotated[
        bool, typer.Option("--markers", help="Also make the run: markers and its first catalog version.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    if file.exists():
        if not markers or targets:
            raise InvalidInputError(f"{file} exists", hint="remove it, or name another one with --file")
        config = load_config(file, run=run)
    else:
        if markers and not targets:
            raise InvalidInputError("there are no targets to mark", hint="name their URLs")
        config = load_config(targets, run=run or "my-run") if targets else None  # type: ignore[assignment]
        write_file(file, template(config).encode())
    done = {"file": str(file), "created": False}
    if markers:
        with open_store(config) as store:
            done["created"] = True
            done["epoch"] = str(store.create().epoch)
    if as_json:
        print_json(done)
        return
    out.print(f"{file} written" if targets or not markers else f"{file} read")
    if config is not None:
        promised = promise(config)
        out.print(f"run {config.run}: {promised.promised} failure domains may be lost", markup=False)
        if promised.advice:
            out.print(promised.advice, markup=False)
    if markers:
        out.print(f"run {config.run} exists on {', '.join(config.domains)}", markup=False)
    else:
        out.print("next: look through it, then `objckpt init --markers` and `objckpt doctor`")

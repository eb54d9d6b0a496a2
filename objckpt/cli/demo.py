"""``objckpt demo``: watch it work."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from objckpt.cli.options import JsonOption, out, print_json
from objckpt.seams import Seams

HELP = "Train a small model on two ranks, kill it in mid-save, lose a domain, resume bit for bit."


def demo(
    store: Annotated[Path | None, typer.Option("--store", help="A configuration file to run on.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Keep all files here.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=3, help="Steps to train.")] = 12,
    save_every: Annotated[int, typer.Option("--save-every", min=1, help="Steps between saves.")] = 3,
    as_json: JsonOption = False,
) -> None:
    from objckpt.demo.show import as_data, demonstrate

    folder = directory or Path(tempfile.mkdtemp(prefix="objckpt-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        comparison = demonstrate(
            Console(stderr=True) if as_json else out,
            folder=folder.resolve(),
            store=store,
            steps=steps,
            save_every=save_every,
            seams=Seams(),
        )
    finally:
        if directory is None:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(as_data(comparison))
    if not comparison.equal:
        raise typer.Exit(6)

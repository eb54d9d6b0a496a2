"""``objckpt ls``: the checkpoints of a run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from objckpt.cli.options import (
    ConfigOption,
    JsonOption,
    RunOption,
    WithoutOption,
    out,
    print_json,
    show_time,
    store_of,
)
from objckpt.commit.versions import line
from objckpt.units import show_size

HELP = "List the checkpoints of the run's line, newest first; with --all those of other lines too."


def ls(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Other lines and retired ones too.")] = False,
    config: ConfigOption = None,
    run: RunOption = None,
    without: WithoutOption = None,
    as_json: JsonOption = False,
) -> None:
    with store_of(config, run, without) as store:
        version = store.catalog()
    on_line = line(version)
    entries = list(on_line)
    if everything:
        known = {entry.checkpoint for entry in on_line}
        entries += [entry for entry in reversed(version.entries) if entry.checkpoint not in known]
    if as_json:
        print_json(entries)
        return
    table = Table("step", "committed (UTC)", "size", "survives", "state")
    # Ids are copied to other commands: they may be folded, never cut.
    table.add_column("checkpoint", overflow="fold")
    for entry in entries:
        state = entry.state if entry in on_line or entry.state != "live" else "other line"
        table.add_row(
            str(entry.step),
            show_time(entry.created_at),
            show_size(entry.size),
            str(entry.tolerance),
            f"{state}, degraded" if entry.degraded else state,
            entry.checkpoint,
        )
    out.print(table)
    lost = sorted({target.domain for members in version.sets for target in members.targets if target.lost})
    if lost:
        out.print(f"lost domains: {', '.join(lost)}", markup=False)

"""``objckpt verify``: is all of a checkpoint there?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from objckpt.checkpoint.reading import Checkpoint
from objckpt.cli.options import ConfigOption, JsonOption, RunOption, WithoutOption, out, print_json, store_of
from objckpt.maintain.verify import VerifyReport
from objckpt.maintain.verify import verify as verify_checkpoint

HELP = "Check that every fragment and control copy is there; with --deep read every byte. Exit code 6 if not."


def verify(
    step: Annotated[int | None, typer.Argument(help="The step. [default: the newest]")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read and compare every byte.")] = False,
    config: ConfigOption = None,
    run: RunOption = None,
    without: WithoutOption = None,
    as_json: JsonOption = False,
) -> None:
    with store_of(config, run, without) as store:
        report = _with_progress(store.checkpoint(step), deep)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report.whole:
        raise typer.Exit(6)


def _with_progress(checkpoint: Checkpoint, deep: bool) -> VerifyReport:
    total = sum(
        fragment.size
        for ref in checkpoint.shards
        for stripe in checkpoint.shard(ref.id).stripes
        for fragment in stripe.fragments
    )
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=total)
        return verify_checkpoint(checkpoint, deep=deep, progress=lambda size: progress.advance(task, size))


def _print(report: VerifyReport) -> None:
    table = Table("shard", "fragments", "survives")
    for shard in report.shards:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(shard.counts.items()))
        table.add_row(shard.name, counts, "cannot be read" if shard.tolerance < 0 else str(shard.tolerance))
    out.print(table)
    for shard in report.shards:
        for problem in shard.problems:
            out.print(
                f"{shard.name} stripe {problem.stripe} fragment {problem.index} on {problem.target}:"
                f" {problem.state} {problem.detail}",
                markup=False,
            )
    for copy in report.control:
        out.print(f"{copy.key} on {copy.target}: {copy.state} {copy.detail}", markup=False)
    how = "every byte was read" if report.deep else "sizes were checked; --deep reads every byte"
    if report.whole:
        out.print(f"step {report.step} is whole ({how})", markup=False)
    elif report.readable:
        out.print(f"step {report.step} can be read and survives {report.tolerance} more lost domains", markup=False)
    else:
        out.print(f"step {report.step} cannot be read", markup=False)

"""``objckpt doctor``: do the targets do what is needed, and what do they promise together?"""

from __future__ import annotations

import typer
from rich.table import Table

from objckpt.cli.options import ConfigOption, JsonOption, RunOption, WithoutOption, out, print_json, store_of
from objckpt.maintain.doctor import examine

HELP = "Probe every target and say what the configuration promises and what is missing."

_COLOURS = {"ok": "green", "weak": "yellow", "failed": "red"}


def doctor(
    config: ConfigOption = None, run: RunOption = None, without: WithoutOption = None, as_json: JsonOption = False
) -> None:
    with store_of(config, run, without) as store:
        report = examine(store.plane)
        name = store.config.run
    if as_json:
        print_json(report)
    else:
        table = Table("target", "domain", "probe", "outcome", "detail")
        for target in report.targets:
            for number, probe in enumerate(target.probes):
                table.add_row(
                    target.target if number == 0 else "",
                    (target.domain + (" (witness)" if target.witness else "")) if number == 0 else "",
                    probe.name,
                    f"[{_COLOURS[probe.outcome]}]{probe.outcome}[/]",
                    probe.detail,
                )
        out.print(table)
        promised = report.promised
        out.print(f"run {name}: {report.run}", markup=False)
        out.print(
            f"f = {promised.fragment_tolerance} domains for fragments, c = {promised.control_tolerance} for control,"
            f" promised g = {promised.promised}",
            markup=False,
        )
        if report.left is not None:
            out.print(f"today {report.left} more domains may be lost for control", markup=False)
        for domain, reason in {**report.lost, **report.silent}.items():
            out.print(f"domain {domain}: {reason}", markup=False)
        if promised.advice:
            out.print(promised.advice, markup=False)
    if not report.healthy:
        raise typer.Exit(5)

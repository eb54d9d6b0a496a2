"""``objckpt runs``: which runs live on the targets."""

from __future__ import annotations

from rich.table import Table

from objckpt.cli.options import ConfigOption, JsonOption, config_of, out, print_json
from objckpt.errors import BucketNotFoundError
from objckpt.seams import Seams
from objckpt.store.open import list_runs

HELP = "List the runs that live below the configured targets' URLs."


def runs(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    settings = config_of(config, None)
    found: dict[str, list[str]] = {}
    for target in settings.control_targets:
        try:
            for name in list_runs(target, transfer=settings.transfer, seams=Seams()):
                found.setdefault(name, []).append(target.domain)
        except BucketNotFoundError:
            continue
    if as_json:
        print_json([{"run": name, "domains": domains} for name, domains in sorted(found.items())])
        return
    table = Table("run", "seen on")
    for name, domains in sorted(found.items()):
        table.add_row(name, ", ".join(domains))
    out.print(table)

"""``objckpt show``: what a checkpoint consists of."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from objckpt.checkpoint.reading import Checkpoint
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
from objckpt.units import show_size

HELP = "Show one checkpoint: tensors, shards, placement, size, overhead, who wrote it."


def show(
    step: Annotated[int | None, typer.Argument(help="The step. [default: the newest]")] = None,
    checkpoint: Annotated[str | None, typer.Option("--id", help="A checkpoint's id, of any line.")] = None,
    config: ConfigOption = None,
    run: RunOption = None,
    without: WithoutOption = None,
    as_json: JsonOption = False,
) -> None:
    with store_of(config, run, without) as store:
        found = _facts(store.checkpoint(step, checkpoint=checkpoint))
    if as_json:
        print_json(found)
        return
    out.print(
        f"step {found['step']}, committed {show_time(found['created_at'])} UTC by {found['host']}"
        f" with {', '.join(f'{name} {version}' for name, version in sorted(found['versions'].items()))}",
        markup=False,
    )
    code = found["code"]
    out.print(
        f"RS({code['data']},{code['parity']}), survives {found['tolerance']} lost domains"
        f"{' (degraded)' if found['degraded'] else ''}; {show_size(found['size'])} in {show_size(found['stored'])}"
        f" stored, {found['overhead']:.2f} times",
        markup=False,
    )
    shards = Table("shard", "rank", "size", "stripes", "entries")
    for shard in found["shards"]:
        shards.add_row(
            shard["name"], str(shard["rank"]), show_size(shard["length"]), str(shard["stripes"]), str(shard["entries"])
        )
    out.print(shards)
    places = Table("target", "fragments", "bytes", "missing")
    for target, place in sorted(found["placement"].items()):
        places.add_row(target, str(place["fragments"]), show_size(place["bytes"]), str(place["missing"]))
    out.print(places)
    tensors = Table("entry", "type", "parts", "bytes")
    for fqn, entry in sorted(found["entries"].items()):
        tensors.add_row(fqn, entry["dtype"] or "object", str(entry["parts"]), show_size(entry["bytes"]))
    out.print(tensors)


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    shards: list[dict[str, Any]] = []
    placement: dict[str, dict[str, int]] = {}
    entries: dict[str, dict[str, Any]] = {}
    stored = 0
    for ref in checkpoint.shards:
        shard = checkpoint.shard(ref.id)
        shards.append(
            {
                "name": ref.name,
                "rank": ref.rank,
                "length": ref.length,
                "stripes": len(shard.stripes),
                "entries": len(shard.index),
            }
        )
        for fragment in (fragment for stripe in shard.stripes for fragment in stripe.fragments):
            place = placement.setdefault(fragment.target, {"fragments": 0, "bytes": 0, "missing": 0})
            if fragment.stored:
                place["fragments"] += 1
                place["bytes"] += fragment.size
                stored += fragment.size
            else:
                place["missing"] += 1
        for chunk in shard.index:
            entry = entries.setdefault(chunk.fqn, {"dtype": chunk.dtype, "parts": 0, "bytes": 0})
            entry["parts"] += 1
            entry["bytes"] += chunk.stop - chunk.start
    return {
        "step": manifest.step,
        "checkpoint": manifest.id,
        "parent": manifest.parent,
        "created_at": manifest.created_at,
        "host": manifest.host,
        "versions": manifest.versions,
        "code": {"data": manifest.code.data, "parity": manifest.code.parity, "algorithm": manifest.code.algorithm},
        "tolerance": manifest.tolerance,
        "degraded": manifest.degraded,
        "size": manifest.length,
        "stored": stored,
        "overhead": stored / manifest.length if manifest.length else 1.0,
        "user": manifest.user,
        "shards": shards,
        "placement": placement,
        "entries": entries,
    }

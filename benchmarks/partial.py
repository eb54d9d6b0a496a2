"""Bytes fetched for one tensor of 8 MiB out of a shard of 1 GiB, healthy and with a domain lost.

python benchmarks/partial.py [--mib 1024] [--json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import objckpt
from objckpt.coding.geometry import BLOCK_SIZE
from objckpt.telemetry import Event, RequestDone
from objckpt.units import MiB

TENSOR = 8 * MiB


class Fetched:
    """Counts what is fetched of fragments."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestDone) and event.operation == "get" and event.key.startswith("data/"):
            self.sizes.append(event.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    folder = tempfile.mkdtemp(prefix="objckpt-partial-")
    found: dict[str, dict[str, float]] = {}
    try:
        fetched = Fetched()
        store = objckpt.open([f"{folder}/{name}/run" for name in "abc"], observer=fetched)
        count = arguments.mib * MiB // TENSOR
        whole = {f"w{i}": torch.full((TENSOR // 4,), float(i)) for i in range(count)}
        dcp.save(whole, storage_writer=store.begin(create=True).writer(step=1), no_dist=True)
        for state in ("healthy", "one domain lost"):
            if state != "healthy":
                shutil.rmtree(Path(folder) / "b")
            fetched.sizes.clear()
            wanted = {f"w{count // 2}": torch.empty(TENSOR // 4)}
            dcp.load(wanted, storage_reader=store.reader(), no_dist=True)
            if not wanted[f"w{count // 2}"].eq(float(count // 2)).all():
                raise SystemExit("other values came back")
            total = sum(fetched.sizes)
            found[state] = {
                "requests": len(fetched.sizes),
                "fetched": total,
                "ratio": total / TENSOR,
                # With a data fragment lost, the range of k others stands in for it.
                "allowed": (TENSOR if state == "healthy" else 2 * TENSOR) + 2 * BLOCK_SIZE * len(fetched.sizes),
            }
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps(found))
        return
    for state, numbers in found.items():
        print(
            f"{state}: {numbers['requests']} requests, {numbers['fetched']} bytes for {TENSOR}"
            f" ({numbers['ratio']:.3f}); with two blocks a range {numbers['allowed']}"
        )


if __name__ == "__main__":
    main()

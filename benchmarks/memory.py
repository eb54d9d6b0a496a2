"""How much memory a save and a load need beyond the state itself, whatever the size of the shard.

    python benchmarks/memory.py [--gib 2] [--json]

A state of that size goes through DCP to three directories with RS(2,1) and comes back, each in a process of its
own with the default budget. Peak resident memory is the kernel's high-water mark, reset before each measured step.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import objckpt
from objckpt.units import GiB, MiB

PIECES = 8


def resident(field: str) -> int:
    """Bytes of this process, from ``/proc``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc has no {field}")


def state(gib: float, *, filled: bool) -> dict[str, torch.Tensor]:
    count = int(gib * GiB) // PIECES // 4
    return {f"w{i}": torch.full((count,), float(i) if filled else -1.0) for i in range(PIECES)}


def measured(action: str, folder: str, gib: float) -> None:
    """One step in this process; prints the peak beyond what was resident before."""
    warnings.simplefilter("ignore")
    store = objckpt.open([f"{folder}/{name}/run" for name in "abc"])
    held = state(gib, filled=action == "save")
    run = store.begin(create=True)
    # A small one first, so that what is loaded once (kernels, threads) is not counted.
    if action == "save":
        dcp.save({"small": torch.ones(10)}, storage_writer=run.writer(step=1), no_dist=True)
    else:
        dcp.load({}, storage_reader=store.reader(), no_dist=True)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    if action == "save":
        dcp.save(held, storage_writer=run.writer(step=2), no_dist=True)
    else:
        dcp.load(held, storage_reader=store.reader(), no_dist=True)
        if any(not held[f"w{i}"].eq(float(i)).all() for i in range(PIECES)):
            raise SystemExit("other values came back")
    print(json.dumps({"beyond": resident("VmHWM") - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", nargs=2, metavar=("ACTION", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        measured(*arguments.step, arguments.gib)
        return
    found: dict[str, float] = {"gib": arguments.gib}
    folder = tempfile.mkdtemp(prefix="objckpt-memory-")
    try:
        for action in ("save", "load"):
            command = [sys.executable, __file__, "--gib", str(arguments.gib), "--step", action, folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[f"{action}_mib"] = json.loads(done.stdout.splitlines()[-1])["beyond"] / MiB
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps(found))
    else:
        for action in ("save", "load"):
            print(f"{action} of {arguments.gib} GiB: {found[action + '_mib']:.0f} MiB beyond the state; bar 320")


if __name__ == "__main__":
    main()

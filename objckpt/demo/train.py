"""The training job of the demonstration: plain PyTorch, FSDP2 on gloo ranks, plain DCP. Started by torchrun.

It reports on standard output, one JSON object a line, to whoever shows the demonstration.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

import objckpt
from objckpt.config import load_config
from objckpt.dcp.writer import ObjckptWriter
from objckpt.demo.model import Gpt, batch_of, corpus
from objckpt.telemetry import Event, LogObserver, Observers, RequestDone


def tell(**fact: Any) -> None:
    """One line for whoever is watching."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


class Watch:
    """Reports the first fragment of each save as it is stored."""

    def __init__(self) -> None:
        self.saving: int | None = None

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestDone) and event.operation == "put" and event.key.startswith("data/"):
            step, self.saving = self.saving, None
            if step is not None:
                tell(event="saving", step=step)


def main() -> None:
    """Trains to the end, from the newest checkpoint if there is one."""
    arguments = _arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tell(event="started", rank=rank, pid=os.getpid())

    torch.manual_seed(0)
    model = Gpt()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 3) * (0.5 + 0.5 * math.cos(math.pi * step / arguments.steps))
    )

    run = None
    first = 0
    watch = Watch()
    if arguments.store is not None:
        config = load_config(arguments.store, run=arguments.run)
        transfer = dataclasses.replace(config.transfer, bandwidth=arguments.bandwidth)
        config = dataclasses.replace(config, transfer=transfer)
        store = objckpt.open(config, observer=Observers([LogObserver(), watch]))
        run = store.begin(create=True)
        if run.checkpoint is not None:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state: dict[str, Any] = {
                "model": model_state,
                "optimizer": optimizer_state,
                "schedule": schedule.state_dict(),
            }
            load(state, storage_reader=run.reader(), planner=objckpt.LoadPlanner())
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            first = run.checkpoint.step
            if rank == 0:
                tell(event="resumed", step=first, lost=sorted(run.ownership.lost))

    text = corpus()
    saves = dist.new_group(backend="gloo")
    saving: tuple[Any, ObjckptWriter] | None = None
    for step in range(first + 1, arguments.steps + 1):
        inputs, wanted = batch_of(text, step=step, rank=rank, size=arguments.batch)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            tell(event="step", step=step, loss=shown.item() / dist.get_world_size())
        if run is not None and step % arguments.save_every == 0:
            if saving is not None:
                _finish(*saving, rank)
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state, "schedule": schedule.state_dict()}
            writer = run.writer(step=step)
            watch.saving = step
            saving = async_save(state, storage_writer=writer, process_group=saves), writer
    if saving is not None:
        _finish(*saving, rank)
    digest = _digest(model, optimizer)
    if rank == 0:
        tell(event="done", digest=digest)
    dist.destroy_process_group()


def _finish(saving: Any, writer: ObjckptWriter, rank: int) -> None:
    saving.result()
    result = writer.result
    if rank == 0 and result is not None:
        tell(
            event="saved", step=result.step, size=result.size, seconds=result.seconds, degraded=result.degraded,
            tolerance=result.tolerance,
        )  # fmt: skip


def _digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over all parameters and all optimizer state, as whole tensors; the same on every rank."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        for value in (parameter, *(optimizer.state[parameter][name] for name in sorted(optimizer.state[parameter]))):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            digest.update(bytes(whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="configuration file; without it nothing is saved")
    parser.add_argument("--as-run", dest="run")
    parser.add_argument("--bandwidth", type=int, help="bytes per second and process")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()

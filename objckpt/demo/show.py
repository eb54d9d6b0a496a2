"""The demonstration as a person sees it: what happens, step by step, and a comparison at the end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from objckpt.config import CodeConfig, StoreConfig, TargetConfig, load_config, promise, template
from objckpt.errors import InternalError, InvalidInputError
from objckpt.seams import Seams
from objckpt.store.open import open_target
from objckpt.telemetry import NullObserver
from objckpt.units import MiB, show_size

BANDWIDTH = 16 * MiB
"""Bytes per second and rank that the demonstration saves with, so that a save can be caught in the middle."""


@dataclass
class Story:
    """What a training job told."""

    losses: dict[int, float] = field(default_factory=dict)
    saved: dict[int, dict[str, Any]] = field(default_factory=dict)
    resumed: int | None = None
    lost: list[str] = field(default_factory=list)
    killed_in_save_of: int | None = None
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Both runs, and whether they ended the same."""

    alone: Story
    interrupted: Story
    resumed: Story
    lost_domain: str | None

    @property
    def equal(self) -> bool:
        return self.alone.digest is not None and self.alone.digest == self.resumed.digest


def demonstrate(
    console: Console, *, folder: Path, store: Path | None = None, steps: int = 12, save_every: int = 3, seams: Seams
) -> Comparison:
    """Runs the demonstration and shows it.

    Args:
        folder: Where the local store and logs go.
        store: A configuration file to run on, instead of three local directories; a run of its own is made there.
        steps: Steps to train; ``save_every`` has to fit at least three times.

    Raises:
        InvalidInputError: Too few steps to be killed in a later save and go on.
    """
    if steps < 3 * save_every:
        raise InvalidInputError(f"{steps} steps with a save every {save_every} are too few", hint="train longer")
    store = store or _local_store(folder)
    run = f"demo-{seams.ids.new_id()[:12]}"
    config = load_config(store, run=run)
    promised = promise(config)
    code = config.code
    console.print(
        f"[bold]objckpt demo[/bold]: a byte-level GPT on two ranks, RS({code.data},{code.parity}) over"
        f" {len(config.domains)} domains; {promised.promised} of them may be lost"
    )
    if promised.advice:
        console.print(f"[yellow]{promised.advice}[/yellow]")
    common = ["--steps", str(steps), "--save-every", str(save_every)]
    saving = [*common, "--store", str(store), "--as-run", run, "--bandwidth", str(BANDWIDTH)]

    console.print("\n[bold]1[/bold]  A run without interruption, to compare with")
    alone = _watch(console, common, folder / "alone.log")
    console.print("\n[bold]2[/bold]  The same job, saving; it will be killed in the middle of its third save")
    interrupted = _watch(console, saving, folder / "interrupted.log", kill_in_save_of=3 * save_every)
    lost = None
    if promised.promised > 0:
        lost = _lose_a_domain(config, seams)
        console.print(f"\n[bold]3[/bold]  Domain [red]{lost}[/red] is deleted, marker and all")
    else:
        console.print("\n[bold]3[/bold]  Nothing is deleted: this configuration promises to survive no lost domain")
    console.print("\n[bold]4[/bold]  The job is started again")
    resumed = _watch(console, saving, folder / "resumed.log")
    comparison = Comparison(alone=alone, interrupted=interrupted, resumed=resumed, lost_domain=lost)
    _compare(console, comparison)
    return comparison


def _local_store(folder: Path) -> Path:
    config = StoreConfig(
        run="demo",
        targets=tuple(
            TargetConfig(name=f"disk-{letter}", url=str(folder / f"disk-{letter}"), domain=letter) for letter in "abc"
        ),
        code=CodeConfig(data=2, parity=1),
    )
    path = folder / "objckpt.toml"
    path.write_text(template(config))
    return path


def _watch(console: Console, arguments: list[str], log: Path, *, kill_in_save_of: int | None = None) -> Story:
    story = Story()
    with _job(arguments, log) as (job, pids):
        assert job.stdout is not None
        for line in job.stdout:
            try:
                fact = json.loads(line)
            except ValueError:
                continue
            event = fact.get("event")
            if event == "started":
                pids.append(fact["pid"])
            elif event == "step":
                story.losses[fact["step"]] = fact["loss"]
                console.print(f"   step {fact['step']:3}  loss {fact['loss']:.4f}")
            elif event == "saved":
                story.saved[fact["step"]] = fact
                state = (
                    "[yellow]degraded[/yellow]" if fact["degraded"] else f"survives {fact['tolerance']} lost domains"
                )
                console.print(f"   [green]step {fact['step']} committed[/green], {show_size(fact['size'])}, {state}")
            elif event == "resumed":
                story.resumed, story.lost = fact["step"], fact["lost"]
                gone = f"; lost: {', '.join(story.lost)}" if story.lost else ""
                console.print(f"   [green]resumed from step {fact['step']}[/green]{gone}")
            elif event == "saving" and fact["step"] == kill_in_save_of:
                story.killed_in_save_of = kill_in_save_of
                console.print(
                    f"   [red]SIGKILL[/red] to all processes, in the middle of the save of step {kill_in_save_of}"
                )
                break
            elif event == "done":
                story.digest = fact["digest"]
        else:
            code = job.wait()
            if code != 0 or story.digest is None:
                end = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
                raise InternalError(
                    f"the training job ended with exit code {code}:\n{end}", hint=f"all of it is in {log}"
                )
    return story


@contextmanager
def _job(arguments: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Two ranks under torchrun; whatever of them is left at the end is killed, by process id."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "objckpt.demo.train", *arguments,
    ]  # fmt: skip
    pids: list[int] = []
    with log.open("w") as errors:
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, start_new_session=True
        )
        try:
            yield job, pids
        finally:
            if job.poll() is None:
                # torchrun first, or it would start its workers again; they have sessions of their own.
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if job.stdout is not None:
                job.stdout.read()  # until the last worker has closed its end
                job.stdout.close()


def _lose_a_domain(config: StoreConfig, seams: Seams) -> str:
    """Deletes all that the demonstration's own run has in one domain."""
    domain = config.fragment_targets[1].domain if len(config.fragment_targets) > 1 else config.domains[0]
    for target in config.targets:
        if target.domain != domain:
            continue
        store = open_target(target, run=config.run, transfer=config.transfer, seams=seams, observer=NullObserver())
        if target.place.scheme == "file":
            shutil.rmtree(Path(target.url) / config.run)
        else:
            for key in [info.key for info in store.list("")]:
                store.delete(key)
        store.close()
    return domain


def _compare(console: Console, comparison: Comparison) -> None:
    alone, interrupted, resumed = comparison.alone, comparison.interrupted, comparison.resumed
    table = Table(title="loss by step")
    for column in ("step", "without interruption", "killed", "resumed", "equal"):
        table.add_column(column, justify="right")
    for step, loss in alone.losses.items():
        before, after = interrupted.losses.get(step), resumed.losses.get(step)
        same = all(value == loss for value in (before, after) if value is not None)
        table.add_row(
            str(step), f"{loss:.6f}", "" if before is None else f"{before:.6f}", "" if after is None else f"{after:.6f}",
            "[green]yes[/green]" if same else "[red]no[/red]",
        )  # fmt: skip
    console.print()
    console.print(table)
    console.print(f"parameters and optimizer, SHA-256, without interruption  {alone.digest}")
    console.print(f"parameters and optimizer, SHA-256, killed and resumed    {resumed.digest}")
    if comparison.equal:
        console.print("[bold green]Equal, bit for bit.[/bold green]")
    else:
        console.print("[bold red]They differ.[/bold red]")


def as_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data, for ``--json``."""
    return dataclasses.asdict(comparison) | {"equal": comparison.equal}

"""What all verbs share: which store, which form of output."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from objckpt.api import CheckpointStore
from objckpt.api import open as open_store
from objckpt.config import StoreConfig, environment, load_config
from objckpt.errors import InvalidInputError

EXIT_CODES = """Exit codes: 0 done; 1 interrupted, or an internal error; 2 wrong input; 3 not found; 4 too few domains answered;
5 a store failed; 6 data damaged or missing; 7 fenced by a newer job (do not restart); 8 a commit may or may
not have taken effect; 9 conflict."""

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", "-c", help="A TOML file or a URL. [default: $OBJCKPT_CONFIG, else objckpt.toml]"),
]
RunOption = Annotated[str | None, typer.Option("--run", "-r", help="The run, instead of the configuration's.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", help="Give this failure domain up; may be repeated.")
]

out = Console(highlight=False)


def config_of(config: str | None, run: str | None) -> StoreConfig:
    """The configuration that the options name."""
    source: str | Path = config or environment("OBJCKPT_CONFIG") or "objckpt.toml"
    return load_config(source, run=run)


def store_of(config: str | None, run: str | None, without: list[str] | None = None) -> CheckpointStore:
    """The checkpoint store that the options name."""
    return open_store(config_of(config, run), without=without or ())


def write_file(path: Path, body: bytes) -> None:
    """Writes a file that a person named.

    Raises:
        InvalidInputError: It cannot be written.
    """
    try:
        path.write_bytes(body)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error


def print_json(value: Any) -> None:
    """Prints plain data, structs and dataclasses as JSON."""
    out.print_json(json.dumps(value, default=_plain))


def show_time(seconds: float) -> str:
    """A moment for people, in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return msgspec.to_builtins(value)

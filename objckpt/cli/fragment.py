"""``objckpt fragment``: one stored fragment as a file, for recovery by other means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from objckpt.cli.options import (
    ConfigOption,
    JsonOption,
    RunOption,
    WithoutOption,
    out,
    print_json,
    store_of,
    write_file,
)
from objckpt.coding.checksum import crc32c
from objckpt.coding.geometry import stripe_code
from objckpt.errors import ChecksumError, InvalidInputError, NotFoundError
from objckpt.format import keys
from objckpt.format.pyeclib_header import wrap

HELP = "Write one stored fragment to a file; with --pyeclib so that stock PyECLib can decode it."


def fragment(
    step: Annotated[int, typer.Argument(help="The step.")],
    shard: Annotated[str, typer.Argument(help="The shard's name, such as rank-00000.safetensors.")],
    stripe: Annotated[int, typer.Argument(help="The stripe's number.", min=0)],
    index: Annotated[int, typer.Argument(help="The fragment's index.", min=0)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    pyeclib: Annotated[bool, typer.Option("--pyeclib", help="Put PyECLib's header in front.")] = False,
    config: ConfigOption = None,
    run: RunOption = None,
    without: WithoutOption = None,
    as_json: JsonOption = False,
) -> None:
    with store_of(config, run, without) as store:
        manifest = store.checkpoint(step).shard(shard)
        if stripe >= len(manifest.stripes) or index >= len(manifest.stripes[stripe].fragments):
            raise NotFoundError(f"shard {shard} has no fragment {index} of stripe {stripe}", step=step)
        record = manifest.stripes[stripe]
        place = record.fragments[index]
        if not place.stored:
            raise NotFoundError(
                f"fragment {index} of stripe {stripe} was never stored: {place.target} was lost or failed",
                hint="take another index; any k of a stripe will do",
                step=step,
            )
        number = stripe if record.number is None else record.number
        key = keys.fragment_key(record.shard or manifest.id, number, index)
        body = store.targets.stores[place.target].get(key)
        # I7: PyECLib, which may be next, decodes damaged fragments without a word.
        if len(body) != place.size or crc32c(body) != place.crc32c:
            raise ChecksumError(
                f"fragment {index} of stripe {stripe} is damaged",
                hint="take another index; any k of a stripe will do",
                target=place.target,
                key=key,
            )
    if pyeclib:
        code = stripe_code(manifest.code.code(), record.length)
        if code.parity == 0:
            raise InvalidInputError("the stripe is not coded: there is nothing for PyECLib to decode")
        body = wrap(body, code=code, index=index, stripe_length=record.length)
    write_file(output, body)
    if as_json:
        print_json({"target": place.target, "key": key, "size": len(body), "file": str(output)})
    else:
        out.print(f"{key} of {place.target} written to {output}, {len(body)} bytes", markup=False)

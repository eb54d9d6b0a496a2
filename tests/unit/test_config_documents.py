"""What docs/configuration.md promises to be true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from objckpt.config import (
    CodeConfig,
    ReadPolicy,
    StoreConfig,
    TargetConfig,
    TransferConfig,
    WritePolicy,
    load_config,
    promise,
)
from objckpt.units import parse_size

DOCUMENT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
PROMISES = [tuple(map(int, row)) for row in re.findall(r"^\|" + r" (\d+) \|" * 7 + "$", DOCUMENT, re.MULTILINE)]


@pytest.fixture(autouse=True)
def _no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def test_there_are_promises_to_check() -> None:
    assert len(PROMISES) >= 20


@pytest.mark.parametrize("row", PROMISES, ids=str)
def test_the_table_of_promises_is_what_the_code_computes(row: tuple[int, ...]) -> None:
    """E11."""
    data, parity, domains, witnesses, *expected = row
    config = StoreConfig(
        run="r",
        targets=tuple(
            TargetConfig(name=f"t{number}", url=f"s3://bucket-{number}", fragments=number < domains)
            for number in range(domains + witnesses)
        ),
        code=CodeConfig(data=data, parity=parity),
    )
    promised = promise(config)
    assert [promised.fragment_tolerance, promised.control_tolerance, promised.promised] == expected


@pytest.mark.parametrize("number", range(3))
def test_the_examples_load_and_lose_a_domain(number: int, tmp_path: Path) -> None:
    assert len(EXAMPLES) == 3
    path = tmp_path / "objckpt.toml"
    path.write_text(EXAMPLES[number], encoding="utf-8")
    promised = promise(load_config(path))
    assert (promised.promised, promised.advice) == (1, None)


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("### `[[targets]]`", TargetConfig),
        ("### `[code]`", CodeConfig),
        ("### `[transfer]`", TransferConfig),
        ("### `[read]`", ReadPolicy),
        ("### `[write]`", WritePolicy),
    ],
)
def test_every_key_is_described_with_its_default(section: str, kind: type) -> None:
    described = DOCUMENT.partition(section)[2].partition("\n#")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| .+? \| ([^|]+) \| [^|]+ \|$", described, re.MULTILINE))
    assert list(rows) == [field.name for field in dataclasses.fields(kind)]
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            assert rows[field.name] == "required"
        elif field.default not in (None, ""):
            shown = rows[field.name].strip("`").strip('"')
            size = parse_size(shown) if field.name == "memory_budget" else None
            assert str(field.default if size is None else size).lower() == (
                shown if size is None else str(field.default)
            )


def test_the_error_that_is_shown_is_the_error_that_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = EXAMPLES[1].replace('"path"', '"virtul"', 2).replace('"virtul"', '"path"', 1)
    Path("objckpt.toml").write_text(text, encoding="utf-8")
    shown = DOCUMENT.partition("```text\n")[2].partition("\n```")[0]
    with pytest.raises(ValueError) as caught:
        load_config("objckpt.toml")
    assert str(caught.value) == shown

"""What settings promise when they are read from TOML and written as TOML."""

from __future__ import annotations

import dataclasses
import re
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objckpt.config import (
    CodeConfig,
    InvalidConfigError,
    ReadPolicy,
    StoreConfig,
    TargetConfig,
    TransferConfig,
    WritePolicy,
    load_config,
    template,
)
from objckpt.config_file import exact_size
from objckpt.errors import InvalidInputError
from objckpt.units import GiB, MiB, ceil_div, parse_size

WHOLE = """\
run = "llama-7b"

[code]
data = 4
parity = 2
stripe_size = "64MiB"

[[targets]]
name = "aws-a"
url = "s3://bucket-a/ckpt"
domain = "us-east-1a"

[[targets]]
name = "aws-b"
url = "s3://bucket-b/ckpt"
domain = "us-east-1b"

[[targets]]
name = "gcs"
url = "gs://bucket-c/ckpt"

[transfer]
memory_budget = "512MiB"
threads = 16
bandwidth = "400MB"
operation_deadline_s = 60

[read]
allow_pickles = true

[write]
min_tolerance = 1
"""


@pytest.fixture(autouse=True)
def _no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def written(directory: Path, text: str) -> Path:
    path = directory / "objckpt.toml"
    path.write_text(text)
    return path


class TestReading:
    def test_every_part_of_a_file_is_read(self, tmp_path: Path) -> None:
        path = written(tmp_path, WHOLE)
        assert load_config(path) == StoreConfig(
            run="llama-7b",
            targets=(
                TargetConfig(name="aws-a", url="s3://bucket-a/ckpt", domain="us-east-1a"),
                TargetConfig(name="aws-b", url="s3://bucket-b/ckpt", domain="us-east-1b"),
                TargetConfig(name="gcs", url="gs://bucket-c/ckpt", domain="gcs"),
            ),
            code=CodeConfig(data=4, parity=2, stripe_size=64 * MiB),
            transfer=TransferConfig(
                memory_budget=512 * MiB, threads=16, bandwidth=400_000_000, operation_deadline_s=60
            ),
            read=ReadPolicy(allow_pickles=True),
            write=WritePolicy(min_tolerance=1),
        )
        assert load_config(str(path)) == load_config(path)

    def test_a_file_needs_no_particular_suffix_if_it_exists(self, tmp_path: Path) -> None:
        path = tmp_path / "store.conf"
        path.write_text(WHOLE)
        assert load_config(str(path)).run == "llama-7b"

    def test_the_callers_run_wins_over_the_files(self, tmp_path: Path) -> None:
        assert load_config(written(tmp_path, WHOLE), run="other").run == "other"
        assert load_config(written(tmp_path, WHOLE.replace('run = "llama-7b"', "")), run="other").run == "other"

    def test_relative_paths_start_at_the_files_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = """
            run = "r"
            code = { data = 1, parity = 1 }
            [[targets]]
            name = "near"
            url = "../stores/near"
            [[targets]]
            name = "far"
            url = "s3://far"
            endpoint_url = "https://minio.example:9000"
            ca_bundle = "certificates/ca.pem"
        """
        (tmp_path / "etc").mkdir()
        written(tmp_path / "etc", text)
        for directory, name in ((tmp_path, "etc/objckpt.toml"), (tmp_path / "etc", "objckpt.toml")):
            monkeypatch.chdir(directory)
            near, far = load_config(name).targets
            assert near.url == f"{tmp_path}/stores/near"
            assert far.ca_bundle == f"{tmp_path}/etc/certificates/ca.pem"


CHANGES: list[tuple[str, str, str]] = [
    # What is replaced in WHOLE, by what, and what the error has to say.
    (
        "data = 4",
        "dta = 4",
        "code.dta is no setting: did you mean data?; code.data is missing: allowed is a whole number",
    ),
    ("threads = 16", "workers = 16", "transfer.workers is no setting: allowed are memory_budget, threads, bandwidth"),
    ("[transfer]", "[transfers]", "transfers is no setting: did you mean transfer?"),
    (
        'domain = "us-east-1b"',
        'adressing_style = "path"',
        "targets[1].adressing_style is no setting: did you mean addressing_style?",
    ),
    (
        'domain = "us-east-1b"',
        'addressing_style = "virtul"',
        "targets[1].addressing_style is 'virtul': allowed is one of auto, path, virtual",
    ),
    ('domain = "us-east-1b"', 'read_cost = "low"', "targets[1].read_cost is 'low': allowed is a number"),
    ('domain = "us-east-1b"', "fragments = 1", "targets[1].fragments is 1: allowed is true or false"),
    (
        'domain = "us-east-1b"',
        'user_project = "p"',
        "targets[1].user_project is 'p', which s3 targets do not have: allowed for gs:// only",
    ),
    ('name = "aws-b"', "", "targets[1].name is missing: allowed is text"),
    (
        'name = "aws-b"',
        'name = "aws-a"',
        "targets[1].name is 'aws-a', as targets[0].name is: allowed is each name once",
    ),
    ('name = "aws-b"', "name = 1", "targets[1].name is 1: allowed is text"),
    ('url = "gs://bucket-c/ckpt"', "", "targets[2].url is missing: allowed is text"),
    (
        'url = "gs://bucket-c/ckpt"',
        'url = "gcs://bucket-c/ckpt"',
        "targets[2].url is 'gcs://bucket-c/ckpt': did you mean gs://?",
    ),
    (
        'url = "gs://bucket-c/ckpt"',
        'url = "gs:/bucket-c/ckpt"',
        "targets[2].url is 'gs:/bucket-c/ckpt', which is what a Path makes of a URL",
    ),
    ('url = "gs://bucket-c/ckpt"', 'url = "~/ckpt"', "targets[2].url is '~/ckpt': ~ is not expanded"),
    ('url = "gs://bucket-c/ckpt"', 'url = ""', "targets[2].url is '': allowed are s3://bucket/prefix"),
    (
        'url = "s3://bucket-b/ckpt"',
        'url = "s3://bucket-a/ckpt/"',
        "targets[1].url is 's3://bucket-a/ckpt', which lies at targets[0].url ('s3://bucket-a/ckpt')",
    ),
    (
        'url = "s3://bucket-b/ckpt"',
        'url = "s3://bucket-a/ckpt/b"',
        "targets[1].url is 's3://bucket-a/ckpt/b', which lies inside targets[0].url",
    ),
    (
        '"64MiB"',
        '"64 furlongs"',
        "code.stripe_size is '64 furlongs', which is not a size: write a number and one of B, KiB",
    ),
    ('"64MiB"', "-1", "code.stripe_size is -1, which is negative"),
    ('"64MiB"', "true", "code.stripe_size is True, which is not a size"),
    ('"64MiB"', "0", "code.stripe_size is 0: allowed are 4 bytes"),
    ('"64MiB"', '"2GiB"', "code.stripe_size is 2147483648: allowed are 4 bytes (one per data fragment) up to 1GiB"),
    (
        '"512MiB"',
        '"95MiB"',
        "transfer.memory_budget is 95MiB, but one stripe takes 6 fragments of 16MiB: allowed is 96MiB or more",
    ),
    ('"400MB"', '"0MB"', "transfer.bandwidth is 0: allowed is 1 byte or more"),
    ("data = 4", "data = 0", "code.data is 0: allowed is 1 or more"),
    ("data = 4", 'data = "4"', "code.data is '4': allowed is a whole number"),
    ("data = 4", "data = 31", "code.data + parity is 31 + 2 = 33: allowed are 32 at most"),
    ("data = 4", "data = 7", "code.parity is 2, but with 7 + 2 fragments over 3 domains one domain holds 3"),
    ("parity = 2", "parity = -1", "code.parity is -1: allowed is 0 or more"),
    ("threads = 16", "threads = 0", "transfer.threads is 0: allowed is 1 or more"),
    (
        "operation_deadline_s = 60",
        "operation_deadline_s = inf",
        "transfer.operation_deadline_s is inf: allowed is a number",
    ),
    (
        "min_tolerance = 1",
        "min_tolerance = 2",
        "write.min_tolerance is 2, but this code over 3 domains survives the loss of 1",
    ),
    ("allow_pickles = true", 'allow_pickles = "yes"', "read.allow_pickles is 'yes': allowed is true or false"),
    ('run = "llama-7b"', 'run = "llama/7b"', "run is 'llama/7b': allowed are 1 to 128 letters"),
    ('run = "llama-7b"', "", "run is missing: allowed is text"),
    ('run = "llama-7b"', 'run = "r"\nread = 1\n', "is not TOML"),
    ("[read]\nallow_pickles = true", "[[read]]", "read is [{}]: allowed is a table"),
]


class TestMistakes:
    @pytest.mark.parametrize(("old", "new", "expected"), CHANGES)
    def test_a_mistake_is_told_by_its_full_key_and_value(
        self, tmp_path: Path, old: str, new: str, expected: str
    ) -> None:
        assert WHOLE.count(old) == 1
        path = written(tmp_path, WHOLE.replace(old, new))
        with pytest.raises(InvalidInputError) as caught:
            load_config(path)
        assert expected in str(caught.value)
        assert str(path) in str(caught.value)

    def test_targets_must_be_tables_in_a_list(self, tmp_path: Path) -> None:
        for text, expected in (
            ('targets = "s3://b"', "targets is 's3://b': allowed are tables, each under [[targets]]"),
            ('targets = ["s3://b"]', "targets[0] is 's3://b': allowed is a table"),
            ("targets = []", "targets is none: allowed is at least one that stores fragments"),
            ("", "targets is missing: allowed is one or more TargetConfig"),
        ):
            with pytest.raises(InvalidInputError) as caught:
                load_config(written(tmp_path, f'run = "r"\ncode = {{ data = 1, parity = 0 }}\n{text}'))
            assert expected in str(caught.value)

    def test_several_mistakes_come_in_one_error(self, tmp_path: Path) -> None:
        text = (
            WHOLE.replace("threads = 16", "threads = 0")
            .replace('"64MiB"', '"x"')
            .replace('name = "aws-b"', 'name = "B"')
        )
        with pytest.raises(InvalidConfigError) as caught:
            load_config(written(tmp_path, text))
        assert sorted(problem.key for problem in caught.value.problems) == [
            "code.stripe_size",
            "targets[1].name",
            "transfer.threads",
        ]

    def test_broken_toml_is_told_by_file_and_line(self, tmp_path: Path) -> None:
        path = written(tmp_path, WHOLE.replace("parity = 2", "parity 2"))
        with pytest.raises(InvalidInputError, match=r"is not TOML: .*line 5") as caught:
            load_config(path)
        assert str(path) in str(caught.value)

    def test_a_file_in_another_encoding_is_refused_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "objckpt.toml"
        path.write_bytes('run = "é"'.encode("latin-1"))
        with pytest.raises(InvalidInputError, match="is not TOML") as caught:
            load_config(path)
        assert str(path) in str(caught.value)

    def test_a_missing_file_is_told_with_the_way_to_make_one(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match=r"does not exist.*objckpt init"):
            load_config(tmp_path / "objckpt.toml")

    def test_what_cannot_be_read_as_a_file_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InvalidInputError, match="cannot be read: Not a directory"):
            load_config(tmp_path / "file" / "objckpt.toml")


SETTINGS = {
    f"{section.rstrip('s') if section == 'targets' else section}.{field.name}"
    for section, kind in (
        ("targets", TargetConfig),
        ("code", CodeConfig),
        ("transfer", TransferConfig),
        ("read", ReadPolicy),
        ("write", WritePolicy),
    )
    for field in dataclasses.fields(kind)
}


class TestTemplate:
    def test_it_is_read_back_as_the_same_settings(self, tmp_path: Path) -> None:
        config = load_config(["s3://a/p/run-1", "gs://b/run-1", str(tmp_path / "c/run-1")])
        assert load_config(written(tmp_path, template(config))) == config

    def test_without_settings_it_is_an_example_that_is_valid(self, tmp_path: Path) -> None:
        config = load_config(written(tmp_path, template()))
        assert len(config.domains) == 3
        assert (config.transfer, config.read, config.write) == (TransferConfig(), ReadPolicy(), WritePolicy())

    def test_it_shows_every_setting_with_a_line_about_it(self) -> None:
        section, shown, lines = "", set(), template().splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            if line.startswith("["):
                section = line.strip("[]").removesuffix("s") + "."
            elif setting := re.fullmatch(r"(?:# )?([a-z_]+) = .*", line):
                shown.add(section + setting[1])
                assert before.startswith("# ") or section + setting[1] in {"target.name", "target.url", "target.domain"}
        assert shown == SETTINGS | {"run"}

    def test_what_it_shows_switched_off_can_be_switched_on(self) -> None:
        for line in template().splitlines():
            if re.match(r"# [a-z_]+ = ", line):
                tomllib.loads(line.removeprefix("# "))


@given(st.integers(0, 2**62))
def test_sizes_are_written_exactly(size: int) -> None:
    assert parse_size(exact_size(size)) == size


names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=20).filter(
    str.isprintable
)
segments = st.text(string.ascii_letters + string.digits + "_=+@,:-", min_size=1, max_size=8)
optional_texts = st.none() | texts


@st.composite
def targets(draw: st.DrawFn, name: str) -> TargetConfig:
    scheme = draw(st.sampled_from(["s3", "gs", "file", "memory"]))
    prefix = "/".join(draw(st.lists(segments, max_size=2)))
    options: dict[str, Any] = {}
    # The name in the bucket or directory keeps places apart.
    if scheme == "file":
        parts = draw(
            st.lists(texts.map(lambda text: text.replace("/", "-")).filter(lambda t: t not in (".", "..")), max_size=2)
        )
        url = "/".join(["", name, *parts])
    else:
        url = f"{scheme}://{name}/{prefix}"
    if scheme in ("s3", "gs"):
        options["endpoint_url"] = draw(st.none() | st.sampled_from(["https://host:9000", "https://10.0.0.1/path"]))
        options["ca_bundle"] = draw(st.none() | texts.map(lambda text: "/etc/" + text))
        options["storage_class"] = draw(st.none() | st.sampled_from(["STANDARD", "NEARLINE"]))
    if scheme == "s3":
        options |= {
            "region": draw(optional_texts),
            "profile": draw(optional_texts),
            "sse": draw(st.none() | st.just("aws:kms")),
        }
        options["addressing_style"] = draw(st.sampled_from(["auto", "path", "virtual"]))
        options["kms_key"] = draw(optional_texts) if options["sse"] else None
        options["expected_bucket_owner"] = draw(st.none() | st.from_regex(r"[0-9]{12}", fullmatch=True))
    if scheme == "gs":
        options |= {key: draw(optional_texts) for key in ("project", "user_project", "kms_key")}
    domain = draw(st.just("") | texts.map(lambda text: f"{name} {text}".strip()))
    return TargetConfig(name=name, url=url, domain=domain, read_cost=draw(st.floats(0, 1e9)), **options)


@st.composite
def configs(draw: st.DrawFn) -> StoreConfig:
    chosen = [draw(targets(name)) for name in draw(st.lists(names, min_size=1, max_size=5, unique=True))]
    witness = TargetConfig(
        name="-".join(t.name for t in chosen) + "-w", url="memory://the-witness-of-them", fragments=False
    )
    data = draw(st.integers(1, 16))
    parity = draw(st.integers(ceil_div(data, max(1, len(chosen) - 1)), 16))
    return StoreConfig(
        run=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)),
        targets=(*chosen, witness) if draw(st.booleans()) else tuple(chosen),
        code=CodeConfig(data=data, parity=parity, stripe_size=draw(st.none() | st.integers(16, 64 * MiB))),
        transfer=TransferConfig(
            memory_budget=draw(st.integers(3 * GiB, 2**40)),
            threads=draw(st.integers(1, 1000)),
            bandwidth=draw(st.none() | st.integers(1, 2**40)),
            operation_deadline_s=draw(st.floats(0.001, 1e6)),
            save_deadline_s=draw(st.none() | st.floats(0.001, 1e6)),
        ),
        read=ReadPolicy(allow_pickles=draw(st.booleans())),
        write=WritePolicy(min_tolerance=draw(st.integers(0, 1 if len(chosen) > 1 else 0))),
    )


@given(config=configs())
def test_settings_written_as_toml_are_read_back_as_the_same(
    config: StoreConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    path.write_text(template(config), encoding="utf-8")
    assert load_config(path) == config

"""What settings promise when they are built in code, or read from URLs."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from objckpt.coding.geometry import BLOCK_SIZE, MAX_FRAGMENTS, MAX_STRIPE_SIZE
from objckpt.config import (
    CodeConfig,
    InvalidConfigError,
    ReadPolicy,
    StoreConfig,
    TargetConfig,
    TransferConfig,
    WritePolicy,
    default_code,
    environment,
    load_config,
    promise,
)
from objckpt.errors import InvalidInputError
from objckpt.units import GiB, KiB, MiB


@pytest.fixture(autouse=True)
def _no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def target(name: str, **settings: Any) -> TargetConfig:
    return TargetConfig(**{"name": name, "url": f"s3://bucket-{name}/ckpt", **settings})


def store(domains: str = "abc", *, data: int = 2, parity: int = 1, **settings: Any) -> StoreConfig:
    """A store with one target for each letter, which is its domain."""
    targets = tuple(target(f"t{index}", domain=letter) for index, letter in enumerate(domains))
    return StoreConfig(**{"run": "r", "targets": targets, "code": CodeConfig(data=data, parity=parity), **settings})


class TestSources:
    def test_a_url_is_a_target_and_a_run(self) -> None:
        config = load_config("s3://bucket/team/run-42")
        assert config.run == "run-42"
        assert config.targets == (TargetConfig(name="s3-bucket", url="s3://bucket/team"),)
        assert config.code == CodeConfig(data=1, parity=0)

    def test_a_bucket_may_hold_runs_without_a_prefix(self) -> None:
        assert load_config("gs://bucket/run-42").targets[0].url == "gs://bucket"

    def test_urls_make_one_target_each_with_names_and_domains_of_their_own(self) -> None:
        config = load_config(["s3://a/p/run-1/", "gs://a/run-1", "memory://m/run-1", "file:///mnt/x/run-1"])
        assert config.run == "run-1"
        assert [t.url for t in config.targets] == ["s3://a/p", "gs://a", "memory://m", "/mnt/x"]
        assert [t.name for t in config.targets] == ["s3-a", "gs-a", "memory-m", "file-x"]
        assert config.domains == ("s3-a", "gs-a", "memory-m", "file-x")

    def test_with_run_given_urls_name_the_places_alone(self) -> None:
        config = load_config(["s3://a/p", "s3://b"], run="run-7")
        assert config.run == "run-7"
        assert [t.url for t in config.targets] == ["s3://a/p", "s3://b"]

    def test_names_derived_from_urls_do_not_depend_on_their_order(self) -> None:
        """Names are written into manifests."""
        urls = ["/mnt/a/ckpt/run", "/mnt/b/ckpt/run", "s3://my.bucket/run", "s3://my-bucket/run"]
        names = {t.url: t.name for t in load_config(urls).targets}
        assert names == {t.url: t.name for t in load_config(urls[::-1]).targets}
        assert len(set(names.values())) == 4

    def test_urls_in_one_bucket_are_one_domain(self) -> None:
        """E11: a bucket is lost as a whole, whatever the prefixes in it."""
        config = load_config(["s3://a/x/run", "s3://a/y/run", "s3://b/run"])
        assert config.domains == ("s3://a", "s3-b")
        assert promise(config).fragment_tolerance == 1

    @pytest.mark.parametrize(
        ("count", "code"),
        [
            (1, (1, 0)),
            (2, (1, 1)),
            (3, (2, 1)),
            (4, (2, 2)),
            (5, (3, 2)),
            (6, (4, 2)),
            (7, (5, 2)),
            (12, (10, 2)),
            (40, (30, 2)),
        ],
    )
    def test_urls_bring_a_code_that_goes_with_their_number(self, count: int, code: tuple[int, int]) -> None:
        chosen = load_config([f"s3://b{number}/run" for number in range(count)]).code
        assert (chosen.data, chosen.parity) == code
        assert chosen == default_code(count)

    def test_a_directory_is_a_target_and_a_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        os.makedirs("odd.toml/run-1")
        os.makedirs("odd.toml.d/run.toml")
        for source in (
            f"{tmp_path}/ckpt/run-1",
            "ckpt/run-1",
            "./ckpt/run-1/",
            tmp_path / "ckpt/run-1",
            Path("ckpt/run-1"),
        ):
            config = load_config(source)
            assert (config.run, config.targets[0].url) == ("run-1", f"{tmp_path}/ckpt")
        assert load_config("odd.toml/run-1").targets[0].url == f"{tmp_path}/odd.toml"
        assert load_config("odd.toml.d/run.toml").run == "run.toml"

    def test_settings_are_taken_as_they_are_but_for_the_run(self) -> None:
        config = store()
        assert load_config(config) is config
        assert load_config(config, run="other") == replace(config, run="other")

    @pytest.mark.parametrize(
        ("source", "run", "expected"),
        [
            (
                Path("s3://b/k"),
                None,
                "source is 's3:/b/k', which is what a Path makes of a URL: write 's3://b/k' as text",
            ),
            ("gs:/b/k", None, "source is 'gs:/b/k', which is what a Path makes of a URL: write 'gs://b/k' as text"),
            (["s3://a/r", Path("s3://b/r")], None, "source[1] is 's3:/b/r', which is what a Path makes of a URL"),
            (
                ["s3://a/run-1", "s3://b/run-2"],
                None,
                "source[1] is 's3://b/run-2', which ends in another run's name than 'run-1'",
            ),
            (
                "s3://bucket",
                None,
                "source is 's3://bucket', which ends in no run's name: write 's3://bucket/RUN', or give run=",
            ),
            ("s3://bucket/=x", None, "source is 's3://bucket/=x', which ends in no run's name"),
            ("/", None, "source is '/', which ends in no run's name: write '/RUN'"),
            ("s3://bucket/p", "a/b", "run is 'a/b': allowed are 1 to 128 letters"),
            (["s3://a/p", "s3://a/p"], "r", "targets[1].url is 's3://a/p', which lies at targets[0].url ('s3://a/p')"),
            ([], None, "source is an empty list: allowed are one URL or more"),
            ("", None, "source is '': allowed are s3://bucket/prefix"),
            (5, None, "source is 5: allowed are a TOML file, a URL, a list of URLs, a StoreConfig"),
            (["s3://a/r", 5], None, "source[1] is 5: allowed is a URL or a path"),
            (
                ["s3://a/r", "etc/r.toml"],
                None,
                "source[1] is 'etc/r.toml', which is a file: allowed in a list are URLs",
            ),
            ("gcs://b/r", None, "source is 'gcs://b/r': did you mean gs://?"),
            ("fil:///b/r", None, "source is 'fil:///b/r': did you mean file://?"),
            ("S3://b/r", None, "source is 'S3://b/r': did you mean s3://?"),
            ("https://b.s3.amazonaws.com/r", None, "the address of a server goes into endpoint_url"),
        ],
    )
    def test_a_source_that_cannot_be_meant_is_refused(self, source: Any, run: str | None, expected: str) -> None:
        """Trap: ``pathlib`` shortens ``s3://`` to ``s3:/``, which would quietly be a directory."""
        with pytest.raises(InvalidInputError) as caught:
            load_config(source, run=run)
        assert expected in str(caught.value)


class TestEnvironment:
    def test_gcs_targets_without_an_endpoint_go_to_the_emulator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """G05."""
        own = target("own", url="gs://own/ckpt", endpoint_url="https://gcs.example")
        targets = (target("s3"), target("gs", url="gs://b/ckpt"), own)
        for host in ("http://127.0.0.1:4443", "127.0.0.1:4443"):
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
            config = load_config(store(targets=targets))
            assert [t.endpoint_url for t in config.targets] == [None, "http://127.0.0.1:4443", "https://gcs.example"]
            assert load_config("gs://b/run").targets[0].endpoint_url == "http://127.0.0.1:4443"

    def test_an_unusable_emulator_host_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "ftp://x")
        with pytest.raises(InvalidInputError, match="STORAGE_EMULATOR_HOST is 'ftp://x': allowed is http://"):
            load_config("gs://b/run")
        assert load_config("s3://b/run").targets[0].endpoint_url is None

    def test_an_empty_variable_counts_as_unset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OBJCKPT_CONFIG", "")
        assert environment("OBJCKPT_CONFIG") is None
        monkeypatch.setenv("OBJCKPT_CONFIG", "/etc/objckpt.toml")
        assert environment("OBJCKPT_CONFIG") == "/etc/objckpt.toml"


class TestNormalForm:
    @pytest.mark.parametrize(
        ("url", "normal"),
        [
            ("s3://bucket/a/b/", "s3://bucket/a/b"),
            ("s3://bucket/", "s3://bucket"),
            ("file:///mnt/a%20b/", "/mnt/a b"),
            ("/mnt/a%20b", "/mnt/a%20b"),
            ("/mnt/x/../y//z", "/mnt/y/z"),
            ("memory://space", "memory://space"),
        ],
    )
    def test_two_spellings_of_a_place_are_one(self, url: str, normal: str) -> None:
        assert target("t", url=url).url == normal
        assert target("t", url=normal).url == normal

    def test_a_relative_path_is_fixed_when_the_settings_are_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        made = target("t", url="ckpt")
        monkeypatch.chdir("/")
        assert made.url == f"{tmp_path}/ckpt"

    def test_a_target_is_its_own_domain_unless_it_names_one(self) -> None:
        assert target("t").domain == "t"
        assert target("t", domain="zone").domain == "zone"

    def test_settings_survive_pickling(self) -> None:
        config = store(write=WritePolicy(min_tolerance=1))
        assert pickle.loads(pickle.dumps(config)) == config
        assert hash(pickle.loads(pickle.dumps(config))) == hash(config)

    def test_each_domain_has_its_first_target_for_control(self) -> None:
        witness = target("w", domain="c", fragments=False)
        config = store("aabb", data=2, parity=2)
        config = replace(config, targets=(*config.targets, witness))
        assert config.domains == ("a", "b", "c")
        assert config.fragment_domains == ("a", "b")
        assert [t.name for t in config.control_targets] == ["t0", "t2", "w"]
        assert [t.name for t in config.fragment_targets] == ["t0", "t1", "t2", "t3"]


class TestStripeSize:
    @pytest.mark.parametrize(
        ("data", "parity", "budget", "expected"),
        [
            (2, 1, 256 * MiB, 2 * 16 * MiB),
            (4, 2, 256 * MiB, 4 * (256 * MiB // 24 // BLOCK_SIZE) * BLOCK_SIZE),
            (4, 2, 4 * GiB, 4 * 16 * MiB),
            (4, 2, 6 * 64 * KiB, 4 * 64 * KiB),
            (30, 2, 64 * GiB, 30 * 16 * MiB),
        ],
    )
    def test_the_default_is_whole_blocks_within_the_budget(
        self, data: int, parity: int, budget: int, expected: int
    ) -> None:
        config = store("a", data=data, parity=parity, transfer=TransferConfig(memory_budget=budget))
        assert config.stripe_size == expected
        assert config.stripe_size <= MAX_STRIPE_SIZE
        assert config.stripe_size % (data * BLOCK_SIZE) == 0

    def test_what_is_set_is_taken(self) -> None:
        assert store(code=CodeConfig(data=2, parity=1, stripe_size=12345)).stripe_size == 12345


ARCHIVE = "not allowed, since a load could not read it at once"

TARGET_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"name": "A"}, "target.name is 'A': allowed are lower-case letters"),
    ({"name": ""}, "target.name is '': allowed are lower-case letters"),
    ({"name": 3}, "target.name is 3: allowed is text"),
    ({"domain": "zone "}, "target.domain is 'zone ': spaces around it are not allowed"),
    ({"domain": "zo\nne"}, "target.domain is 'zo\\nne': allowed is text without unprintable characters"),
    ({"fragments": "no"}, "target.fragments is 'no': allowed is true or false"),
    ({"read_cost": -1}, "target.read_cost is -1: allowed is 0 or more"),
    ({"read_cost": float("inf")}, "target.read_cost is inf: allowed is a number"),
    ({"read_cost": True}, "target.read_cost is True: allowed is a number"),
    (
        {"url": Path("s3://b/k")},
        "target.url is 's3:/b/k', which is what a Path makes of a URL: write 's3://b/k' as text",
    ),
    ({"url": Path("/mnt")}, "allowed is text"),
    ({"url": "s3:/b/k"}, "target.url is 's3:/b/k', which is what a Path makes of a URL"),
    ({"url": "ftp://b/k"}, "target.url is 'ftp://b/k': Allowed are s3://bucket/prefix"),
    ({"url": "s3a://b/k"}, "target.url is 's3a://b/k': did you mean s3://?"),
    ({"url": "s3://"}, "target.url is 's3://': '' is no name of a bucket"),
    (
        {"url": "s3://localhost:9000/b"},
        "target.url is 's3://localhost:9000/b': allowed is a bucket after s3://; a host",
    ),
    ({"url": "s3://b/a//c"}, "target.url is 's3://b/a//c': '' is no part of a prefix"),
    ({"url": "s3://b/../c"}, "target.url is 's3://b/../c': '..' is no part of a prefix"),
    ({"url": "s3://b/a b"}, "target.url is 's3://b/a b': 'a b' is no part of a prefix"),
    ({"url": "file://mnt/x"}, "target.url is 'file://mnt/x': allowed is an absolute path after file://"),
    ({"url": "~/ckpt"}, "target.url is '~/ckpt': ~ is not expanded"),
    ({"url": "file:///a%00b"}, "target.url is 'file:///a%00b': unprintable characters are not allowed"),
    ({"url": ""}, "target.url is '': allowed are s3://bucket/prefix"),
    ({"endpoint_url": "minio:9000"}, "target.endpoint_url is 'minio:9000': allowed is http:// or https://"),
    ({"endpoint_url": "http://"}, "target.endpoint_url is 'http://': allowed is http:// or https://, a host"),
    ({"endpoint_url": "http://h:x"}, "target.endpoint_url is 'http://h:x': allowed is http:// or https://, a host"),
    ({"endpoint_url": ""}, "target.endpoint_url is '': allowed is a text that is not empty"),
    ({"region": ""}, "target.region is '': allowed is a text that is not empty"),
    ({"addressing_style": "virtul"}, "target.addressing_style is 'virtul': allowed is one of auto, path, virtual"),
    ({"sse": "aws-kms"}, "target.sse is 'aws-kms': allowed are AES256, aws:kms, aws:kms:dsse"),
    ({"kms_key": "k"}, "target.kms_key is 'k': allowed only with sse"),
    ({"kms_key": "k", "sse": "AES256"}, "target.kms_key is 'k': allowed only with sse"),
    ({"expected_bucket_owner": "me"}, "target.expected_bucket_owner is 'me': allowed are an account's 12 digits"),
    ({"storage_class": "GLACIER"}, f"target.storage_class is 'GLACIER': {ARCHIVE}"),
    ({"storage_class": "DEEP_ARCHIVE"}, f"target.storage_class is 'DEEP_ARCHIVE': {ARCHIVE}"),
    ({"ca_bundle": "~/ca.pem", "endpoint_url": "https://h"}, "target.ca_bundle is '~/ca.pem': ~ is not expanded"),
    (
        {"ca_bundle": "/ca.pem", "endpoint_url": "http://h"},
        "target.ca_bundle is '/ca.pem': not allowed where endpoint_url",
    ),
]

ELSEWHERE = {
    "endpoint_url": ("http://h", ["/mnt", "memory://m"], "s3:// and gs:// only"),
    "region": ("r", ["gs://b", "/mnt", "memory://m"], "s3:// only"),
    "profile": ("p", ["gs://b", "/mnt"], "s3:// only"),
    "project": ("p", ["s3://b", "/mnt"], "gs:// only"),
    "addressing_style": ("path", ["gs://b", "/mnt"], "s3:// only"),
    "ca_bundle": ("/ca.pem", ["/mnt", "memory://m"], "s3:// and gs:// only"),
    "storage_class": ("STANDARD", ["/mnt"], "s3:// and gs:// only"),
    "sse": ("AES256", ["gs://b", "/mnt"], "s3:// only"),
    "kms_key": ("k", ["/mnt"], "s3:// and gs:// only"),
    "user_project": ("p", ["s3://b", "/mnt"], "gs:// only"),
    "expected_bucket_owner": ("123456789012", ["gs://b", "/mnt"], "s3:// only"),
}


class TestMistakesInCode:
    @pytest.mark.parametrize(("settings", "expected"), TARGET_MISTAKES)
    def test_a_wrong_target_is_refused_by_key_and_value(self, settings: dict[str, Any], expected: str) -> None:
        with pytest.raises(InvalidInputError) as caught:
            target("t", **settings) if "name" not in settings else TargetConfig(url="s3://b", **settings)
        assert expected in str(caught.value)

    @pytest.mark.parametrize("key", ELSEWHERE)
    def test_an_option_that_the_store_does_not_have_is_refused(self, key: str) -> None:
        value, urls, allowed = ELSEWHERE[key]
        for url in urls:
            with pytest.raises(InvalidInputError) as caught:
                target("t", url=url, **{key: value})
            assert f"target.{key} is {value!r}, which" in str(caught.value)
            assert f"allowed for {allowed}" in str(caught.value)

    @pytest.mark.parametrize(
        "settings",
        [
            {"url": "s3://AKIAKEY:hunter2@bucket/p"},
            {"url": "s3://bucket/p?X-Amz-Signature=hunter2"},
            {"url": "s4://AKIAKEY:hunter2@bucket/p"},
            {"url": "s3:/AKIAKEY:hunter2@bucket/p"},
            {"url": Path("s3://AKIAKEY:hunter2@bucket/p")},
            {"url": "s3://AKIAKEY:hunter2@bucket/\n"},
            {"endpoint_url": "https://AKIAKEY:hunter2@minio.example"},
            {"endpoint_url": "https://minio.example/?token=hunter2"},
            {"endpoint_url": "https://AKIAKEY:hunter2@minio.example:port"},
            {"endpoint_url": "http://AKIAKEY:hunter2@h", "url": "/mnt"},
        ],
    )
    def test_credentials_in_a_url_are_refused_and_never_shown(self, settings: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError) as caught:
            target("t", **settings)
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(caught.value)

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: CodeConfig(data=0, parity=1), "code.data is 0: allowed is 1 or more"),
            (lambda: CodeConfig(data=4, parity=-1), "code.parity is -1: allowed is 0 or more"),
            (lambda: CodeConfig(data=True, parity=1), "code.data is True: allowed is a whole number"),
            (
                lambda: CodeConfig(data=MAX_FRAGMENTS, parity=2),
                f"code.data + parity is 32 + 2 = 34: allowed are {MAX_FRAGMENTS} at most",
            ),
            (lambda: CodeConfig(data=4, parity=2, stripe_size=0), "code.stripe_size is 0: allowed are 4 bytes"),
            (lambda: CodeConfig(data=4, parity=2, stripe_size=3), "code.stripe_size is 3: allowed are 4 bytes"),
            (
                lambda: CodeConfig(data=4, parity=2, stripe_size=2 * GiB),
                "code.stripe_size is 2147483648: allowed are 4 bytes (one per data fragment) up to 1GiB",
            ),
            (lambda: TransferConfig(memory_budget=0), "transfer.memory_budget is 0: allowed is 1 byte or more"),
            (lambda: TransferConfig(memory_budget=1.5), "transfer.memory_budget is 1.5: allowed is a whole number"),
            (lambda: TransferConfig(threads=0), "transfer.threads is 0: allowed is 1 or more"),
            (lambda: TransferConfig(bandwidth=0), "transfer.bandwidth is 0: allowed is 1 byte or more"),
            (
                lambda: TransferConfig(operation_deadline_s=0),
                "transfer.operation_deadline_s is 0: allowed is more than 0",
            ),
            (
                lambda: TransferConfig(operation_deadline_s=float("nan")),
                "transfer.operation_deadline_s is nan: allowed is a number",
            ),
            (lambda: TransferConfig(save_deadline_s=-1.0), "transfer.save_deadline_s is -1.0: allowed is more than 0"),
            (lambda: ReadPolicy(allow_pickles=1), "read.allow_pickles is 1: allowed is true or false"),
            (lambda: WritePolicy(min_tolerance=-1), "write.min_tolerance is -1: allowed is 0 or more"),
            (lambda: store(run=""), "run is '': allowed are 1 to 128 letters"),
            (lambda: store(run=".hidden"), "run is '.hidden': allowed are 1 to 128 letters"),
            (lambda: store(run="x" * 129), f"run is '{'x' * 129}': allowed are 1 to 128 letters"),
            (lambda: store(run="a/b"), "run is 'a/b': allowed are 1 to 128 letters"),
            (lambda: store(run=7), "run is 7: allowed is text"),
            (lambda: store(targets=[target("a")]), "allowed is one or more TargetConfig"),
            (lambda: store(targets=()), "targets is none: allowed is at least one that stores fragments"),
            (
                lambda: store(targets=(target("a", fragments=False),)),
                "targets is 1, all with fragments = false: allowed is at least one",
            ),
            (
                lambda: store(targets=(target("a"), target("a", url="s3://b"))),
                "targets[1].name is 'a', as targets[0].name is: allowed is each name once",
            ),
        ],
    )
    def test_wrong_settings_are_refused_by_key_and_value(self, make: Any, expected: str) -> None:
        with pytest.raises(InvalidInputError) as caught:
            make()
        assert expected in str(caught.value)

    @pytest.mark.parametrize(
        ("first", "second", "relation"),
        [
            ({"url": "s3://b/x"}, {"url": "s3://b/x/"}, "at"),
            ({"url": "s3://b/x"}, {"url": "s3://b/x/y"}, "inside"),
            ({"url": "s3://b/x/y"}, {"url": "s3://b"}, "around"),
            ({"url": "/mnt/x"}, {"url": "file:///mnt/x"}, "at"),
            ({"url": "/mnt/x"}, {"url": "/mnt/y/../x/z"}, "inside"),
            (
                {"url": "s3://b/x", "endpoint_url": "http://H:80"},
                {"url": "s3://b/x", "endpoint_url": "http://h/"},
                "at",
            ),
        ],
    )
    def test_two_targets_at_one_place_are_refused(
        self, first: dict[str, Any], second: dict[str, Any], relation: str
    ) -> None:
        """E11: they would be lost together."""
        with pytest.raises(InvalidInputError) as caught:
            store(targets=(target("a", **first), target("b", **second)))
        assert f"targets[1].url is {target('b', **second).url!r}, which lies {relation} targets[0].url" in str(
            caught.value
        )

    def test_one_name_of_a_bucket_on_two_servers_is_two_places(self) -> None:
        one, other = (
            target("a", url="s3://b", endpoint_url="http://h:1"),
            target("b", url="s3://b", endpoint_url="http://h:2"),
        )
        sibling = target("c", url="s3://bb/x")
        assert store(targets=(one, other, sibling)).targets == (one, other, sibling)

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_witness_that_would_add_no_vote_is_refused(self, order: int) -> None:
        targets = (target("a", domain="zone"), target("w", domain="zone", fragments=False))[::order]
        with pytest.raises(InvalidInputError) as caught:
            store(targets=targets, data=1, parity=0)
        assert (
            f"targets[{1 if order == 1 else 0}].domain is 'zone', which is not the domain of this witness alone"
            in str(caught.value)
        )

    @pytest.mark.parametrize(
        ("domains", "data", "parity", "needed"),
        [
            ("ab", 4, 2, "parity of 4 or more, or 3 domains"),
            ("abc", 4, 1, "parity of 2 or more, or 5 domains"),
            ("aabb", 8, 3, "parity of 8 or more, or 4 domains"),
        ],
    )
    def test_a_code_that_could_lose_no_domain_is_refused(
        self, domains: str, data: int, parity: int, needed: str
    ) -> None:
        """E11: parity that correlated placement makes useless."""
        with pytest.raises(InvalidInputError) as caught:
            store(domains, data=data, parity=parity)
        assert f"code.parity is {parity}, but with {data} + {parity} fragments over" in str(caught.value)
        assert f"allowed is a {needed} or more" in str(caught.value)

    @pytest.mark.parametrize(
        ("domains", "data", "parity"),
        [("ab", 4, 4), ("abc", 4, 2), ("abcde", 4, 1), ("abcd", 8, 3), ("a", 4, 2), ("ab", 4, 0)],
    )
    def test_what_that_refusal_asks_for_is_accepted(self, domains: str, data: int, parity: int) -> None:
        assert store(domains, data=data, parity=parity).code.parity == parity

    def test_a_tolerance_that_no_save_could_reach_is_refused(self) -> None:
        with pytest.raises(
            InvalidInputError,
            match=r"write\.min_tolerance is 2, but this code over 3 domains survives the loss of 1: allowed are 0 to 1",
        ):
            store(write=WritePolicy(min_tolerance=2))
        assert store(write=WritePolicy(min_tolerance=1)).write.min_tolerance == 1

    def test_a_budget_below_one_stripe_is_refused_with_the_least_that_works(self) -> None:
        code = CodeConfig(data=2, parity=1, stripe_size=64 * MiB)
        with pytest.raises(InvalidInputError) as caught:
            store(code=code, transfer=TransferConfig(memory_budget=95 * MiB))
        assert (
            "transfer.memory_budget is 95MiB, but one stripe takes 3 fragments of 32MiB: allowed is 96MiB or more"
            in str(caught.value)
        )
        store(code=code, transfer=TransferConfig(memory_budget=96 * MiB))
        with pytest.raises(InvalidInputError, match="allowed is 192KiB or more"):
            store(transfer=TransferConfig(memory_budget=100 * KiB))

    def test_all_mistakes_of_a_target_come_in_one_error(self) -> None:
        with pytest.raises(InvalidConfigError) as caught:
            target("T", url="ftp://x", read_cost=-1)
        assert [problem.key for problem in caught.value.problems] == ["target.read_cost", "target.name", "target.url"]
        assert str(caught.value).startswith("3 settings are wrong: ")

    def test_the_error_survives_pickling(self) -> None:
        with pytest.raises(InvalidConfigError) as caught:
            target("T")
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again), again.problems) == (
            InvalidConfigError,
            str(caught.value),
            caught.value.problems,
        )


class TestPromise:
    @pytest.mark.parametrize(
        ("domains", "data", "parity", "f", "c"),
        [
            ("a", 4, 2, 0, 0),
            ("ab", 1, 1, 1, 0),
            ("abc", 2, 1, 1, 1),
            ("abc", 4, 2, 1, 1),
            ("aabbcc", 4, 2, 1, 1),
            ("abcd", 2, 2, 2, 1),
            ("abcde", 3, 2, 2, 2),
            ("abcdef", 4, 2, 2, 2),
            ("abcd", 8, 4, 1, 1),
            ("abcd", 3, 4, 2, 1),
            ("abcde", 4, 0, 0, 2),
        ],
    )
    def test_it_is_the_smaller_of_what_fragments_and_control_survive(
        self, domains: str, data: int, parity: int, f: int, c: int
    ) -> None:
        """E11."""
        promised = promise(store(domains, data=data, parity=parity))
        assert (promised.fragment_tolerance, promised.control_tolerance, promised.promised) == (f, c, min(f, c))
        assert (promised.advice is None) == (min(f, c) > 0)

    def test_it_says_what_even_placement_survives_and_no_more(self) -> None:
        """Every choice of lost domains is tried, against a placement dealt out one by one."""
        for count in range(2, 7):
            for data in range(1, 9):
                for parity in range(-(-data // (count - 1)), 9):
                    held = [sum(1 for fragment in range(data + parity) if fragment % count == d) for d in range(count)]
                    survives = max(
                        r for r in range(count) if all(sum(lost) <= parity for lost in combinations(held, r))
                    )
                    assert promise(store("abcdef"[:count], data=data, parity=parity)).fragment_tolerance == survives

    def test_a_witness_counts_for_control_only(self) -> None:
        two = store("ab", data=1, parity=1)
        three = replace(two, targets=(*two.targets, target("w", fragments=False)))
        assert promise(two).promised == 0
        assert promise(three).promised == 1
        assert promise(three).advice is None

    @pytest.mark.parametrize(
        ("domains", "data", "parity", "advice"),
        [
            ("a", 1, 0, "all fragments are in one domain: add targets in two other domains"),
            ("a", 1, 0, "without parity the loss of a single object loses a checkpoint"),
            ("ab", 1, 1, "add a witness in a third one, for instance a small bucket with `fragments = false`"),
            ("abc", 4, 0, "code.parity is 0: set it to 2 or more"),
            ("ab", 4, 0, "code.parity is 0: set it to 4 or more"),
        ],
    )
    def test_where_nothing_is_promised_it_says_what_would_help(
        self, domains: str, data: int, parity: int, advice: str
    ) -> None:
        """E11."""
        assert advice in (promise(store(domains, data=data, parity=parity)).advice or "")

    def test_domains_that_share_a_bucket_are_remarked_on(self) -> None:
        """E11: one lifecycle rule or one policy reaches all of a bucket."""
        targets = tuple(target(name, url=f"s3://b/{name}") for name in ("x", "y", "z"))
        promised = promise(store(targets=targets))
        assert promised.promised == 1
        assert promised.advice == "x, y, z are called separate domains but share the bucket s3://b, which fails as one"

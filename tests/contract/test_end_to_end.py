"""A run through DCP on each kind of server: save, lose a fragment, load, take over."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import objckpt
from objckpt.errors import FencedError
from objckpt.format import keys

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def config_on(url: str, endpoint: str | None) -> objckpt.StoreConfig:
    """Three prefixes of one bucket as three domains: enough to test with."""
    return objckpt.StoreConfig(
        run="run",
        targets=tuple(
            objckpt.TargetConfig(name=name, url=f"{url}/{name}", endpoint_url=endpoint)
            for name in ("one", "two", "three")
        ),
        code=objckpt.CodeConfig(data=2, parity=1, stripe_size=2 * 1024 * 1024),
    )


def whole_story(config: objckpt.StoreConfig) -> None:
    state = {"w": torch.arange(1_500_000.0), "o": {"lr": 0.1}}
    with objckpt.open(config) as store:
        run = store.begin(create=True)
        dcp.save(state, storage_writer=run.writer(step=1), no_dist=True)
        shard = store.checkpoint(1).shard("rank-00000.safetensors")
        lost = shard.stripes[0].fragments[0]
        store.targets.stores[lost.target].delete(keys.fragment_key(shard.id, 0, 0))
        assert not store.verify(1).whole
        found = {"w": torch.zeros(1_500_000), "o": {"lr": 0.0}}
        dcp.load(found, storage_reader=store.reader(), no_dist=True)
        assert torch.equal(found["w"], state["w"])
        assert found["o"] == {"lr": 0.1}
        with objckpt.open(config) as other:
            newer = other.begin()
            dcp.save(state, storage_writer=newer.writer(step=2), no_dist=True)
        with pytest.raises(BaseException) as caught:
            dcp.save(state, storage_writer=run.writer(step=3), no_dist=True)
        assert isinstance(objckpt.cause(caught.value), FencedError)
        assert [entry.step for entry in store.checkpoints()] == [2, 1]
        assert store.verify(2, deep=True).whole


@pytest.mark.parametrize("kind", ["localstack", "seaweedfs", "rclone", pytest.param("ceph", marks=pytest.mark.ceph)])
def test_a_run_on_an_s3_server(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, s3_bucket: Callable[[Any], str]
) -> None:
    server = request.getfixturevalue(kind)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    whole_story(config_on(f"s3://{s3_bucket(server)}", server.url))


def test_a_run_on_a_gcs_server(fake_gcs: Any, gcs_bucket: Callable[[Any], str]) -> None:
    whole_story(config_on(f"gs://{gcs_bucket(fake_gcs)}", fake_gcs.url))


@pytest.mark.endpoint
def test_a_run_on_the_endpoint_that_the_user_names() -> None:
    config = config_on(
        f"s3://{os.environ['S3_BUCKET']}/objckpt-trial-{os.urandom(8).hex()}", os.environ.get("S3_ENDPOINT")
    )
    try:
        whole_story(config)
    finally:
        with objckpt.open(config) as store:
            for target in store.targets.stores.values():
                for key in [info.key for info in target.list("")]:
                    target.delete(key)

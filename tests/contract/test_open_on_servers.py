"""Targets opened from settings alone, on real servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from objckpt.config import TargetConfig, TransferConfig
from objckpt.seams import Seams
from objckpt.store.open import list_runs, open_target
from objckpt.telemetry import NullObserver


@pytest.mark.parametrize("kind", ["localstack", "seaweedfs", "rclone", "fake_gcs"])
def test_every_run_is_found_in_whatever_order_a_store_lists(
    kind: str, bucket_of: Callable[[str], tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S24: SeaweedFS lists ``run/...`` before ``run-2/...``, the others after it."""
    server, bucket = bucket_of(kind)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    scheme = "gs" if kind == "fake_gcs" else "s3"
    target = TargetConfig(name="target", url=f"{scheme}://{bucket}/{uuid.uuid4().hex}/prefix", endpoint_url=server.url)
    runs = ["run", "run-2", "run.2", "run2", "another"]
    for run in runs:
        store = open_target(target, run=run, transfer=TransferConfig(), seams=Seams(), observer=NullObserver())
        for key in ("markers/1", "data/00/1"):
            store.put(key, b"x")
        assert sorted(info.key for info in store.list("")) == ["data/00/1", "markers/1"]
        store.close()
    found = list(list_runs(target, transfer=TransferConfig(), seams=Seams()))
    assert sorted(found) == sorted(runs)

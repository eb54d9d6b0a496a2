"""The real servers of the tests: one of each kind per session, started on first use, stopped by process id.

A server that is not installed or does not come up fails the tests that need it, with its name.
"""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The servers' own code is no package: it is run as a script by people who have only its folder in mind.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "localstack"))
servers = importlib.import_module("servers")


@pytest.fixture(scope="session")
def localstack() -> Iterator[Any]:
    with servers.running("localstack") as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[Any]:
    with servers.running("seaweedfs") as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[Any]:
    with servers.running("gcs") as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[Any]:
    with servers.running("rclone") as server:
        yield server


@pytest.fixture(scope="session")
def ceph() -> Iterator[Any]:
    with servers.running("ceph") as server:
        yield server


@pytest.fixture(scope="session")
def s3_bucket() -> Callable[[Any], str]:
    """Makes a new bucket on an S3 server."""
    return _new_bucket


@pytest.fixture(scope="session")
def gcs_bucket() -> Callable[[Any], str]:
    """Makes a new bucket on a GCS server."""
    return _new_bucket


def _new_bucket(server: Any) -> str:
    name = f"b{uuid.uuid4().hex[:20]}"
    server.make_bucket(name)
    return name

"""The test servers themselves: they come up, they go, and one that cannot start is named."""

from __future__ import annotations

import os
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

from tests.servers import servers


def client(server: servers.Server):  # type: ignore[name-defined,no-untyped-def]
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=server.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=server.environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )


@pytest.mark.parametrize("kind", ["localstack", "seaweedfs", "rclone"])
def test_an_s3_server_comes_up_keeps_an_object_and_is_gone_afterwards(kind: str) -> None:
    with servers.running(kind) as server:
        server.make_bucket("one")
        s3 = client(server)
        s3.put_object(Bucket="one", Key="k", Body=b"body")
        assert s3.get_object(Bucket="one", Key="k")["Body"].read() == b"body"
        s3.close()
        pid, folder = server.pid, server.folder
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_a_killed_seaweedfs_comes_back_with_its_data() -> None:
    with servers.running("seaweedfs") as server:
        server.make_bucket("one")
        s3 = client(server)
        s3.put_object(Bucket="one", Key="k", Body=b"body")
        server.restart()
        assert s3.get_object(Bucket="one", Key="k")["Body"].read() == b"body"
        s3.close()


def test_a_server_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OBJCKPT_SERVERS_VENV", str(tmp_path))
    with pytest.raises(servers.ServerError, match="seaweedfs is not installed"), servers.running("seaweedfs"):
        pass


def test_a_server_that_cannot_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = servers.Server(
        kind="broken",
        url="http://127.0.0.1:1",
        command=["sh", "-c", "echo the disk is on fire; exit 3"],
        folder=tmp_path,
        settings={},
        ready_path="/",
    )
    with pytest.raises(servers.ServerError, match=r"broken server ended with exit code 3[\s\S]*the disk is on fire"):
        server.start()

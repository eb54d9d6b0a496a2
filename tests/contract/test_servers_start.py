"""The test servers themselves: they come up, keep to themselves, go, and one that cannot start is named."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.servers import servers

BODY = b"body" * 500_000  # large enough for a server that keeps small objects in memory to use its disk
SHARED = Path("/tmp")  # where LocalStack and SeaweedFS would leave things, whatever TMPDIR says
COMMAND = [sys.executable, servers.__file__, "start"]


@contextmanager
def s3_client(url: str) -> Iterator[Any]:
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name=servers.S3_ENVIRONMENT["AWS_DEFAULT_REGION"],
        aws_access_key_id=servers.S3_ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=servers.S3_ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    try:
        yield client
    finally:
        client.close()


def addresses(server: servers.Server) -> set[str]:  # type: ignore[name-defined]
    """The local addresses that a server's process listens on, in the kernel's own notation."""
    sockets = set()
    for file in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            sockets.add(os.readlink(file))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


def is_gone(server: servers.Server) -> bool:  # type: ignore[name-defined]
    with suppress(ProcessLookupError):
        os.killpg(server.pid, 0)
        return False
    return not server.folder.exists()


@contextmanager
def started_by_command(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command in a process of its own, with its servers' folders in ``folder``, and the endpoints it printed."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                if line.startswith("stop with"):
                    break
                lines.append(line.split()[1])
            yield process, lines
        finally:
            process.kill()


def wait_until_closed(url: str) -> None:
    """Returns when the server at the other end is gone: the kernel then ends the connection."""
    host, port = url.removeprefix("http://").split(":")
    with suppress(ConnectionError), socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.recv(1)


@pytest.mark.parametrize("kind", ["localstack", "seaweedfs", "rclone"])
def test_an_s3_server_keeps_an_object_and_is_gone_afterwards(kind: str) -> None:
    bucket = f"b{uuid.uuid4().hex[:20]}"
    before = set(SHARED.glob("seaweedfs-*"))
    with servers.running(kind) as server, s3_client(server.url) as s3:
        server.make_bucket(bucket)
        server.make_bucket(bucket)
        s3.put_object(Bucket=bucket, Key="k", Body=BODY)
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == BODY
        assert addresses(server) == {"0100007F"}
        assert not (SHARED / "localstack-s3-storage" / bucket).exists()
        own = {path for path in server.leftovers if path.exists()}
        assert own == set(server.leftovers)
    assert is_gone(server)
    assert not own & set(SHARED.glob("seaweedfs-*")) - before


def test_the_gcs_server_keeps_an_object_of_an_anonymous_client_and_is_gone_afterwards() -> None:
    with servers.running("gcs") as server:
        server.make_bucket("one")
        server.make_bucket("one")
        client = storage.Client(
            project="none", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
        )
        blob = client.bucket("one").blob("k")
        blob.upload_from_string(BODY)
        assert blob.download_as_bytes() == BODY
        client._http.close()
        assert addresses(server) == {"0100007F"}
    assert is_gone(server)


@pytest.mark.ceph
def test_a_killed_ceph_comes_back_with_its_data() -> None:
    with servers.running("ceph") as server, s3_client(server.url) as s3:
        server.make_bucket("one")
        s3.put_object(Bucket="one", Key="k", Body=BODY)
        server.restart()
        assert s3.get_object(Bucket="one", Key="k")["Body"].read() == BODY
    assert is_gone(server)


def test_a_killed_seaweedfs_comes_back_with_its_data() -> None:
    with servers.running("seaweedfs") as server, s3_client(server.url) as s3:
        server.make_bucket("one")
        s3.put_object(Bucket="one", Key="k", Body=BODY)
        server.restart()
        assert s3.get_object(Bucket="one", Key="k")["Body"].read() == BODY


def test_a_kept_folder_serves_its_data_again_on_other_ports(tmp_path: Path) -> None:
    with servers.running("seaweedfs", tmp_path) as server, s3_client(server.url) as s3:
        server.make_bucket("one")
        s3.put_object(Bucket="one", Key="k", Body=BODY)
    with servers.running("seaweedfs", tmp_path) as again, s3_client(again.url) as s3:
        assert again.url != server.url
        assert s3.get_object(Bucket="one", Key="k")["Body"].read() == BODY
    assert tmp_path.exists()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_command_makes_buckets_and_cleans_up_when_told_to_end(told: signal.Signals, tmp_path: Path) -> None:
    with started_by_command(tmp_path, "rclone", "gcs", "--bucket", "one") as (process, (rclone, gcs)):
        with s3_client(rclone) as s3:
            assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["one"]
        with urllib.request.urlopen(f"{gcs}/storage/v1/b/one", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(told)
        assert process.wait(timeout=60) == 0
        for url in (rclone, gcs):
            wait_until_closed(url)
        assert not list(tmp_path.iterdir())


def test_servers_die_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    with started_by_command(tmp_path, "rclone", "gcs") as (process, urls):
        process.kill()
        process.wait()
        for url in urls:
            wait_until_closed(url)


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of someone else's server, which answers everything with success."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_server_whose_port_was_taken_is_started_again_on_others(
    stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose: Callable[[int], list[int]] = servers._free_ports
    chosen = iter([[stranger]])
    monkeypatch.setattr(servers, "_free_ports", lambda count: next(chosen, None) or choose(count))
    with servers.running("rclone") as server, s3_client(server.url) as s3:
        assert not server.url.endswith(f":{stranger}")
        s3.list_buckets()


def test_the_answer_of_a_stranger_on_the_port_is_not_taken_for_the_servers_own(stranger: int, tmp_path: Path) -> None:
    server = servers.Server(
        kind="silent",
        url=f"http://127.0.0.1:{stranger}",
        command=["sleep", "600"],
        folder=tmp_path,
        settings={},
        ready_path="/",
    )
    with pytest.raises(servers.PortTakenError, match="silent server found another process on its port"):
        server.start()
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)


def test_a_server_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OBJCKPT_SERVERS_VENV", str(tmp_path))
    with pytest.raises(servers.ServerError, match=r"seaweedfs is not installed.*make servers"):
        servers.running("seaweedfs").__enter__()


@pytest.mark.parametrize(
    ("script", "what"), [("exit 3", "ended with exit code 3"), ("exec sleep 600", r"did not answer within 0\.3 s")]
)
def test_a_server_that_cannot_start_is_named_with_the_end_of_its_log(script: str, what: str, tmp_path: Path) -> None:
    server = servers.Server(
        kind="broken",
        url="http://127.0.0.1:1",
        command=["sh", "-c", f"echo the disk is on fire; {script}"],
        folder=tmp_path,
        settings={},
        ready_path="/",
        ready_s=0.3,
    )
    with pytest.raises(servers.ServerError, match=rf"broken server {what}\ncommand: sh[\s\S]*\nthe disk is on fire"):
        server.start()
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)

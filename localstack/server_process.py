"""One object store server as a process of its own: started, awaited, killed, started again.

Only the standard library is used. A server is stopped by its own process group, and dies with the thread that
started it, however that ends. What the servers are and how each is started is in ``servers.py``. Linux only.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

KEY, SECRET, REGION = "testkey", "testsecret0123456789", "us-east-1"
S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}
READY_S = 90.0
POLL_S = 0.05

# Becomes the server, after asking the kernel to kill it when its parent is gone (prctl PR_SET_PDEATHSIG). A
# program of its own and no preexec_fn: between fork and exec, a process with threads can run no Python safely.
_LEASH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted this server is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

# The servers are on this machine: no proxy of the environment is to be asked for them.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(RuntimeError):
    """A server is not installed, did not come up or refused; the text names it and shows the end of its log."""


class PortTakenError(ServerError):
    """It ended, or found another process on its port: on other ports it may do."""


@dataclass
class Server:
    """A server; ``start`` makes it a running one.

    Attributes:
        url: The endpoint, ``http://127.0.0.1:port``.
        ready_path: Anything but a server error there means that it is up,
        ready_answer: and, where given, this URL answers with these bytes somewhere.
        environment: What a client needs in its environment; empty for GCS, whose clients are anonymous.
        leftovers: What it puts outside its folder and would leave there.
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
    leftovers: list[Path] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id, which is also its process group's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it on its folder and ports, and waits until it answers.

        Raises:
            PortTakenError: It ended, or another process has its port.
            ServerError: It did not answer in time.
        """
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *self.command],
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready(self._process)
        except BaseException:  # an interrupt as well: it must not stay behind half started
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it and its children at once, as a power cut would."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _wait_for_end_of(self._process.pid)
        for path in self.leftovers:
            path.unlink(missing_ok=True)

    def restart(self) -> None:
        """Starts it again on the same ports and folder. LocalStack keeps objects in memory and forgets them."""
        self.kill()
        self.start()

    def make_bucket(self, name: str) -> None:
        """Makes a bucket, unless it is there already."""
        if self.kind == "gcs":
            body = json.dumps({"name": name}).encode()
            request = urllib.request.Request(
                f"{self.url}/storage/v1/b", data=body, headers={"Content-Type": "application/json"}
            )
        else:
            request = urllib.request.Request(f"{self.url}/{name}", method="PUT", headers=_signed("PUT", self.url, name))
        try:
            with _DIRECT.open(request, timeout=30):
                pass
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 409:
                    said = error.read(500).decode(errors="replace")
                    raise ServerError(
                        f"the {self.kind} server refused to make the bucket {name}: {error.code} {said}"
                    ) from error

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.ready_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise PortTakenError(self._report(f"ended with exit code {process.returncode}"))
            if self._answers_as_ready():
                if not _holds_port(process.pid, int(self.url.rpartition(":")[2])):
                    raise PortTakenError(self._report("found another process on its port"))
                return
            time.sleep(POLL_S)
        raise ServerError(self._report(f"did not answer within {self.ready_s:g} s"))

    def _answers_as_ready(self) -> bool:
        if not _answers(self.url + self.ready_path):
            return False
        return self.ready_answer is None or self.ready_answer[1] in _body(self.ready_answer[0])

    def _report(self, what: str) -> str:
        log = (self.folder / "log").read_text(errors="replace").splitlines()[-20:]
        return f"the {self.kind} server {what}\ncommand: {' '.join(self.command)}\nend of its log:\n" + "\n".join(log)


def _answers(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code < 500
    except (OSError, ValueError):
        return False


def _body(url: str) -> bytes:
    try:
        with _DIRECT.open(url, timeout=2) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return b""


def _holds_port(group: int, port: int) -> bool:
    """Whether a process of this group listens on the port: an answer alone may be someone else's."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # processes come and go, and not all are ours to look at
            if os.getpgid(int(entry.name)) == group and any(os.readlink(fd) in sockets for fd in _open_files(entry)):
                return True
    return False


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                yield inode


def _open_files(process: Path) -> list[Path]:
    return list((process / "fd").iterdir())


def _wait_for_end_of(group: int) -> None:
    """Waits, in bounds, until the killed processes of a group are gone and write no more into its folder."""
    deadline = time.monotonic() + 5
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(POLL_S)


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

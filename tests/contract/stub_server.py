"""An HTTP server that answers what a test says, for the answers that real stores give rarely.

A test hands over a function from ``Request`` to ``Answer``; what was asked is kept in ``requests``.
``forward`` makes such a function a proxy before a real server.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}


@dataclass
class Answer:
    """What to send back.

    Attributes:
        announced: Content-Length to state, if it is not that of the body: then the body is cut short.
        reset: Send nothing and reset the connection.
        until: Send nothing before this event is set.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None
    reset: bool = False
    until: threading.Event | None = None


class StubServer:
    def __init__(self, respond: Callable[[Request], Answer], *, certificate: tuple[str, str] | None = None) -> None:
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(respond, self._remember))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _remember(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)


def forward(url: str, request: Request) -> Answer:
    """Sends a request on to ``url`` as it came, Host included, so that its signature stays valid."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name.lower() not in ("connection", "expect"):
                connection.putheader(name, value)
        connection.endheaders(request.body)
        response = connection.getresponse()
        body = response.read()
        headers = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
        length = response.getheader("Content-Length")
        announced = int(length) if length is not None and request.method == "HEAD" else None
        return Answer(status=response.status, body=body, headers=headers, announced=announced)
    finally:
        connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what the tests are about."""


def _handler(respond: Callable[[Request], Answer], remember: Callable[[Request], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(self.command, self.path, dict(self.headers.items()), self.rfile.read(length))
            remember(request)
            answer = respond(request)
            if answer.until is not None:
                answer.until.wait(60)
            if answer.reset:
                self._reset()
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            announced = len(answer.body) if answer.announced is None else answer.announced
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
                if announced != len(answer.body):
                    self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def _reset(self) -> None:
            # Lingering for no time at all makes the kernel send RST instead of FIN.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler

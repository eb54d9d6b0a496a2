"""Google Cloud Storage, through its JSON API and Google's own authorised session.

The storage library's blobs open a resumable session above 8 MiB: two round trips, and a session that can die.
One object here is one multipart upload, metadata (with the CRC32C that the server checks) and bytes in
a single request, sent from the caller's buffer. Nothing is retried here.

Kept: the project to bill goes with every call; sessions are one per process; over plain HTTP (an
emulator) no credentials are looked for or sent; a body that ends early is an error.

Permissions needed: storage.objects get, create, delete, list. Buckets are never created.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import google.auth
import requests
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from objckpt.config import TargetConfig
from objckpt.errors import (
    BucketNotFoundError,
    ObjckptError,
    ObjectNotFoundError,
    UnavailableError,
)
from objckpt.seams import Seams
from objckpt.store import gcserrors
from objckpt.store.http import Pieces, check_part, full_key, http_date_s, receive, receive_into
from objckpt.store.perprocess import PerProcess
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, PutMode, check_inside
from objckpt.version import __version__

_PUBLIC_ENDPOINT = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GcsStore:
    """An ``ObjectStore`` on a bucket and prefix.

    Args:
        target: Name, endpoint and the like; its url is not looked at.
        bucket: Bucket name.
        prefix: Put before every key; ends with ``/`` unless it is empty.
        threads: Requests in flight at once, which sizes the connection pool.
        seams: Wall time, to read ``Retry-After``; identities, to frame uploads.
        page_size: Keys per page of a listing, at most 1000.
        connect_timeout_s: Bound for connecting, and for a stall while sending.
        read_timeout_s: Bound for a stall while waiting or receiving.
    """

    def __init__(
        self,
        target: TargetConfig,
        *,
        bucket: str,
        prefix: str,
        threads: int,
        seams: Seams,
        page_size: int = 1000,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 60.0,
    ) -> None:
        self._target = target
        self._bucket = bucket
        self._prefix = prefix
        self._threads = threads
        self._seams = seams
        self._page_size = page_size
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._sessions: PerProcess[Any] = PerProcess()
        endpoint = (target.endpoint_url or _PUBLIC_ENDPOINT).rstrip("/")
        self._objects_url = f"{endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        self._upload_url = f"{endpoint}/upload/storage/v1/b/{quote(bucket, safe='')}/o"

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_if_absent=True, verifies_crc32c=True)

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        settings = {
            "name": full_key(self._prefix, key),
            "contentType": "application/octet-stream",
            "storageClass": self._target.storage_class,
            "crc32c": None if crc32c is None else base64.b64encode(crc32c.to_bytes(4, "big")).decode(),
        }
        boundary = self._seams.ids.new_id()  # never to be foreseen by whoever chooses the bytes
        metadata = json.dumps({name: value for name, value in settings.items() if value is not None}).encode()
        query = {
            "uploadType": "multipart",
            "ifGenerationMatch": "0" if mode is PutMode.CREATE else None,
            "kmsKeyName": self._target.kms_key,
            "fields": "size",
        }
        with self._answer(
            key,
            "POST",
            self._upload_url,
            query=query,
            body=_multipart(boundary, metadata, body),
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            sent_checksum=crc32c is not None,
        ) as answer:
            stored = _size_of(self._json(key, answer))
            if stored != len(body):
                raise UnavailableError(
                    "the store has another number of bytes than were sent",
                    sent=len(body),
                    stored="not said" if stored is None else stored,
                    **self._facts(key),
                )

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if byte_range is not None and not len(byte_range):
            check_inside(byte_range, self.head(key).size, **self._facts(key))
            return b""
        with self._body(key, byte_range) as (stream, length):
            return receive(stream, length, **self._facts(key))

    def get_into(self, key: str, start: int, views: Sequence[memoryview]) -> None:
        wanted = ByteRange(start, start + sum(len(view) for view in views))
        if not len(wanted):
            check_inside(wanted, self.head(key).size, **self._facts(key))
            return
        with self._body(key, wanted) as (stream, _):
            receive_into(stream, views, **self._facts(key))

    def head(self, key: str) -> ObjectInfo:
        with self._answer(key, "GET", self._url(key), query={"fields": "size"}) as answer:
            size = _size_of(self._json(key, answer))
        if size is None:
            raise self._nonsense(key)
        return ObjectInfo(key=key, size=size)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        query: dict[str, str | None] = {
            "prefix": self._prefix + prefix,
            "maxResults": str(self._page_size),
            "fields": "kind,items(name,size),nextPageToken",
            "startOffset": None if after is None else self._prefix + after,
        }
        while True:
            with self._answer(prefix, "GET", self._objects_url, query=query) as answer:
                page = self._json(prefix, answer)
            if page.get("kind") != "storage#objects":
                raise UnavailableError("the answer is no listing", **self._facts(prefix))
            try:
                found = [(str(each["name"]), int(each["size"])) for each in page.get("items", ())]
            except (KeyError, TypeError, ValueError) as error:
                raise self._nonsense(prefix) from error
            for name, size in found:
                key = name[len(self._prefix) :]
                # startOffset includes the key itself; consoles leave an object named like the prefix.
                if key and key != after:
                    yield ObjectInfo(key=key, size=size)
            query["pageToken"] = page.get("nextPageToken")
            if not query["pageToken"]:
                return

    def delete(self, key: str) -> None:
        try:
            with self._answer(key, "DELETE", self._url(key)):
                return
        except ObjectNotFoundError:
            return

    def server_time_s(self) -> float | None:
        query: dict[str, str | None] = {"prefix": self._prefix, "maxResults": "1", "fields": "kind"}
        with self._answer("", "GET", self._objects_url, query=query) as answer:
            return http_date_s(answer.headers.get("Date"))

    def close(self) -> None:
        session = self._sessions.take()
        if session is not None:
            session.close()

    # Reading

    @contextmanager
    def _body(self, key: str, byte_range: ByteRange | None) -> Iterator[tuple[Any, int | None]]:
        """Opens an object, or a part that is not empty; the stream gives exactly these bytes, or fewer."""
        headers = {} if byte_range is None else {"Range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
        with self._answer(key, "GET", self._url(key), query={"alt": "media"}, headers=headers) as answer:
            announced = answer.headers.get("Content-Length")
            length = None if announced is None else int(announced)
            if byte_range is not None:
                check_part(
                    byte_range,
                    status=answer.status_code,
                    length=length,
                    content_range=answer.headers.get("Content-Range"),
                    **self._facts(key),
                )
            yield answer.raw, length

    def _json(self, key: str, answer: requests.Response) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError as error:
            raise self._nonsense(key) from error
        if not isinstance(content, dict):
            raise self._nonsense(key)
        return content

    def _nonsense(self, key: str) -> UnavailableError:
        return UnavailableError(
            "the answer makes no sense", hint="is this the endpoint of the JSON API?", **self._facts(key)
        )

    # Requests and errors

    def _url(self, key: str) -> str:
        return f"{self._objects_url}/{quote(full_key(self._prefix, key), safe='')}"

    def _facts(self, key: str) -> dict[str, str]:
        return {"key": key, "target": self.name, "bucket": self._bucket}

    @contextmanager
    def _answer(
        self,
        key: str,
        method: str,
        url: str,
        *,
        query: dict[str, str | None] | None = None,
        body: Pieces | None = None,
        headers: dict[str, str] | None = None,
        sent_checksum: bool = False,
    ) -> Iterator[requests.Response]:
        """Sends one request and gives its answer, which is success, with the body still to be read."""
        facts = self._facts(key)
        params = {name: value for name, value in (query or {}).items() if value is not None}
        if self._target.user_project is not None:
            params["userProject"] = self._target.user_project
        session = None
        try:
            session = self._sessions.get(self._connect)
            with session.request(
                method,
                url,
                params=params,
                data=body,
                headers={"Accept-Encoding": "identity"} | (headers or {}),
                timeout=self._timeouts_s,
                # With the session's own setting, REQUESTS_CA_BUNDLE of the environment would win.
                verify=self._target.ca_bundle,
                allow_redirects=False,
                stream=True,
            ) as answer:
                if 200 <= answer.status_code < 300:
                    yield answer
                    return
                if answer.status_code == 401:
                    self._sessions.take(session)  # refreshing did not help: look the credentials up anew
                failure = gcserrors.from_answer(
                    answer.status_code,
                    answer.headers,
                    answer.content,
                    now_s=self._seams.clock.now_s(),
                    sent_checksum=sent_checksum,
                    **facts,
                )
        except (requests.RequestException, HTTPError, auth.GoogleAuthError) as error:
            if isinstance(error, auth.GoogleAuthError):
                self._sessions.take(session)
            raise gcserrors.from_failure(error, **facts) from error
        raise self._precisely(failure, url)

    def _precisely(self, failure: ObjckptError, url: str) -> ObjckptError:
        """Tells a missing bucket from a missing object: both are 404 with the same reason."""
        if not isinstance(failure, ObjectNotFoundError):
            return failure
        gone = BucketNotFoundError(
            "the bucket does not exist",
            target=self.name,
            bucket=self._bucket,
            hint="create the bucket, correct the target's url, or replace the target",
        )
        if url in (self._objects_url, self._upload_url):
            return gone
        try:
            query: dict[str, str | None] = {"prefix": self._prefix, "maxResults": "1", "fields": "nextPageToken"}
            with self._answer("", "GET", self._objects_url, query=query):
                return failure
        except BucketNotFoundError as error:
            return error

    def _connect(self) -> Any:
        credentials = self._credentials()
        if isinstance(credentials, AnonymousCredentials):
            # There is nothing to refresh, and trying to would hide the store's own refusal.
            session = AuthorizedSession(credentials, refresh_status_codes=())  # type: ignore[no-untyped-call]
        else:
            session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        adapter = HTTPAdapter(pool_connections=2, pool_maxsize=self._threads, max_retries=0)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        session.headers["User-Agent"] = f"objckpt/{__version__}"
        session.auth = _unchanged  # otherwise a password in ~/.netrc replaces the credentials
        return session

    def _credentials(self) -> Any:
        endpoint = self._target.endpoint_url
        if endpoint is not None and endpoint.startswith("http://"):
            return AnonymousCredentials()  # type: ignore[no-untyped-call]
        try:
            return google.auth.default(scopes=[_SCOPE])[0]
        except auth.DefaultCredentialsError:
            if endpoint is None:
                raise
            return AnonymousCredentials()  # type: ignore[no-untyped-call]


def _unchanged(request: Any) -> Any:
    return request


def _size_of(resource: dict[str, Any]) -> int | None:
    """An object's size, which the JSON API writes as a string; None if there is none."""
    try:
        return int(resource["size"])
    except (KeyError, TypeError, ValueError):
        return None


def _multipart(boundary: str, metadata: bytes, body: Body) -> Pieces:
    head = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode()
        + metadata
        + f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
    )
    return Pieces(head, body, f"\r\n--{boundary}--\r\n".encode())

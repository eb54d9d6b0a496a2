"""Amazon S3 and the stores that speak its language, through boto3.

One object is one PUT: no multipart upload, no batch delete, no trailers. The CRC32C computed above
travels as a header that the server checks, so the body itself is not signed (which would hash it a
second time) and goes out from the caller's buffer. The SDK's retries are off and nothing is retried here.

Kept: a custom endpoint is never left, whatever redirect a server asks for; clients are made under a lock, one per
process; a client whose credentials have expired is dropped, so that the next attempt finds refreshed
ones; an answer "forbidden" never means "absent"; a body that ends early is an error.

Permissions needed, on the prefix: GetObject, PutObject, DeleteObject, ListBucket. Buckets are never created.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from objckpt.config import TargetConfig
from objckpt.errors import CapabilityError, InvalidInputError, UnavailableError
from objckpt.seams import Seams
from objckpt.store import s3errors
from objckpt.store.http import Pieces, check_part, full_key, http_date_s, receive, receive_into
from objckpt.store.perprocess import PerProcess
from objckpt.store.port import Body, ByteRange, Capabilities, ObjectInfo, PutMode, check_inside
from objckpt.version import __version__

_NO_CODE_STATUSES = {400, 403, 404}


@dataclass(frozen=True, slots=True)
class _Connection:
    session: Any
    client: Any


class S3Store:
    """An ``ObjectStore`` on a bucket and prefix.

    Args:
        target: Name, endpoint, region and the like; its url is not looked at.
        bucket: Bucket name.
        prefix: Put before every key; ends with ``/`` unless it is empty.
        threads: Requests in flight at once, which sizes the connection pool.
        seams: Wall time, to tell a wrong clock from wrong credentials.
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
        self._connections: PerProcess[_Connection] = PerProcess()
        self._always = {"Bucket": bucket}
        if target.expected_bucket_owner is not None:
            self._always["ExpectedBucketOwner"] = target.expected_bucket_owner

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(create_if_absent=True, verifies_crc32c=True)

    def put(self, key: str, body: Body, *, mode: PutMode = PutMode.WRITE, crc32c: int | None = None) -> None:
        settings = {
            "StorageClass": self._target.storage_class,
            "ServerSideEncryption": self._target.sse,
            "SSEKMSKeyId": self._target.kms_key,
            "ChecksumCRC32C": None if crc32c is None else base64.b64encode(crc32c.to_bytes(4, "big")).decode(),
            "IfNoneMatch": "*" if mode is PutMode.CREATE else None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        with self._client(key) as client:
            answer = client.put_object(Key=full_key(self._prefix, key), Body=Pieces(body), **given, **self._always)
            # Something in between may answer 200 to anything; a store names what it has stored.
            if not answer.get("ETag"):
                raise UnavailableError("the answer does not say that anything was stored", **self._facts(key))

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
        name = full_key(self._prefix, key)
        with self._client(key) as client:
            try:
                answer = client.head_object(Key=name, **self._always)
                return ObjectInfo(key=key, size=int(answer["ContentLength"]))
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") not in _NO_CODE_STATUSES:
                    raise
        return self._head_by_reading(key, name)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        where: dict[str, Any] = {"Prefix": self._prefix + prefix, "MaxKeys": self._page_size}
        if after is not None:
            where["StartAfter"] = self._prefix + after
        while True:
            found, token = self._page(prefix, where)
            for name, size in found:
                key = name[len(self._prefix) :]
                if key:  # consoles leave an object named like the prefix itself
                    yield ObjectInfo(key=key, size=size)
            if token is None:
                return
            where["ContinuationToken"] = token

    def delete(self, key: str) -> None:
        # One by one: batch deletes need checksums that several stores refuse, and hide errors in a 200.
        with self._client(key) as client:
            try:
                client.delete_object(Key=full_key(self._prefix, key), **self._always)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "NoSuchKey":
                    raise

    def server_time_s(self) -> float | None:
        with self._client("") as client:
            answer = client.list_objects_v2(Prefix=self._prefix, MaxKeys=1, **self._always)
        return http_date_s(answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date"))

    def close(self) -> None:
        connection = self._connections.take()
        if connection is not None:
            connection.client.close()

    # Reading

    def _page(self, prefix: str, where: dict[str, Any]) -> tuple[Sequence[tuple[str, int]], str | None]:
        """Names and sizes on one page of a listing, and the way on to the next page."""
        with self._client(prefix) as client:
            try:
                page = client.list_objects_v2(**where, **self._always)
                found = [(str(each["Key"]), int(each["Size"])) for each in page.get("Contents", ())]
            except BotoCoreError:
                raise  # some of them are ValueErrors
            except (KeyError, ValueError) as error:
                raise UnavailableError("the answer is no listing", **self._facts(prefix)) from error
        if "IsTruncated" not in page:  # any XML passes for an empty listing, a login page too
            raise UnavailableError("the answer is no listing", **self._facts(prefix))
        token = page.get("NextContinuationToken") if page["IsTruncated"] else None
        if page["IsTruncated"] and not token:
            raise UnavailableError("a listing breaks off without a way on", **self._facts(prefix))
        return found, token

    @contextmanager
    def _body(self, key: str, byte_range: ByteRange | None) -> Iterator[tuple[Any, int | None]]:
        """Opens an object, or a part that is not empty; the stream gives exactly these bytes, or fewer."""
        wanted = {} if byte_range is None else {"Range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
        with self._client(key) as client:
            answer = client.get_object(Key=full_key(self._prefix, key), **wanted, **self._always)
            stream = answer["Body"]
            try:
                length = answer.get("ContentLength")
                if byte_range is not None:
                    check_part(
                        byte_range,
                        status=answer["ResponseMetadata"]["HTTPStatusCode"],
                        length=length,
                        content_range=answer.get("ContentRange"),
                        **self._facts(key),
                    )
                yield stream, length
            finally:
                # A connection whose body was read to its end has gone back to the pool already.
                stream.close()

    def _head_by_reading(self, key: str, name: str) -> ObjectInfo:
        """Asks again with GET: answers to HEAD have no body, and so no code that tells a missing key from a
        missing bucket, or expired credentials from a bad request."""
        with self._client(key) as client:
            try:
                answer = client.get_object(Key=name, Range="bytes=0-0", **self._always)
            except ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 416:
                    return ObjectInfo(key=key, size=0)
                raise
            answer["Body"].close()
        size = _size_of(answer)
        if size is None:
            raise UnavailableError("the store does not say how large the object is", **self._facts(key))
        return ObjectInfo(key=key, size=size)

    # Clients and errors

    def _facts(self, key: str) -> dict[str, str]:
        return {"key": key, "target": self.name, "bucket": self._bucket}

    @contextmanager
    def _client(self, key: str) -> Iterator[Any]:
        """Gives the process's client, and translates what it raises."""
        facts = self._facts(key)
        connection = None
        try:
            connection = self._connections.get(self._connect)
            yield connection.client
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            if code in s3errors.STALE_CREDENTIALS:
                self._connections.take(connection)
            if (
                connection is not None
                and code in s3errors.UNKNOWN_CREDENTIALS
                and self._has_new_credentials(connection)
            ):
                raise UnavailableError("the credentials were replaced", code=code, **facts) from error
            raise s3errors.from_client_error(error, now_s=self._seams.clock.now_s(), **facts) from error
        except (BotoCoreError, ResponseParserError, HTTPError) as error:
            if s3errors.is_credentials_failure(error):
                self._connections.take(connection)
            raise s3errors.from_sdk_error(error, **facts) from error

    def _has_new_credentials(self, connection: _Connection) -> bool:
        """Drops a client whose credentials are not known to the store; says if a new one has, or may have, others."""
        self._connections.take(connection)
        try:
            return _access_key(connection) != _access_key(self._connections.get(self._connect))
        except BotoCoreError as error:
            return s3errors.is_credentials_failure(error)

    def _connect(self) -> _Connection:
        try:
            return self._new_connection()
        except ValueError as error:  # an endpoint or region that is none
            raise InvalidInputError(
                "the SDK refuses the target's settings", target=self.name, hint=str(error)[:200]
            ) from error

    def _new_connection(self) -> _Connection:
        target = self._target
        style = target.addressing_style
        if style == "auto" and target.endpoint_url is not None:
            style = "path"  # a bucket is a host name only where DNS says so, which is rare outside clouds
        connect_timeout_s, read_timeout_s = self._timeouts_s
        session = boto3.session.Session(profile_name=target.profile, region_name=target.region)
        client = session.client(
            "s3",
            endpoint_url=target.endpoint_url,
            verify=target.ca_bundle,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": style, "payload_signing_enabled": False},
                retries={"total_max_attempts": 1, "mode": "standard"},
                max_pool_connections=self._threads,
                connect_timeout=connect_timeout_s,
                read_timeout=read_timeout_s,
                tcp_keepalive=True,
                # Trailers and default checksums break compatible stores; ours is given with every put.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                # Lets a body be any sequence of buffers. Files would get "Expect: 100-continue", which stalls
                # behind proxies that swallow it, and be sent in small reads.
                parameter_validation=False,
                user_agent_extra=f"objckpt/{__version__}",
            ),
        )
        if target.endpoint_url is not None:
            client.meta.events.register("before-send.s3", _pin_to(target.endpoint_url))
        return _Connection(session=session, client=client)


def _pin_to(endpoint_url: str) -> Callable[..., None]:
    """Makes a hook that refuses to send anything to another host than the configured endpoint.

    The SDK follows region redirects, and would carry signed requests out of a private store.
    """
    pinned = urlsplit(endpoint_url)

    def check(*, request: Any, **_: Any) -> None:
        url = urlsplit(request.url)
        host = url.hostname or ""
        same_host = host == pinned.hostname or host.endswith(f".{pinned.hostname}")
        if not same_host or url.port != pinned.port or url.scheme != pinned.scheme:
            raise CapabilityError(
                f"the store asks to send the request to {host}, which is not the configured endpoint",
                endpoint=endpoint_url,
                hint="check region and endpoint_url of the target",
            )

    return check


def _size_of(answer: dict[str, Any]) -> int | None:
    """The size of the whole object, from the answer to a GET of it or of a part."""
    content_range = answer.get("ContentRange")
    if content_range is None:
        length = answer.get("ContentLength")
        return None if length is None else int(length)
    total = content_range.rpartition("/")[2]
    return int(total) if total.isdigit() else None


def _access_key(connection: _Connection) -> str | None:
    credentials = connection.session.get_credentials()
    return None if credentials is None else credentials.get_frozen_credentials().access_key

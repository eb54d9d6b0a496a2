"""The places that the contract suite runs on, each with an oracle that bypasses the adapter under test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import ClientError

from objckpt.config import TargetConfig
from objckpt.seams import Seams
from objckpt.store.gcs import GcsStore
from objckpt.store.local import LocalStore
from objckpt.store.memory import MemorySpace, MemoryStore
from objckpt.store.port import ObjectStore
from objckpt.store.s3 import S3Store


class Site(Protocol):
    """A bucket or the like, and what its server is known to keep.

    Attributes:
        keeps_create: Of racing creators exactly one wins.
        checks_crc32c: Bytes that do not match the CRC32C sent with them are refused.
        makes_buckets: A put makes a bucket that is missing, to administrators at least.
        pages_cheaply: Making a thousand objects takes no time to speak of.
    """

    keeps_create: bool
    checks_crc32c: bool
    makes_buckets: bool
    pages_cheaply: bool

    def store(self, *, page_size: int = 1000, bucket: str | None = None) -> ObjectStore: ...

    def raw_put(self, key: str, body: bytes) -> None: ...

    def raw_get(self, key: str) -> bytes | None: ...


class MemorySite:
    keeps_create = checks_crc32c = pages_cheaply = True
    makes_buckets = False

    def __init__(self) -> None:
        self._space = MemorySpace()

    def store(self, *, page_size: int = 1000, bucket: str | None = None) -> ObjectStore:
        space = self._space if bucket is None else MemorySpace(bucket, exists=False)
        return MemoryStore("target", space=space, prefix="some/run/")

    def raw_put(self, key: str, body: bytes) -> None:
        self._space.set_unchecked("some/run/" + key, body)

    def raw_get(self, key: str) -> bytes | None:
        return self._space.objects().get("some/run/" + key)


class LocalSite:
    keeps_create = pages_cheaply = True
    checks_crc32c = makes_buckets = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = folder / "root"
        self._root.mkdir()

    def store(self, *, page_size: int = 1000, bucket: str | None = None) -> ObjectStore:
        root = self._root if bucket is None else self._folder / bucket
        return LocalStore("target", root=str(root), seams=Seams())

    def raw_put(self, key: str, body: bytes) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def raw_get(self, key: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return (self._root / key).read_bytes()
        return None


def s3_oracle(url: str | None, region: str) -> Any:
    """A plain client with the SDK's own retries, as a user would have one."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=region,
        config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
    )


class S3Site:
    pages_cheaply = False

    def __init__(
        self,
        url: str | None,
        bucket: str,
        *,
        prefix: str,
        region: str = "us-east-1",
        oracle: Any = None,
        keeps_create: bool = True,
        checks_crc32c: bool = True,
        makes_buckets: bool = False,
    ) -> None:
        self.keeps_create = keeps_create
        self.checks_crc32c = checks_crc32c
        self.makes_buckets = makes_buckets
        self.url = url
        self.bucket = bucket
        self._prefix = prefix
        self._region = region
        self._oracle = oracle or s3_oracle(url, region)

    def store(self, *, page_size: int = 1000, bucket: str | None = None, **settings: Any) -> S3Store:
        target = TargetConfig(
            name="target", url=f"s3://{self.bucket}", endpoint_url=settings.pop("url", self.url), region=self._region
        )
        return S3Store(
            target,
            bucket=bucket or self.bucket,
            prefix=self._prefix,
            threads=8,
            seams=Seams(),
            page_size=page_size,
            **settings,
        )

    def raw_put(self, key: str, body: bytes) -> None:
        self._oracle.put_object(Bucket=self.bucket, Key=self._prefix + key, Body=body)

    def raw_get(self, key: str) -> bytes | None:
        try:
            answer = self._oracle.get_object(Bucket=self.bucket, Key=self._prefix + key)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise
        with answer["Body"] as body:
            return bytes(body.read())

    def empty(self) -> None:
        for key in self._all_keys():
            self._oracle.delete_object(Bucket=self.bucket, Key=key)

    def _all_keys(self) -> Iterator[str]:
        pages = self._oracle.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._prefix)
        for page in pages:
            yield from (found["Key"] for found in page.get("Contents", ()))


class GcsSite:
    keeps_create = True
    checks_crc32c = makes_buckets = pages_cheaply = False  # the real service does check

    def __init__(self, url: str, bucket: str, *, prefix: str) -> None:
        self.url = url
        self.bucket = bucket
        self._prefix = prefix
        self._oracle = requests.Session()

    def store(self, *, page_size: int = 1000, bucket: str | None = None, **settings: Any) -> GcsStore:
        target = TargetConfig(name="target", url=f"gs://{self.bucket}", endpoint_url=settings.pop("url", self.url))
        return GcsStore(
            target,
            bucket=bucket or self.bucket,
            prefix=self._prefix,
            threads=8,
            seams=Seams(),
            page_size=page_size,
            **settings,
        )

    def raw_put(self, key: str, body: bytes) -> None:
        self._oracle.post(
            f"{self.url}/upload/storage/v1/b/{self.bucket}/o",
            params={"uploadType": "media", "name": self._prefix + key},
            data=body,
            timeout=30,
        ).raise_for_status()

    def raw_get(self, key: str) -> bytes | None:
        name = quote(self._prefix + key, safe="")
        answer = self._oracle.get(
            f"{self.url}/storage/v1/b/{self.bucket}/o/{name}", params={"alt": "media"}, timeout=30
        )
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.content

    def close(self) -> None:
        self._oracle.close()


def named_endpoint() -> S3Site:
    """The store that the user names in S3_ENDPOINT and S3_BUCKET, under a prefix of its own."""
    return S3Site(
        os.environ.get("S3_ENDPOINT"),
        os.environ["S3_BUCKET"],
        region=os.environ.get("AWS_REGION", "us-east-1"),
        keeps_create=os.environ.get("S3_KEEPS_CREATE", "1") == "1",
        checks_crc32c=os.environ.get("S3_CHECKS_CRC32C", "1") == "1",
        makes_buckets=True,  # nobody wants a test to find out
        prefix=f"objckpt-contract-{os.urandom(8).hex()}/run/",
    )

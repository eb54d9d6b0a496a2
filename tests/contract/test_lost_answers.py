"""Answers that are lost after the store has acted, on real servers behind a proxy that hangs up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from objckpt.errors import ObjectExistsError, StoreError, UnavailableError
from objckpt.store.port import ObjectStore, PutMode
from objckpt.store.retry import RetryingStore, RetryPolicy
from tests.contract.sites import GcsSite, S3Site
from tests.contract.small_s3 import error
from tests.contract.stub_server import Answer, Request, StubServer, forward
from tests.places import Middle, Remembering, StillClock

UPLOADS = ("PUT", "POST")


@pytest.fixture(params=["localstack", "seaweedfs", "gcs"])
def served(request: pytest.FixtureRequest, bucket_of: Callable[[str], tuple[Any, str]]) -> Iterator[S3Site | GcsSite]:
    if request.param == "gcs":
        server, bucket = bucket_of("fake_gcs")
        site = GcsSite(server.url, bucket, prefix=f"lost/{request.node.name}/")
        yield site
        site.close()
    else:
        yield request.getfixturevalue("s3_site")(request.param)


@contextmanager
def behind(site: S3Site | GcsSite, respond: Callable[[Request], Answer]) -> Iterator[tuple[RetryingStore, StubServer]]:
    """The site's store with retries, through a proxy."""
    with StubServer(respond) as proxy:
        store: ObjectStore = site.store(url=proxy.url)
        yield (
            RetryingStore(
                store,
                policy=RetryPolicy(operation_deadline_s=20.0),
                clock=StillClock(),
                random=Middle(),
                observer=Remembering(),
            ),
            proxy,
        )
        store.close()


def losing(
    url: str, *, count: int, methods: tuple[str, ...] = UPLOADS, after: Callable[[], None] = lambda: None
) -> Callable[[Request], Answer]:
    """Forwards everything, and loses the answers to the first ``count`` requests of these methods."""
    left = [count]

    def respond(request: Request) -> Answer:
        answer = forward(url, request)
        if request.method in methods and left[0] > 0:
            left[0] -= 1
            after()
            return Answer(reset=True)
        return answer

    return respond


@pytest.mark.parametrize("lost", [1, 3])
def test_a_create_whose_answer_was_lost_is_recognised_as_our_own(served: S3Site | GcsSite, lost: int) -> None:
    """S03."""
    with behind(served, losing(served.url, count=lost)) as (store, proxy):
        store.put("claims/mine", b"my claim", mode=PutMode.CREATE)
    assert served.raw_get("claims/mine") == b"my claim"
    assert sum(request.method in UPLOADS for request in proxy.requests) == lost + 1


def test_an_object_of_somebody_else_is_a_conflict_even_after_a_lost_request(served: S3Site | GcsSite) -> None:
    """S03: same size, other bytes."""
    served.raw_put("claims/theirs", b"claim of A")
    with (
        behind(served, losing(served.url, count=1)) as (store, _),
        pytest.raises(ObjectExistsError),
    ):
        store.put("claims/theirs", b"claim of B", mode=PutMode.CREATE)
    assert served.raw_get("claims/theirs") == b"claim of A"


def test_a_create_that_finds_an_object_at_once_is_a_conflict_without_reading_back(served: S3Site | GcsSite) -> None:
    served.raw_put("claims/theirs", b"same bytes")
    with behind(served, lambda request: forward(served.url, request)) as (store, proxy):
        with pytest.raises(ObjectExistsError):
            store.put("claims/theirs", b"same bytes", mode=PutMode.CREATE)
        assert len(proxy.requests) == 1


def test_a_plain_put_whose_answer_was_lost_is_repeated(served: S3Site | GcsSite) -> None:
    with behind(served, losing(served.url, count=2)) as (store, _):
        store.put("data/1", b"fragment")
    assert served.raw_get("data/1") == b"fragment"


def test_a_delete_whose_answer_was_lost_is_repeated(served: S3Site | GcsSite) -> None:
    served.raw_put("data/1", b"fragment")
    with behind(served, losing(served.url, count=2, methods=("DELETE",))) as (store, _):
        store.delete("data/1")
    assert served.raw_get("data/1") is None


def test_an_object_that_cannot_be_read_back_leaves_the_outcome_open(
    s3_site: Callable[[str], S3Site],
) -> None:
    """S03: neither success nor "somebody else's"."""
    site = s3_site("localstack")
    lose = losing(site.url or "", count=1)

    def write_only(request: Request) -> Answer:
        return lose(request) if request.method == "PUT" else error(403, "AccessDenied")

    with behind(site, write_only) as (store, _):
        with pytest.raises(StoreError, match="cannot be read") as caught:
            store.put("claims/mine", b"my claim", mode=PutMode.CREATE)
        assert not isinstance(caught.value, (ObjectExistsError, UnavailableError))
    assert site.raw_get("claims/mine") == b"my claim"

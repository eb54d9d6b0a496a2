"""Errors go from rank to rank: they arrive, and bring neither bodies nor credentials along."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from objckpt.config import TargetConfig
from objckpt.errors import DeadlineError, ObjckptError, UnavailableError
from objckpt.seams import Seams
from objckpt.store.gcs import GcsStore
from objckpt.store.port import ObjectStore
from objckpt.store.retry import RetryingStore, RetryPolicy
from objckpt.store.s3 import S3Store
from tests.contract.small_s3 import error
from tests.contract.stub_server import Answer, StubServer
from tests.places import Middle, Remembering, StillClock

SECRETS = (b"the-session-token", b"the-access-key", b"the-secret-key", b"Signature=")


@pytest.fixture(autouse=True)
def _temporary_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-key")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-session-token")


def opened(scheme: str, url: str) -> ObjectStore:
    target = TargetConfig(name="t1", url=f"{scheme}://bucket/p", endpoint_url=url)
    kind = S3Store if scheme == "s3" else GcsStore
    return kind(target, bucket="bucket", prefix="p/", threads=2, seams=Seams(), connect_timeout_s=5.0)


def failure_of(ask: Callable[[], object]) -> ObjckptError:
    with pytest.raises(ObjckptError) as caught:
        ask()
    return caught.value


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("answer", [Answer(reset=True), error(403, "AccessDenied")], ids=["reset", "refused"])
def test_an_error_arrives_without_body_and_credentials(scheme: str, answer: Answer) -> None:
    with StubServer(lambda _: answer) as server:
        store = opened(scheme, server.url)
        failures = [
            failure_of(lambda: store.put("a", memoryview(b"the-body" * 100))),
            failure_of(lambda: store.get("a")),
            failure_of(lambda: store.head("a")),
            failure_of(lambda: list(store.list(""))),
        ]
        store.close()
    for failure in failures:
        sent = pickle.dumps(failure)
        assert not [secret for secret in (*SECRETS, b"the-body") if secret in sent]
        arrived = pickle.loads(sent)
        assert (type(arrived), str(arrived)) == (type(failure), str(failure))


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_causes_of_an_error_arrive_by_name(scheme: str) -> None:
    clock = StillClock()
    with StubServer(lambda _: Answer(reset=True)) as server:
        store = RetryingStore(
            opened(scheme, server.url),
            policy=RetryPolicy(operation_deadline_s=1.0),
            clock=clock,
            random=Middle(),
            observer=Remembering(),
        )
        failure = failure_of(lambda: store.put("a", b"body"))
        store.close()
    arrived = pickle.loads(pickle.dumps(failure))
    again = pickle.loads(pickle.dumps(arrived))
    for each in (arrived, again):
        assert isinstance(each, DeadlineError)
        assert isinstance(each.__cause__, UnavailableError)
        assert "Connection" in str(each.__cause__.__cause__)

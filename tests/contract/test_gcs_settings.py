"""What the environment may not change about a GCS target, and answers of it that parse and say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from objckpt.config import TargetConfig
from objckpt.errors import UnavailableError
from objckpt.seams import Seams
from objckpt.store.gcs import GcsStore
from tests.contract.stub_server import Answer, StubServer


def gcs_store(url: str, **target: str) -> GcsStore:
    config = TargetConfig(name="t1", url="gs://bucket/prefix", endpoint_url=url, **target)
    return GcsStore(config, bucket="bucket", prefix="p/", threads=2, seams=Seams(), connect_timeout_s=5.0)


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_targets_ca_bundle_wins_over_the_environments(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    certificate: tuple[str, str],
    variable: str,
) -> None:
    others = tmp_path / "others.pem"
    others.write_bytes(b"")
    monkeypatch.setenv(variable, str(others))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with StubServer(lambda _: Answer(body=b'{"size": "7"}'), certificate=certificate) as server:
        store = gcs_store(server.url, ca_bundle=certificate[0])
        assert store.head("a").size == 7
        store.close()


def test_passwords_in_netrc_are_not_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """G05."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with StubServer(lambda _: Answer(body=b'{"size": "7"}')) as server:
        store = gcs_store(server.url)
        store.head("a")
        store.close()
    assert "Authorization" not in server.requests[0].headers


@pytest.mark.parametrize("body", [b"{}", b'{"size": null}', b'{"size": "many"}', b'{"size": []}'])
def test_a_size_that_makes_no_sense_is_unavailable(body: bytes) -> None:
    with StubServer(lambda _: Answer(body=body)) as server:
        store = gcs_store(server.url)
        with pytest.raises(UnavailableError):
            store.head("a")
        with pytest.raises(UnavailableError):
            store.put("a", b"1")
        store.close()


@pytest.mark.parametrize(
    "items", [b"null", b"[{}]", b'[{"name": "p/a"}]', b'[{"name": "p/a", "size": "many"}]', b"[7]"]
)
def test_a_listing_of_things_that_are_no_objects_is_unavailable(items: bytes) -> None:
    with StubServer(lambda _: Answer(body=b'{"kind": "storage#objects", "items": ' + items + b"}")) as server:
        store = gcs_store(server.url)
        with pytest.raises(UnavailableError):
            list(store.list(""))
        store.close()

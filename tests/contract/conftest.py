"""The sites of the contract suite as one parametrised fixture."""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.contract.sites import GcsSite, LocalSite, MemorySite, S3Site, Site, named_endpoint, s3_oracle

S3_KINDS: dict[str, dict[str, bool]] = {
    "localstack": {},
    "seaweedfs": {"makes_buckets": True},
    "rclone": {"keeps_create": False, "checks_crc32c": False},
    "ceph": {"checks_crc32c": False},
}


@pytest.fixture(autouse=True)
def _aws_settings_of_nobody(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps the machine's own AWS settings out, and metadata services unasked."""
    if request.node.get_closest_marker("endpoint"):
        return  # the user's endpoint is reached with the user's settings
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "certificate.pem"), str(folder / "key.pem")


@pytest.fixture(scope="session")
def bucket_of(request: pytest.FixtureRequest) -> Callable[[str], tuple[Any, str]]:
    """The server of a kind, and one bucket on it for the whole session; tests have prefixes of their own.

    (SeaweedFS gives every bucket a set of volumes, and runs out of them after a few dozen.)
    """
    known: dict[str, tuple[Any, str]] = {}

    def find(kind: str) -> tuple[Any, str]:
        if kind not in known:
            server = request.getfixturevalue(kind)
            make = request.getfixturevalue("gcs_bucket" if kind == "fake_gcs" else "s3_bucket")
            known[kind] = server, make(server)
        return known[kind]

    return find


@pytest.fixture(scope="session")
def oracle_of() -> Iterator[Callable[[str], Any]]:
    """A plain boto3 client for a server's URL; making one takes a quarter of a second."""
    made: dict[str, Any] = {}

    def find(url: str) -> Any:
        if url not in made:
            made[url] = s3_oracle(url, "us-east-1")
        return made[url]

    yield find
    for client in made.values():
        client.close()


@pytest.fixture
def s3_site(
    monkeypatch: pytest.MonkeyPatch,
    bucket_of: Callable[[str], tuple[Any, str]],
    oracle_of: Callable[[str], Any],
) -> Callable[[str], S3Site]:
    """Makes a site on an S3 server of the given kind, with its credentials in the environment."""

    def make(kind: str) -> S3Site:
        server, bucket = bucket_of(kind)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, server.environment[name])
        return S3Site(
            server.url,
            bucket,
            prefix=f"{uuid.uuid4().hex}/run/",
            oracle=oracle_of(server.url),
            **S3_KINDS[kind],
        )

    return make


@pytest.fixture(
    params=[
        "memory",
        "local",
        "localstack",
        "seaweedfs",
        "rclone",
        "gcs",
        pytest.param("ceph", marks=pytest.mark.ceph),
        pytest.param("endpoint", marks=pytest.mark.endpoint),
    ]
)
def site(request: pytest.FixtureRequest, tmp_path: Path, bucket_of: Callable[[str], tuple[Any, str]]) -> Iterator[Site]:
    kind = request.param
    if kind == "memory":
        yield MemorySite()
    elif kind == "local":
        yield LocalSite(tmp_path)
    elif kind == "gcs":
        server, bucket = bucket_of("fake_gcs")
        gcs = GcsSite(server.url, bucket, prefix=f"{uuid.uuid4().hex}/run/")
        yield gcs
        gcs.close()
    elif kind == "endpoint":
        endpoint = named_endpoint()
        yield endpoint
        endpoint.empty()
    else:
        yield request.getfixturevalue("s3_site")(kind)

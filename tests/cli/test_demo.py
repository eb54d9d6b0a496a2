"""The demonstration, whole: on directories, and on three kinds of server at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from objckpt.cli.main import main


def demonstrated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["demo", "--steps", "6", "--save-every", "2", "--json", *arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    told: dict[str, Any] = json.loads(captured.out)
    assert told["equal"]
    assert told["interrupted"]["killed_in_save_of"] == 6
    assert told["resumed"]["resumed"] in (2, 4)
    assert told["resumed"]["lost"] == [told["lost_domain"]]
    assert told["resumed"]["saved"]["6"]["degraded"]
    return told


@pytest.mark.timeout(600)
def test_a_killed_job_with_a_lost_domain_resumes_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demonstrated(capsys, "--dir", str(tmp_path))
    assert (tmp_path / "objckpt.toml").exists()


@pytest.mark.timeout(600)
def test_the_same_on_three_kinds_of_server(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    localstack: Any,
    seaweedfs: Any,
    fake_gcs: Any,
    s3_bucket: Any,
    gcs_bucket: Any,
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    servers = [
        ("aws", "s3", localstack, s3_bucket),
        ("weed", "s3", seaweedfs, s3_bucket),
        ("google", "gs", fake_gcs, gcs_bucket),
    ]
    tables = "".join(
        f'[[targets]]\nname = "{name}"\nurl = "{scheme}://{bucket(server)}/demo"\nendpoint_url = "{server.url}"\n'
        for name, scheme, server, bucket in servers
    )
    (tmp_path / "store.toml").write_text(f'run = "trial"\n[code]\ndata = 2\nparity = 1\n{tables}')
    told = demonstrated(capsys, "--dir", str(tmp_path), "--store", str(tmp_path / "store.toml"))
    assert told["lost_domain"] == "weed"

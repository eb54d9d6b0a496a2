"""What the examination of targets finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import objckpt
from objckpt.commit.ownership import begin
from objckpt.commit.quorum import ControlPlane
from objckpt.errors import PermissionDeniedError
from objckpt.maintain.doctor import DoctorReport, examine
from objckpt.store.memory import FaultPoint, MemoryStore
from tests.places import Place


def examined(place: Place) -> DoctorReport:
    return examine(ControlPlane(place.another()))


def outcomes(report: DoctorReport, target: str) -> dict[str, str]:
    (found,) = [one for one in report.targets if one.target == target]
    return {probe.name: probe.outcome for probe in found.probes}


def test_healthy_targets_pass_every_probe_and_keep_nothing_of_it() -> None:
    place = Place("abc", data=2, parity=1)
    begin(ControlPlane(place.targets), create=True)
    before = {name: space.objects() for name, space in place.spaces.items()}
    report = examined(place)
    assert report.healthy
    assert report.run == "exists"
    assert report.left == 1
    assert {outcome for name in place.spaces for outcome in outcomes(report, name).values()} == {"ok"}
    assert {name: space.objects() for name, space in place.spaces.items()} == before


def test_a_target_that_may_not_be_written_is_named_with_its_reason() -> None:
    place = Place("abc", data=2, parity=1)
    begin(ControlPlane(place.targets), create=True)

    def refuse(point: FaultPoint) -> None:
        if point.operation == "put":
            raise PermissionDeniedError("not allowed to write", target=point.store)

    place.spaces["t1"].faults = refuse
    report = examined(place)
    assert not report.healthy
    assert outcomes(report, "t1") == {"put": "failed"}
    assert outcomes(report, "t0")["put"] == "ok"


def test_a_lost_domain_and_what_is_left_are_told() -> None:
    place = Place("abc", data=2, parity=1)
    begin(ControlPlane(place.targets), create=True)
    place.spaces["t2"].destroy()
    place.spaces["t2"].create()
    report = examined(place)
    assert set(report.lost) == {"domain-c"}
    assert report.left == 0
    assert not report.healthy


def test_a_run_that_cannot_be_read_is_told_and_no_crash() -> None:
    place = Place("abc", data=2, parity=1)
    begin(ControlPlane(place.targets), create=True)
    place.down("t0", "t1")
    report = examined(place)
    assert report.left is None
    assert "are needed" in report.run


@pytest.mark.parametrize(("offset_s", "outcome"), [(0.0, "ok"), (30.0, "ok"), (3600.0, "weak"), (-3600.0, "weak")])
def test_a_clock_that_is_off_is_told(offset_s: float, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S19: before signed requests are refused for it."""
    place = Place("abc", data=2, parity=1)
    begin(ControlPlane(place.targets), create=True)
    monkeypatch.setattr(MemoryStore, "server_time_s", lambda self: place.clock.now_s() + offset_s)
    assert outcomes(examined(place), "t0")["clock"] == outcome


@pytest.mark.parametrize("kind", ["localstack", "seaweedfs", "fake_gcs"])
def test_a_server_is_examined(
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    s3_bucket: Callable[[Any], str],
) -> None:
    server = request.getfixturevalue(kind)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    scheme = "gs" if kind == "fake_gcs" else "s3"
    target = objckpt.TargetConfig(name="t", url=f"{scheme}://{s3_bucket(server)}/x", endpoint_url=server.url)
    config = objckpt.StoreConfig(run="run", targets=(target,), code=objckpt.CodeConfig(data=1, parity=0))
    with objckpt.open(config) as store:
        store.create()
        report = examine(store.plane)
        assert outcomes(report, "t")["put"] == "ok"
        assert outcomes(report, "t")["clock"] == "ok"
        assert outcomes(report, "t")["checksum"] == ("weak" if kind == "fake_gcs" else "ok")
        assert store.targets.stores["t"].server_time_s() is not None

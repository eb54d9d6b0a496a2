"""Control objects: canonical, versioned, and checked before anything is believed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objckpt.coding.checksum import block_checksums, combine_blocks
from objckpt.errors import DataError, FormatError, UnsupportedVersionError
from objckpt.format import keys
from objckpt.format.keys import Epoch, ShardId, VersionName
from objckpt.format.manifest import (
    CatalogVersion,
    CheckpointManifest,
    Chunk,
    Claim,
    CodeRecord,
    Document,
    Entry,
    Fragment,
    ManifestTarget,
    Marker,
    PartRef,
    ShardManifest,
    ShardRef,
    Stripe,
    TargetInForce,
    TargetSet,
    decode,
    encode,
)

EPOCH = Epoch(3, "ab" * 16)
SHARD = str(ShardId(EPOCH, 7, 2, 0))


def marker() -> tuple[Marker, str]:
    made = Marker(run="r", target="t0", domain="a", instance="1" * 32, created_at=1.5, host="h")
    return made, keys.marker_key(made.instance)


def claim() -> tuple[Claim, str]:
    return Claim(run="r", number=3, uuid=EPOCH.uuid, host="h", pid=4, created_at=1.5), "claims/x"


def catalog() -> tuple[CatalogVersion, str]:
    targets = tuple(
        TargetInForce(name=f"t{i}", url=f"file:///t{i}", domain=f"d{i}", instance=f"{i}" * 32, control=True)
        for i in range(3)
    )
    entries = tuple(
        Entry(
            checkpoint=keys.checkpoint_id(EPOCH, seq),
            parent=keys.checkpoint_id(EPOCH, seq - 1) if seq > 1 else None,
            step=seq * 100,
            manifest_size=10,
            manifest_sha256="0" * 64,
        )
        for seq in (1, 2)
    )
    made = CatalogVersion(
        run="r", number=3, uuid=EPOCH.uuid, seq=2, sets=(TargetSet(targets=targets),), head=entries[-1].checkpoint,
        entries=entries,
    )  # fmt: skip
    return made, VersionName(EPOCH, 2, "0" * 16).key


def checkpoint() -> tuple[CheckpointManifest, str]:
    made = CheckpointManifest(
        run="r", number=3, uuid=EPOCH.uuid, seq=7, step=100, parent=None,
        code=CodeRecord(data=2, parity=1, algorithm="isa_l_rs_cauchy"), stripe_size=2**17,
        targets=(ManifestTarget(name="t0", domain="a", instance="1" * 32),), length=5, tolerance=1, degraded=False,
        shards=(ShardRef(id=SHARD, name="rank-00002.safetensors", rank=2, length=5, size=100, sha256="0" * 64),),
        front="dcp", metadata=(PartRef(inline={"a": 1}), PartRef(size=3, sha256="0" * 64)), user={"loss": 0.5},
    )  # fmt: skip
    return made, keys.checkpoint_key(made.id)


def shard() -> tuple[ShardManifest, str]:
    body = b"hello"
    blocks = block_checksums(body)
    fragment = Fragment(target="t0", size=5, crc32c=combine_blocks(blocks, 5), blocks=blocks)
    made = ShardManifest(
        run="r", id=SHARD, name="rank-00002.safetensors", kind="safetensors", rank=2, length=5,
        code=CodeRecord(data=2, parity=1, algorithm="isa_l_rs_cauchy"), stripe_size=2**17,
        stripes=(Stripe(length=5, fragments=(fragment, fragment)),),
        index=(Chunk(fqn="w", start=0, stop=4, dtype="F32", offsets=(0,), sizes=(1,)),),
    )  # fmt: skip
    return made, keys.shard_key(SHARD)


ALL = [marker, claim, catalog, checkpoint, shard]


@pytest.mark.parametrize("make", ALL)
def test_what_is_written_is_read_back_and_its_bytes_are_canonical(make: Any) -> None:
    made, key = make()
    body = encode(made)
    assert decode(body, type(made), key=key) == made
    assert encode(decode(body, type(made), key=key)) == body
    assert json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == body


@pytest.mark.parametrize("make", ALL)
def test_a_future_format_and_an_unknown_feature_are_refused_by_name(make: Any) -> None:
    """D26: with what it takes to read them."""
    made, key = make()
    raw = json.loads(encode(made))
    with pytest.raises(UnsupportedVersionError, match="format 2"):
        decode(json.dumps({**raw, "format": 2}).encode(), type(made), key=key)
    with pytest.raises(UnsupportedVersionError, match="time-travel"):
        decode(json.dumps({**raw, "requires": ["time-travel"]}).encode(), type(made), key=key)


@pytest.mark.parametrize("make", ALL)
def test_unknown_fields_are_no_reason_to_refuse(make: Any) -> None:
    made, key = make()
    raw = json.loads(encode(made))
    decode(json.dumps({**raw, "later": {"a": [1]}}).encode(), type(made), key=key)


def test_unknown_fields_of_a_catalog_survive_the_next_version() -> None:
    made, key = catalog()
    raw = json.loads(encode(made))
    raw["mood"] = "good"
    raw["entries"][0]["signature"] = "xyz"
    raw["sets"][0]["targets"][1]["weight"] = 3
    raw["sets"][0]["note"] = [1]
    body = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    read = decode(body, CatalogVersion, key=key)
    assert json.loads(encode(msgspec.structs.replace(read, seq=2))) == raw


@pytest.mark.parametrize("make", ALL)
def test_a_truncated_object_is_a_format_error(make: Any) -> None:
    made, key = make()
    body = encode(made)
    for cut in range(0, len(body), 7):
        with pytest.raises(FormatError):
            decode(body[:cut], type(made), key=key)


def altered(make: Any, change: Any) -> None:
    made, key = make()
    raw = json.loads(encode(made))
    change(raw)
    decode(json.dumps(raw).encode(), type(made), key=key)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(length=2**62),
        lambda raw: raw.update(length=-1),
        lambda raw: raw.update(stripe_size=0),
        lambda raw: raw.update(stripe_size=2**40),
        lambda raw: raw["stripes"][0].update(length=2**40),
        lambda raw: raw["stripes"][0]["fragments"].pop(),
        lambda raw: raw["stripes"][0]["fragments"][0].update(size=2**40),
        lambda raw: raw["stripes"][0]["fragments"][0].update(blocks=""),
        lambda raw: raw["stripes"][0]["fragments"][0].update(crc32c=2**32),
        lambda raw: raw["stripes"][0].update(shard="../../x", number=0),
        lambda raw: raw["stripes"][0].update(number=0),
        lambda raw: raw.update(code={"data": 0, "parity": 0, "algorithm": "none"}),
        lambda raw: raw.update(code={"data": 2, "parity": 300, "algorithm": "isa_l_rs_cauchy"}),
        lambda raw: raw.update(id="../../../etc/passwd"),
        lambda raw: raw.update(rank=3),
        lambda raw: raw.update(checksum="md5"),
        lambda raw: raw["index"][0].update(stop=6),
        lambda raw: raw["index"][0].update(start=5),
        lambda raw: raw["index"][0].update(sizes=[1, 2]),
        lambda raw: raw["index"][0].update(sizes=[-1]),
    ],
)
def test_a_hostile_shard_manifest_is_refused(change: Any) -> None:
    with pytest.raises(DataError):
        altered(shard, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["shards"].append(raw["shards"][0]),
        lambda raw: raw["shards"][0].update(name="../up"),
        lambda raw: raw["shards"][0].update(name=".."),
        lambda raw: raw["shards"][0].update(id="x"),
        lambda raw: raw["shards"][0].update(size=2**60),
        lambda raw: raw["shards"][0].update(length=2**60),
        lambda raw: raw["shards"][0].update(length=-5),
        lambda raw: raw.update(seq=8),
        lambda raw: raw["metadata"][1].update(size=2**60),
        lambda raw: raw["metadata"][1].pop("sha256"),
    ],
)
def test_a_hostile_checkpoint_manifest_is_refused(change: Any) -> None:
    with pytest.raises(FormatError):
        altered(checkpoint, change)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(sets=[]),
        lambda raw: raw.update(sets=raw["sets"] * 3),
        lambda raw: raw.update(sets=5),
        lambda raw: raw["sets"][0].update(targets=[]),
        lambda raw: raw["sets"][0]["targets"][1].update(name="t0"),
        lambda raw: raw["sets"][0]["targets"][1].update(domain="d0"),
        lambda raw: raw["sets"][0]["targets"][1].update(control=False),
        lambda raw: raw["entries"].append(raw["entries"][0]),
        lambda raw: raw.update(head="nobody"),
        lambda raw: raw.update(seq=3),
        lambda raw: raw["entries"][0].update(checkpoint="../x"),
        lambda raw: raw["entries"][0].update(state="zombie"),
        lambda raw: raw["entries"][0].update(manifest_size=2**60),
        lambda raw: raw.pop("entries"),
    ],
)
def test_a_hostile_catalog_is_refused(change: Any) -> None:
    with pytest.raises(FormatError):
        altered(catalog, change)


def test_deep_nesting_is_a_format_error_and_no_crash() -> None:
    with pytest.raises(FormatError):
        decode(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Document, key="k")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from(ALL), st.data())
def test_any_damage_ends_in_a_data_error_or_in_a_valid_object(make: Any, data: st.DataObject) -> None:
    made, key = make()
    body = bytearray(encode(made))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    else:
        raw = json.loads(body)
        raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(json_like)
        body = bytearray(json.dumps(raw).encode())
    with suppress(DataError):
        decode(bytes(body), type(made), key=key)

"""The key grammar, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from objckpt.errors import FormatError
from objckpt.format import keys
from objckpt.format.keys import ClaimName, Epoch, ShardId, VersionName
from objckpt.store.port import check_key

epochs = st.builds(Epoch, st.integers(1, 10**10 - 1), st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}"))
digests = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")


@given(epochs, st.integers(0, 10**8 - 1), digests)
def test_versions_and_claims_are_read_back_as_written(epoch: Epoch, seq: int, digest: str) -> None:
    version, claim = VersionName(epoch, seq, digest), ClaimName(epoch, digest)
    assert keys.parse_version_key(check_key(version.key)) == version
    assert keys.parse_claim_key(check_key(claim.key)) == claim
    assert keys.parse_checkpoint_id(keys.checkpoint_id(epoch, seq)) == (epoch, seq)


@given(st.lists(st.tuples(epochs, st.integers(0, 10**8 - 1), digests), min_size=2))
def test_keys_sort_as_versions_do(names: list[tuple[Epoch, int, str]]) -> None:
    """P07: fixed width, so that text and numbers agree."""
    versions = [VersionName(*name) for name in names]
    assert [v.key for v in sorted(versions)] == sorted(v.key for v in versions)


@given(epochs, st.integers(0, 10**8 - 1), st.integers(0, 10**6), st.integers(0, 10**6 - 1))
def test_shard_ids_are_read_back_as_written(epoch: Epoch, seq: int, rank: int, counter: int) -> None:
    shard = ShardId(epoch, seq, rank, counter)
    assert keys.parse_shard_id(str(shard)) == shard
    check_key(keys.shard_key(str(shard)))
    check_key(keys.fragment_key(str(shard), 999999, 254))


def test_shards_spread_over_key_partitions() -> None:
    epoch = Epoch(1, "0" * 32)
    spread = {keys.shard_key(str(ShardId(epoch, 1, rank, 0))).split("/")[1] for rank in range(2000)}
    assert len(spread) == 256


@pytest.mark.parametrize(
    "key",
    [
        "catalog/../../etc/passwd",
        "catalog/0000000001-" + "0" * 32 + "/00000000-" + "0" * 15,
        "catalog/0000000000-" + "0" * 32 + "/00000000-" + "0" * 16,
        "catalog/0000000001-" + "G" * 32 + "/00000000-" + "0" * 16,
        "catalog/0000000001-" + "0" * 32 + "/00000000-" + "0" * 16 + "\n",
        "",
    ],
)
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(FormatError):
        keys.parse_version_key(key)

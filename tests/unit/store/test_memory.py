"""The memory store's own promises: shared spaces and faults. The port's are in the contract suite."""

from __future__ import annotations

import pytest

from objckpt.errors import BucketNotFoundError, CorruptUploadError, ObjectNotFoundError, UnavailableError
from objckpt.store.memory import FaultPoint, MemorySpace, MemoryStore
from objckpt.store.port import PutMode


def test_stores_on_one_space_see_the_same_objects_under_their_own_prefixes() -> None:
    space = MemorySpace()
    one, two = MemoryStore("one", space=space, prefix="p/run/"), MemoryStore("two", space=space, prefix="p/run/")
    other_run = MemoryStore("one", space=space, prefix="p/other/")
    one.put("a", b"body")
    assert two.get("a") == b"body"
    assert list(other_run.list("")) == []
    assert space.objects() == {"p/run/a": b"body"}


def test_a_fault_before_the_effect_leaves_nothing_done() -> None:
    def fail(point: FaultPoint) -> None:
        if point == FaultPoint(store="t", operation="put", key="a", moment="before"):
            raise UnavailableError("no")

    store = MemoryStore("t", space=MemorySpace(), faults=fail)
    with pytest.raises(UnavailableError):
        store.put("a", b"body")
    with pytest.raises(ObjectNotFoundError):
        store.get("a")


def test_a_fault_after_the_effect_is_a_lost_answer() -> None:
    def fail(point: FaultPoint) -> None:
        if point.operation in ("put", "delete") and point.moment == "after":
            raise UnavailableError("lost")

    space = MemorySpace(faults=fail)
    store = MemoryStore("t", space=space)
    with pytest.raises(UnavailableError):
        store.put("a", b"body", mode=PutMode.CREATE)
    assert store.get("a") == b"body"
    with pytest.raises(UnavailableError):
        store.delete("a")
    assert space.objects() == {}


def test_every_operation_passes_both_fault_points_in_order() -> None:
    seen: list[tuple[str, str, str]] = []
    store = MemoryStore(
        "t", space=MemorySpace(), faults=lambda point: seen.append((point.operation, point.key, point.moment))
    )
    store.put("a", b"1")
    store.get("a")
    store.get_into("a", 0, [memoryview(bytearray(1))])
    store.head("a")
    list(store.list("p/"))
    store.delete("a")
    operations = [("put", "a"), ("get", "a"), ("get", "a"), ("head", "a"), ("list", "p/"), ("delete", "a")]
    assert seen == [(name, key, moment) for name, key in operations for moment in ("before", "after")]


def test_a_destroyed_space_is_lost_and_not_empty() -> None:
    space = MemorySpace()
    store = MemoryStore("t", space=space)
    store.put("a", b"1")
    space.destroy()
    with pytest.raises(BucketNotFoundError):
        store.get("a")
    with pytest.raises(BucketNotFoundError):
        list(store.list(""))
    space.create()
    assert list(store.list("")) == []


def test_damage_is_done_behind_the_stores_back() -> None:
    space = MemorySpace()
    store = MemoryStore("t", space=space)
    store.put("a", b"good")
    space.set_unchecked("a", b"evil")
    assert store.get("a") == b"evil"
    space.set_unchecked("a", None)
    with pytest.raises(ObjectNotFoundError):
        store.head("a")


def test_a_body_is_copied_and_never_kept() -> None:
    store = MemoryStore("t", space=MemorySpace())
    body = bytearray(b"before")
    store.put("a", body)
    body[:] = b"after!"
    assert store.get("a") == b"before"


def test_a_wrong_checksum_is_refused_and_nothing_is_stored() -> None:
    space = MemorySpace()
    with pytest.raises(CorruptUploadError):
        MemoryStore("t", space=space).put("a", b"1", crc32c=0)
    assert space.objects() == {}

"""The local store's own promises: directories, durability, links. The port's are in the contract suite."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from objckpt.errors import (
    BucketNotFoundError,
    CapabilityError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreFullError,
    UnavailableError,
)
from objckpt.seams import Seams
from objckpt.store.local import LocalStore
from objckpt.store.port import PutMode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore("t", root=str(root), seams=Seams())


def keys_of(store: LocalStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


def test_an_object_is_a_file_with_the_keys_path(store: LocalStore, root: Path) -> None:
    store.put("data/ab/shard/000001.000", b"fragment")
    assert (root / "data/ab/shard/000001.000").read_bytes() == b"fragment"


def test_a_put_never_makes_the_root(tmp_path: Path) -> None:
    gone = tmp_path / "unmounted" / "run"
    store = LocalStore("t", root=str(gone), seams=Seams())
    for mode in PutMode:
        with pytest.raises(BucketNotFoundError, match="replace the target"):
            store.put("markers/1", b"x", mode=mode)
    assert not gone.parent.exists()


def test_a_root_that_vanishes_is_lost_and_not_empty(store: LocalStore, root: Path) -> None:
    store.put("a", b"1")
    root.rename(root.with_name("elsewhere"))
    for ask in (
        lambda: store.put("b", b""),
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: store.delete("a"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(BucketNotFoundError):
            ask()
    assert not root.exists()


def test_prepare_makes_the_root_and_all_above_it_and_may_be_repeated(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "run"
    for _ in range(2):
        LocalStore.prepare(str(root))
    LocalStore("t", root=str(root), seams=Seams()).put("x", b"1")
    assert (root / "x").read_bytes() == b"1"


def test_prepare_over_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInputError):
        LocalStore.prepare(str(tmp_path / "file" / "run"))


def test_leftovers_of_killed_writers_never_show(store: LocalStore, root: Path) -> None:
    store.put("a", b"1")
    (incoming,) = (path for path in root.iterdir() if path.is_dir())
    (incoming / "123-abandoned").write_bytes(b"half")
    assert keys_of(store) == ["a"]


def test_leftovers_older_than_a_day_are_removed_and_younger_ones_kept(root: Path) -> None:
    first = LocalStore("t", root=str(root), seams=Seams())
    first.put("a", b"1")
    (incoming,) = (path for path in root.iterdir() if path.is_dir())
    old, young = incoming / "1-old", incoming / "2-young"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (1, 1))
    LocalStore("t", root=str(root), seams=Seams()).put("b", b"1")
    assert not old.exists()
    assert young.exists()


def test_no_temporary_file_is_left_by_success_or_refusal(store: LocalStore, root: Path) -> None:
    store.put("a", b"1", mode=PutMode.CREATE)
    with pytest.raises(ObjectExistsError):
        store.put("a", b"2", mode=PutMode.CREATE)
    (incoming,) = (path for path in root.iterdir() if path.is_dir())
    assert list(incoming.iterdir()) == []


def test_a_reader_sees_the_whole_object_or_none(store: LocalStore) -> None:
    bodies = {bytes([number]) * 300_000 for number in range(4)}
    stop = threading.Event()

    def write(body: bytes) -> None:
        while not stop.is_set():
            store.put("busy", body)

    store.put("busy", next(iter(bodies)))
    with ThreadPoolExecutor(len(bodies)) as pool:
        writers = [pool.submit(write, body) for body in bodies]
        try:
            for _ in range(50):
                assert store.get("busy") in bodies
        finally:
            stop.set()
        for writer in writers:
            writer.result()


def test_a_fragment_is_flushed_before_its_name_and_the_name_before_the_answer(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        steps.append("flush " + os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(root)))
        real_fsync(descriptor)

    def link(source: str, target: str) -> None:
        steps.append("name " + target.removeprefix(str(root)))
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    store.put("data/ab/1", b"fragment", mode=PutMode.CREATE)
    assert steps[0].startswith("flush /~incoming/")
    assert steps[1:] == ["name /data/ab/1", "flush /data/ab", "flush /data", "flush "]


def test_deleting_the_last_object_prunes_empty_directories_up_to_the_root(store: LocalStore, root: Path) -> None:
    store.put("data/ab/x/1", b"1")
    store.put("data/cd/x/1", b"1")
    store.delete("data/ab/x/1")
    assert not (root / "data/ab").exists()
    assert (root / "data/cd/x/1").exists()
    store.delete("data/cd/x/1")
    assert not (root / "data").exists()
    assert root.exists()


def test_puts_and_deletes_in_one_directory_never_disturb_each_other(store: LocalStore) -> None:
    """A delete prunes the directory that a put has just made, again and again."""

    def churn(number: int) -> None:
        for _ in range(60):
            store.put(f"data/ab/{number}", b"x", mode=PutMode.CREATE)
            store.delete(f"data/ab/{number}")

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(churn, number) for number in range(6)]:
            done.result()
    assert keys_of(store) == []


def test_a_listing_survives_deletions_beside_it(store: LocalStore) -> None:
    for number in range(20):
        store.put(f"data/{number:02d}/x", b"1")
    listing = store.list("data/")
    assert next(listing).key == "data/00/x"
    for number in range(1, 20, 2):
        store.delete(f"data/{number:02d}/x")
    kept = [f"data/{number:02d}/x" for number in range(2, 20, 2)]
    assert [key for key in (info.key for info in listing) if key in kept] == kept


def test_a_listing_is_in_the_order_of_the_keys(store: LocalStore) -> None:
    keys = ["a-b/1", "a.b/1", "a/1", "a/b-c", "a/b/1", "a0", "b"]
    for key in reversed(keys):
        store.put(key, b"")
    assert keys_of(store) == sorted(keys) == keys
    for number, key in enumerate(keys):
        assert [info.key for info in store.list("", after=key)] == keys[number + 1 :]


def test_a_listing_reads_only_the_directories_it_needs(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("data/ab/1", "data/cd/1", "shards/ab/1", "top"):
        store.put(key, b"")
    read: list[str] = []
    real_scandir = os.scandir

    def scandir(path: str):
        read.append(os.path.relpath(path, root))
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert keys_of(store, "data/ab/") == ["data/ab/1"]
    assert read == ["data/ab"]
    read.clear()
    assert [info.key for info in store.list("", after="data/~")] == ["shards/ab/1", "top"]
    assert read == [".", "data", "shards", "shards/ab"]
    read.clear()
    assert next(store.list("")).key == "data/ab/1"
    assert read == [".", "data", "data/ab"]


def test_the_root_may_be_a_symbolic_link(store: LocalStore, root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    linked = LocalStore("t", root=str(link), seams=Seams())
    linked.put("a/b", b"1")
    assert store.get("a/b") == linked.get("a/b") == b"1"
    assert keys_of(linked) == ["a/b"]


def test_no_symbolic_link_below_the_root_is_followed(store: LocalStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "data").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for ask in (
        lambda: store.put("data/x", b"1"),
        lambda: store.get("data/secret"),
        lambda: store.delete("data/secret"),
        lambda: store.get("file"),
        lambda: store.head("file"),
    ):
        with pytest.raises(PermissionDeniedError, match="link"):
            ask()
    assert keys_of(store) == []
    assert keys_of(store, "data/") == []
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_prefix_with_dots_leads_nowhere(store: LocalStore, root: Path) -> None:
    (root.parent / "neighbour").write_bytes(b"")
    assert keys_of(store, "../") == []
    assert keys_of(store, "./") == []


def test_keys_that_cannot_be_files_are_refused_clearly(store: LocalStore) -> None:
    store.put("a", b"1")
    for key in ("a/b", "x" * 256, "d/" + "y" * 300 + "/z"):
        with pytest.raises(InvalidInputError, match="255 bytes"):
            store.put(key, b"1")
    store.put("d/e", b"1")
    with pytest.raises(InvalidInputError):
        store.put("d", b"1")
    with pytest.raises(ObjectNotFoundError):
        store.get("d")
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EFBIG, StoreFullError),
        (errno.EACCES, PermissionDeniedError),
        (errno.EROFS, PermissionDeniedError),
        (errno.EIO, UnavailableError),
        (errno.ESTALE, UnavailableError),
        (errno.ETIMEDOUT, UnavailableError),
    ],
)
def test_errors_of_the_file_system_are_named_by_what_to_do(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(descriptor: int, data: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(kind) as caught:
        store.put("data/1", b"fragment")
    assert type(caught.value) is kind
    monkeypatch.undo()
    assert keys_of(store) == []
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_file_system_without_hard_links_cannot_create_if_absent(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CapabilityError, match="hard links"):
        store.put("claims/1", b"x", mode=PutMode.CREATE)
    store.put("data/1", b"x")


def test_a_link_whose_answer_the_network_lost_is_recognised_as_made(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a request whose answer was lost, and then hears that the name exists."""
    real_link = os.link

    def link(source: str, target: str) -> None:
        real_link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link)
    store.put("claims/1", b"mine", mode=PutMode.CREATE)
    assert store.get("claims/1") == b"mine"


def test_a_file_that_shrinks_under_a_reader_is_not_short_bytes(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"0123456789")
    monkeypatch.setattr(os, "preadv", lambda descriptor, views, offset: 0)
    with pytest.raises(UnavailableError):
        store.get("a")

"""The artifact store: in a folder, and in a bucket by obstore."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

from tests.rig import until
from turnkeeper import artifacts, blocks
from turnkeeper.artifacts import ArtifactStore, FolderStore, Holding, ObjectStore
from turnkeeper.errors import NothingStored, StateLost

LARGE = b"x" * 1_000_000
HERE, ELSEWHERE = "default.1", "default.2"
LATER = time.time() + 3_600

Place = Callable[..., ArtifactStore]


@pytest.fixture(params=["folder", "bucket", "local bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Opens stores of one kind, all of them in the same place."""
    memory = MemoryStore()

    def opened(namespace: str | None = None) -> ArtifactStore:
        if request.param == "folder":
            return FolderStore(tmp_path / "store", namespace=namespace)
        local = request.param == "local bucket"
        bucket = LocalStore(str(tmp_path / "store"), mkdir=True) if local else memory
        return ObjectStore(bucket, namespace=namespace)

    return opened


async def overwrite(store: ArtifactStore, owner: str, artifact: str, data: bytes | None) -> None:
    """As a disk or a person might; None removes it."""
    key = artifacts._key(owner, artifact)
    if isinstance(store, FolderStore):
        if data is None:
            (store.root / key).unlink()
        else:
            about = (store.root / key).stat()
            (store.root / key).write_bytes(data)
            os.utime(store.root / key, ns=(about.st_atime_ns, about.st_mtime_ns))
        return
    assert isinstance(store, ObjectStore)
    if data is None:
        await obstore.delete_async(store._store, key)
    else:
        await obstore.put_async(store._store, key, data)


async def held(store: ArtifactStore) -> dict[str | None, Holding]:
    """By workflow id."""
    return {h.owner: h async for h in store.holdings()}


# --- the whole and its parts ----------------------------------------------------------------------


async def test_large_content_is_stored_found_and_checked(place: Place) -> None:
    """Hashed beside the loop, with the same id and the same refusal of changed content."""
    store = place()
    artifact = await store.put("run", LARGE)
    assert await store.get("run", artifact) == LARGE
    await overwrite(store, "run", artifact, LARGE[1:])
    with pytest.raises(StateLost, match="is not what was stored"):
        await store.get("run", artifact)


@pytest.mark.parametrize("size", [0, 1, blocks.BLOCK_BYTES, 3 * blocks.BLOCK_BYTES + 5])
async def test_a_part_is_what_the_whole_has_there(place: Place, size: int) -> None:
    """Wherever it begins and ends, also across blocks and behind the end."""
    chosen = random.Random(size)
    data = chosen.randbytes(size)
    store = place()
    artifact = await store.put("run", data)
    for _ in range(40):
        offset, length = chosen.randint(0, size + 3), chosen.randint(1, size + 3)
        part = await store.read("run", artifact, offset, length)
        assert (part.data, part.size) == (data[offset : offset + length], size)


async def test_later_parts_cost_their_own_blocks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole is read once for each store that is opened."""
    whole: list[int] = []
    read: list[int] = []
    feed, holds = blocks.Prover.feed, blocks.Proof.holds

    def fed(self: blocks.Prover, piece: bytes) -> None:
        whole.append(len(piece))
        feed(self, piece)

    def held_by(self: blocks.Proof, start: int, data: bytes) -> bool:
        read.append(len(data))
        return holds(self, start, data)

    monkeypatch.setattr(blocks.Prover, "feed", fed)
    monkeypatch.setattr(blocks.Proof, "holds", held_by)
    store = place()
    artifact = await store.put("run", LARGE)
    for offset in (0, 500_000, 999_990):
        await store.read("run", artifact, offset, 10)
    assert sum(whole) == len(LARGE)
    assert max(read) <= blocks.BLOCK_BYTES


@pytest.mark.parametrize("known", [False, True])
async def test_a_flipped_bit_is_noticed_wherever_it_is_read(place: Place, known: bool) -> None:
    """Also in an object that was whole when it was first read, and whose times and size still are:
    the block that has it is refused, the others are what they were."""
    store = place()
    data = random.Random(1).randbytes(3 * blocks.BLOCK_BYTES)
    artifact = await store.put("run", data)
    if known:
        await store.read("run", artifact, 0, 1)
    flipped = bytearray(data)
    flipped[blocks.BLOCK_BYTES] ^= 1
    await overwrite(store, "run", artifact, bytes(flipped))
    with pytest.raises(StateLost, match="is not what was stored"):
        await store.read("run", artifact, blocks.BLOCK_BYTES - 1, 2)
    if known:
        assert (await store.read("run", artifact, 5, 5)).data == data[5:10]


@pytest.mark.parametrize("known", [False, True])
async def test_an_object_that_was_cut_is_lost(place: Place, known: bool) -> None:
    """Its end is missing, whatever was known of it."""
    store = place()
    artifact = await store.put("run", LARGE)
    if known:
        await store.read("run", artifact, 0, 1)
    await overwrite(store, "run", artifact, LARGE[:600_000])
    with pytest.raises(StateLost, match="is not what was stored"):
        await store.read("run", artifact, 900_000, 10)


async def test_what_is_missing_is_lost_unless_all_of_the_run_is(place: Place) -> None:
    """A folder that is not mounted, or a wrong bucket, may come back; one object does not."""
    store = place()
    one, _ = await store.put("run", b"one"), await store.put("run", b"two")
    await overwrite(store, "run", one, None)
    with pytest.raises(StateLost, match="is not in"):
        await store.get("run", one)
    with pytest.raises(StateLost, match="is not in"):
        await store.read("run", one, 0, 1)
    with pytest.raises(OSError, match="has nothing of this run"):
        await store.get("another run", one)


async def test_a_store_of_other_runs_is_told_from_one_that_is_away(place: Place) -> None:
    """What has nothing of any run may be a folder that is not mounted, or a wrong bucket; but not
    one that holds other runs' objects."""
    store = place()
    for _ in range(2):
        for reading in (store.get("run", "0" * 64), store.read("run", "0" * 64, 0, 1)):
            with pytest.raises(OSError, match="has nothing of this run") as told:
                await reading
            assert not isinstance(told.value, NothingStored)
        if isinstance(store, FolderStore):
            store.root.mkdir(exist_ok=True)
    await store.put("another run", b"one")
    for reading in (store.get("run", "0" * 64), store.read("run", "0" * 64, 0, 1)):
        with pytest.raises(NothingStored):
            await reading


@pytest.mark.parametrize("action", ["put", "get", "read"])
async def test_a_folder_that_hangs_holds_no_thread_of_the_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Names are resolved in those, also for runs that use no store."""
    opened = threading.Event()
    waiting = threading.Semaphore(0)

    def hung(*_: Any) -> Any:
        waiting.release()
        opened.wait(30)
        raise OSError("it hung")

    monkeypatch.setattr(artifacts, "_is_there", hung)
    monkeypatch.setattr(Path, "open", hung)
    monkeypatch.setattr(Path, "read_bytes", hung)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    store = FolderStore(tmp_path)
    (tmp_path / artifacts._owner_key("run")).mkdir()
    for mark in artifacts._marks("run", None):
        (tmp_path / artifacts._owner_key("run") / mark).touch()
    arguments: dict[str, Any] = {"put": (b"a",), "get": ("0" * 64,), "read": ("0" * 64, 0, 1)}
    work = [
        asyncio.ensure_future(getattr(store, action)("run", *arguments[action])) for _ in range(4)
    ]
    try:
        async with asyncio.timeout(60):
            await until(lambda: waiting.acquire(blocking=False))
            assert await asyncio.to_thread(lambda: "free") == "free"
    finally:
        opened.set()
        assert all(
            isinstance(r, OSError) for r in await asyncio.gather(*work, return_exceptions=True)
        )


async def test_storing_again_mends(place: Place) -> None:
    """Content that was damaged is whole once the same content is stored again."""
    store = place()
    artifact = await store.put("run", LARGE)
    await overwrite(store, "run", artifact, b"y" * len(LARGE))
    assert await store.put("run", LARGE) == artifact
    assert await place().get("run", artifact) == LARGE


async def test_the_name_of_a_new_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once per owner, before anything is in it: a loss of power could take the folder otherwise."""
    synced: list[Path] = []
    monkeypatch.setattr(artifacts, "_sync", synced.append)
    store = FolderStore(tmp_path)
    await store.put("run", b"one")
    await store.put("run", b"two")
    assert synced[0] == tmp_path
    assert synced.count(tmp_path) == 1
    assert len({os.fspath(p) for p in synced}) == 2


# --- whose it is, and its end ---------------------------------------------------------------------


async def test_what_a_store_holds_is_told_by_owner(place: Place) -> None:
    """Workflow id, who stored it, number and size of the objects, and since when."""
    began = time.time()
    await place(HERE).put("run/1 'ä'", b"abc")
    await place(ELSEWHERE).put("run/1 'ä'", b"abcd")
    await place().put("old", b"a")
    found = await held(place())
    assert found.keys() == {"run/1 'ä'", "old"}
    one = found["run/1 'ä'"]
    assert (one.objects, one.bytes) == (2, 7)
    assert one.namespaces == {HERE, ELSEWHERE}
    assert found["old"].namespaces == frozenset()
    assert began - 2 < one.newest < time.time() + 2


async def test_an_owners_objects_are_removed_and_no_others(place: Place) -> None:
    """With what stands beside them; the store is as if the run had never been."""
    store = place(HERE)
    kept = await store.put("kept", b"a")
    await store.put("gone", b"b")
    key = (await held(store))["gone"].key
    removed = await store.remove(key, before=LATER)
    assert removed is not None
    assert (removed.owner, removed.objects) == ("gone", 1)
    assert (await held(store)).keys() == {"kept"}
    assert await store.get("kept", kept) == b"a"
    assert await store.remove(key, before=LATER) is None


async def test_what_was_stored_lately_is_not_removed(place: Place) -> None:
    """Nor is what was stored before, and again lately."""
    store = place(HERE)
    artifact = await store.put("run", b"a")
    key = (await held(store))["run"].key
    if isinstance(store, FolderStore):
        for path in (store.root / key).iterdir():
            os.utime(path, (1, 1))
    await store.put("run", b"a")
    here = (store.root / key).stat().st_ino if isinstance(store, FolderStore) else 0
    assert await store.remove(key, before=time.time() - 60) is None
    assert await store.get("run", artifact) == b"a"
    if isinstance(store, FolderStore):
        # Nor was it taken away for a moment, in which nobody could have read it.
        assert (store.root / key).stat().st_ino == here


async def test_what_is_no_owner_of_ours_has_no_name(tmp_path: Path) -> None:
    """A folder whose workflow id is missing or not the one that its name is made of."""
    store = FolderStore(tmp_path)
    await store.put("one", b"a")
    await store.put("two", b"b")
    found = await held(store)
    (tmp_path / found["one"].key / "owner").unlink()
    (tmp_path / found["two"].key / "owner").write_text("three")
    (tmp_path / "lost+found").mkdir()
    assert [h.owner async for h in store.holdings()] == [None, None]


async def test_storing_while_a_collection_is_at_work_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes just before the folder is taken away or just after: content that is there
    again and content that is new."""
    seen = FolderStore._held
    for moment in (1, 2):
        store = FolderStore(tmp_path / str(moment), namespace=HERE)
        old = await store.put("run", b"old")
        key = (await held(store))["run"].key
        for path in (store.root / key).iterdir():
            os.utime(path, (1, 1))
        looks: list[int] = []

        def looked(self: FolderStore, *args: Any, at: int = moment, all_looks: Any = looks) -> Any:
            found = seen(self, *args)
            all_looks.append(1)
            if len(all_looks) == at:
                for data in (b"old", b"new"):
                    self._write("run", sha256(data).hexdigest(), data)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(FolderStore, "_held", looked)
            await store.remove(key, before=1_000)
        assert await store.get("run", old) == b"old"
        found = (await held(store))["run"]
        assert found.objects == 2
        assert found.namespaces == {HERE}
        assert not list(store.root.glob(".gone*"))


@pytest.mark.parametrize("taken", [1, 2])
async def test_who_stores_while_the_folder_goes_stores_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Whether it goes before the mark is written or before the object is: both are there."""
    publish = artifacts._publish
    calls: list[Path] = []

    def published(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) == taken:
            path.parent.rename(tmp_path / f".gone.{path.parent.name}.{'0' * 32}")
        publish(path, data)

    monkeypatch.setattr(artifacts, "_publish", published)
    store = FolderStore(tmp_path)
    artifact = await store.put("run", b"a")
    assert await store.get("run", artifact) == b"a"
    assert (await held(store))["run"].owner == "run"
    assert len(calls) > 2


async def test_a_collection_that_died_is_finished_by_the_next(tmp_path: Path) -> None:
    """What it took away and did not remove is still told, and removed."""
    store = FolderStore(tmp_path, namespace=HERE)
    await store.put("run", b"a")
    key = (await held(store))["run"].key
    (tmp_path / key).rename(tmp_path / f".gone.{key}.{'0' * 32}")
    assert (await held(store))["run"].objects == 1
    assert await store.remove(key, before=LATER) is not None
    assert list(store.root.iterdir()) == []


async def test_storing_outlasts_several_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of which takes the folder away just before something is written; but not any number."""
    publish = artifacts._publish
    left = 0

    def published(path: Path, data: bytes) -> None:
        nonlocal left
        if left:
            left -= 1
            path.parent.rename(tmp_path / f".gone.{path.parent.name}.{left:032}")
        publish(path, data)

    monkeypatch.setattr(artifacts, "_publish", published)
    monkeypatch.setattr(artifacts, "_PAUSE_SECONDS", 0)
    store = FolderStore(tmp_path)
    left = 5
    assert await store.get("run", await store.put("run", b"a")) == b"a"
    left = 1_000
    with pytest.raises(OSError, match="No such file"):
        await store.put("run", b"b")
    assert left > 900


@pytest.mark.parametrize("moment", [1, 2])
async def test_two_collections_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Whether the other one takes a folder before this one does or from its hands: it is gone."""
    store, other = FolderStore(tmp_path), FolderStore(tmp_path)
    await store.put("run", b"a")
    key = (await held(store))["run"].key
    held_by, looks = FolderStore._held, 0

    def looked(self: FolderStore, *args: Any) -> Any:
        nonlocal looks
        found = held_by(self, *args)
        looks += self is store
        if looks == moment and self is store:
            assert other._remove(key, LATER) is not None
        return found

    monkeypatch.setattr(FolderStore, "_held", looked)
    assert await store.remove(key, before=LATER) is None
    assert list(store.root.iterdir()) == []


async def test_what_a_collection_died_putting_back_is_put_back_by_the_next(tmp_path: Path) -> None:
    """Beside what was stored anew, which stays as new as it is."""
    store = FolderStore(tmp_path, namespace=HERE)
    first, second = await store.put("run", b"first"), await store.put("run", b"second")
    own = tmp_path / (await held(store))["run"].key
    gone = own.rename(tmp_path / f".gone.{own.name}.{'0' * 32}")
    os.utime(gone / first, (1, 1))
    assert await store.put("run", b"first") == first
    assert await FolderStore(tmp_path).remove(own.name, before=1_000) is None
    assert await store.get("run", second) == b"second"
    assert (own / first).stat().st_mtime > 1_000
    assert list(store.root.iterdir()) == [own]


async def test_what_is_removed_while_holdings_are_told_is_left_out(tmp_path: Path) -> None:
    """By another collection: it is no failure of this one."""
    store = FolderStore(tmp_path)
    for number in range(3):
        await store.put(f"run-{number}", b"a")
    found = store.holdings()
    first = await anext(found)
    for path in sorted(store.root.iterdir()):
        if path.name != first.key:
            await FolderStore(tmp_path).remove(path.name, before=LATER)
    assert [holding async for holding in found] == []


async def test_a_collection_lists_a_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each owner that it removes: of many thousands that would take hours."""
    store = FolderStore(tmp_path, namespace=HERE)
    for number in range(20):
        await store.put(f"run-{number}", b"a")
    listed, iterdir = list[Path](), Path.iterdir

    def counted(self: Path) -> Any:
        if self == tmp_path:
            listed.append(self)
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", counted)
    for key in [h.key async for h in store.holdings()]:
        assert await store.remove(key, before=LATER) is not None
    assert len(listed) == 1
    assert list(iterdir(tmp_path)) == []


async def test_only_what_belongs_to_an_owner_is_removed(tmp_path: Path) -> None:
    """A key is no path: what is none of ours, or lies elsewhere, stays."""
    (tmp_path / "store" / "lost+found").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    store = FolderStore(tmp_path / "store")
    for key in ("lost+found", "../other", "", ".", "0" * 32):
        assert await store.remove(key, before=LATER) is None
    assert (tmp_path / "store" / "lost+found").is_dir()
    assert (tmp_path / "other").is_dir()


async def test_hosts_that_use_a_folder_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, whatever it is made of, the last ones; they are no owners."""
    monkeypatch.setattr(artifacts, "_HOSTS", 2)
    store = FolderStore(tmp_path / "store")
    assert await store.meet("a/..") == {"a/.."}
    os.utime(next((tmp_path / "store/.hosts").iterdir()), (1, 1))
    assert await store.meet("b") == {"a/..", "b"}
    await store.meet("c")
    assert await store.meet("c") == {"b", "c"}
    assert await held(store) == {}

"""Large things out of band: one small port, a local folder by default, object stores by URL.

Artifacts are addressed by their content's SHA-256 and belong to one workflow id, so that storing
twice is harmless, a changed object is noticed, and a run cannot read another run's.

Beside the objects of an owner stands whose they are: its workflow id, and the namespaces that
stored them, since several may share a store. What can be removed is found by that
(`starter.py artifacts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar
from urllib.parse import quote, unquote

from turnkeeper.blocks import BLOCK_BYTES, MAX_ARTIFACT_BYTES, Part, Proof, Proofs, Prover
from turnkeeper.errors import NothingStored, StateLost

__all__ = [
    "DEFAULT_URL",
    "MAX_ARTIFACT_BYTES",
    "ArtifactStore",
    "FolderStore",
    "Holding",
    "ObjectStore",
    "Part",
    "open_store",
]

DEFAULT_URL = ".turnkeeper/artifacts"
_QUICK_BYTES = 256_000
_ID = re.compile(r"[0-9a-f]{64}")
_OWNER = "owner"
"""The name under which an owner's workflow id stands beside its objects."""
_NAMESPACE = "namespace."
"""What the names of marks begin with that say which namespaces stored them."""
_KEY = re.compile(r"[0-9a-f]{32}")
_GONE = re.compile(r"\.gone\.([0-9a-f]{32})\.[0-9a-f]{32}")
"""What a collection has taken away; it is there for longer only if that died."""
_HOSTS = 200
"""Hosts that a folder remembers."""
_FIRST_NAMES = 1_000
"""Of a bucket, to tell whether it is an artifact store's: one request."""
_WRITES = 10
"""Attempts to write in a folder that collections take away."""
_PAUSE_SECONDS = 0.005
_TAKEN = (FileNotFoundError, FileExistsError)
"""What writing meets where a folder vanishes; `mkdir` says that it exists if it vanishes then."""
_FOLDER_THREADS = 8
"""Reads and writes of a folder at once; what is in one of them may have 64 MB in memory."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Holding:
    """What a store has of one owner."""

    key: str
    """By which the store knows the owner."""
    owner: str | None
    """The workflow id; None if it is not there or is not the one that the key is made of."""
    namespaces: frozenset[str]
    """Those that stored it, as `turnkeeper.connection.namespace_identity` names them; none where
    an earlier release did."""
    objects: int
    bytes: int
    newest: float
    """When something was last stored, by the store's clock, in seconds since 1970."""


class ArtifactStore(Protocol):
    """Bytes by content address, per owner (a workflow id)."""

    async def put(self, owner: str, data: bytes) -> str:
        """Store durably and return the id. What is there already counts as stored now.

        Raises:
            ValueError: more than `MAX_ARTIFACT_BYTES`.
            OSError: the store cannot take it now.
        """
        ...

    async def get(self, owner: str, artifact: str) -> bytes:
        """The bytes of an artifact of this owner.

        Raises:
            StateLost: there is none, or its content is not what was stored.
            NothingStored: the store has nothing of this owner, but of others.
            OSError: the store cannot be read now.
        """
        ...

    async def read(self, owner: str, artifact: str, offset: int, length: int) -> Part:
        """A part of an artifact, verified as the whole is.

        The first part of an object costs a pass over the whole, which never lies in memory; later
        ones cost their own blocks of 256 kB (see `turnkeeper.blocks`).

        Raises:
            StateLost: there is none, or its content is not what was stored.
            NothingStored: the store has nothing of this owner, but of others.
            OSError: the store cannot be read now.
        """
        ...

    def holdings(self) -> AsyncIterator[Holding]:
        """What is here, owner by owner.

        Raises:
            OSError: the store cannot be read now.
        """
        ...

    async def remove(self, key: str, *, before: float) -> Holding | None:
        """Remove all that an owner has, unless some of it was stored at `before` or later.

        What is stored meanwhile is kept. `key` and `before` are as in `Holding`. Returns what was
        removed, None if nothing was.

        Raises:
            OSError: the store cannot be written now.
        """
        ...


def open_store(url: str | None = None, *, namespace: str | None = None) -> ArtifactStore:
    """The store of `url`: a folder's path, `file://`, or `s3://`, `gs://`, `az://` with `obstore`.

    The default is the environment's TURNKEEPER_ARTIFACTS, else `.turnkeeper/artifacts`. `namespace`
    is recorded beside what is stored: see `Holding`.

    Raises:
        ValueError: a URL that cannot be used, saying what to install where that helps.
    """
    where = url or os.environ.get("TURNKEEPER_ARTIFACTS") or DEFAULT_URL
    scheme, separator, rest = where.partition("://")
    if not separator:
        return FolderStore(Path(where), namespace=namespace)
    if scheme == "file":
        return FolderStore(Path(rest), namespace=namespace)
    try:
        from obstore.store import from_url
    except ImportError:
        raise ValueError(f"{scheme}:// needs an extra: pip install 'turnkeeper[objects]'") from None
    try:
        return ObjectStore(from_url(where), namespace=namespace)
    except Exception as error:  # noqa: BLE001  the library raises many kinds for a bad URL
        raise ValueError(f"artifact store {scheme}://...: {_said(error)}") from None


def _said(error: Exception) -> str:
    """What the library says, without the debugging print of its types below it."""
    return str(error).partition("\n\nDebug source:")[0]


async def _checked(data: bytes) -> str:
    if len(data) > MAX_ARTIFACT_BYTES:
        raise ValueError(f"an artifact of {len(data)} bytes; at most {MAX_ARTIFACT_BYTES} are kept")
    return await _digest(data)


def artifact_id(data: bytes) -> str:
    """The id that `put` gives these bytes."""
    return sha256(data).hexdigest()


async def _digest(data: bytes) -> str:
    if len(data) < _QUICK_BYTES:
        return artifact_id(data)
    # The largest take 0.1 s, in which a worker's loop has heartbeats to send.
    return await asyncio.to_thread(artifact_id, data)


def _key(owner: str, artifact: str) -> str:
    if not _ID.fullmatch(artifact):
        raise StateLost(f"{artifact[:80]!r} is not an artifact id")
    return f"{_owner_key(owner)}/{artifact}"


def _owner_key(owner: str) -> str:
    # Hashed: a workflow id may hold anything, a path may not.
    return sha256(owner.encode("utf-8", "replace")).hexdigest()[:32]


def _marks(owner: str, namespace: str | None) -> dict[str, bytes]:
    """What stands beside an owner's objects, by name."""
    marks = {_OWNER: owner.encode("utf-8", "replace")}
    return marks | ({f"{_NAMESPACE}{namespace}": b""} if namespace else {})


def _changed(artifact: str, size: int) -> StateLost:
    return StateLost(f"artifact {artifact[:12]} is not what was stored ({size} bytes)")


async def _verified(artifact: str, data: bytes) -> bytes:
    if await _digest(data) != artifact:
        raise _changed(artifact, len(data))
    return data


@dataclass(frozen=True)
class _Stored:
    """One thing in an owner's folder: an object, a mark, or a draft of either."""

    name: str
    size: int
    time: float


def _holding(key: str, owner: bytes | None, stored: Iterable[_Stored]) -> Holding:
    things = list(stored)
    objects = [t for t in things if _ID.fullmatch(t.name)]
    named = owner.decode("utf-8", "replace") if owner is not None else None
    return Holding(
        key=key,
        owner=named if named is not None and _owner_key(named) == key else None,
        namespaces=frozenset(
            t.name.removeprefix(_NAMESPACE) for t in things if t.name.startswith(_NAMESPACE)
        ),
        objects=len(objects),
        bytes=sum(t.size for t in objects),
        # Of drafts, too: somebody is about to store what they hold.
        newest=max((t.time for t in things), default=0.0),
    )


def _marks_last(name: str) -> bool:
    """Sorts what is removed: without its marks, nobody could tell whose the rest is."""
    return _ID.fullmatch(name) is None


class FolderStore:
    """A local folder. Written durably: file, then name, then folder are synced."""

    def __init__(self, root: Path, *, namespace: str | None = None) -> None:
        self.root = root
        self._namespace = namespace
        self._proofs = Proofs()
        self._seen: dict[str, list[Path]] | None = None
        """What `_folders` answered last."""
        # Of its own: a disk that hangs would hold all threads of the loop's, which names are
        # resolved in, and so stop runs that have nothing to do with it.
        self._threads = ThreadPoolExecutor(_FOLDER_THREADS, thread_name_prefix="artifacts")

    async def put(self, owner: str, data: bytes) -> str:
        """See `ArtifactStore`."""
        artifact = await _checked(data)
        await self._in_thread(self._write, owner, artifact, data)
        return artifact

    async def get(self, owner: str, artifact: str) -> bytes:
        """See `ArtifactStore`."""
        path = self.root / _key(owner, artifact)
        data = await self._in_thread(self._whole, path, artifact)
        return await _verified(artifact, data)

    async def read(self, owner: str, artifact: str, offset: int, length: int) -> Part:
        """See `ArtifactStore`."""
        path = self.root / _key(owner, artifact)
        return await self._in_thread(self._part, path, artifact, offset, length)

    async def holdings(self) -> AsyncIterator[Holding]:
        """See `ArtifactStore`."""
        folders = await self._in_thread(self._folders)
        for key, own in folders.items():
            held = await self._in_thread(self._still_held, key, own)
            if held is not None:
                yield held

    async def remove(self, key: str, *, before: float) -> Holding | None:
        """See `ArtifactStore`."""
        return await self._in_thread(self._remove, key, before)

    async def meet(self, host: str) -> set[str]:
        """Note that a host's workers use this folder; answers all hosts whose workers do.

        Raises:
            OSError: it cannot be written.
        """
        return await self._in_thread(self._meet, host)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        bound = functools.partial(work, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, bound)

    # --- reading --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _told(self, path: Path, artifact: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if path.parent.is_dir():
                raise StateLost(f"artifact {artifact[:12]} is not in {self.root}") from None
            # A folder that is not mounted is not there, or empty, and no loss yet.
            away = NothingStored if self._has_owners() else OSError
            raise away(f"the artifact folder {self.root} has nothing of this run") from None

    def _has_owners(self) -> bool:
        try:
            with os.scandir(self.root) as found:
                return any(_KEY.fullmatch(entry.name) for entry in found)
        except FileNotFoundError:
            return False

    def _whole(self, path: Path, artifact: str) -> bytes:
        with self._told(path, artifact):
            return path.read_bytes()

    def _part(self, path: Path, artifact: str, offset: int, length: int) -> Part:
        with self._told(path, artifact):
            proof = self._proofs.get(str(path)) or self._prove(path, artifact)
            start, end = proof.span(offset, length)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(end - start)
            if len(data) != end - start or not proof.holds(start, data):
                raise _changed(artifact, path.stat().st_size)
        return Part(data[offset - start : offset - start + length] if data else b"", proof.size)

    def _prove(self, path: Path, artifact: str) -> Proof:
        prover = Prover()
        with path.open("rb") as file:
            while piece := file.read(BLOCK_BYTES):
                prover.feed(piece)
        proof = prover.proof(artifact)
        if proof is None:
            raise _changed(artifact, prover.size)
        self._proofs.keep(str(path), proof)
        return proof

    # --- writing --------------------------------------------------------------------------------

    def _write(self, owner: str, artifact: str, data: bytes) -> None:
        path = self.root / _key(owner, artifact)
        for again in range(1, _WRITES):
            # A collection may just have taken the owner's folder away: see `_remove_folder`.
            with contextlib.suppress(*_TAKEN):
                return self._write_beside_marks(path, owner, data)
            time.sleep(_PAUSE_SECONDS * again)
        return self._write_beside_marks(path, owner, data)

    def _write_beside_marks(self, path: Path, owner: str, data: bytes) -> None:
        # Objects are found by owner later on, when Temporal no longer knows the run.
        for name, content in _marks(owner, self._namespace).items():
            mark = path.parent / name
            if not mark.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                # The folder's own name, too, has to survive a loss of power.
                _sync(self.root)
                _publish(mark, content)
        if not _is_there(path, data):
            _publish(path, data)

    # --- whose it is, and its end ---------------------------------------------------------------

    def _folders(self) -> dict[str, list[Path]]:
        """By owner: its folder, and what a collection that died has left of one."""
        found: dict[str, list[Path]] = defaultdict(list)
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self.root.iterdir()):
                gone = _GONE.fullmatch(path.name)
                key = gone[1] if gone else path.name
                if _KEY.fullmatch(key) and path.is_dir():
                    found[key].append(path)
        self._seen = found
        return found

    def _still_held(self, key: str, folders: list[Path]) -> Holding | None:
        """None if another collection has removed it since."""
        held = self._held(key, folders)
        return held if any(folder.is_dir() for folder in folders) else None

    def _held(self, key: str, folders: Iterable[Path]) -> Holding:
        owner: bytes | None = None
        stored: list[_Stored] = []
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                stored += _listed(folder)
                owner = (folder / _OWNER).read_bytes()
        return _holding(key, owner, stored)

    def _remove(self, key: str, before: float) -> Holding | None:
        if not _KEY.fullmatch(key):
            return None
        # Not listed for each owner anew: for 10,000 of them that would be 10^8 names.
        seen = self._folders() if self._seen is None else self._seen
        removed: Holding | None = None
        for folder in dict.fromkeys([*seen.get(key, ()), self.root / key]):
            # What has vanished meanwhile another collection has taken, and sees to.
            with contextlib.suppress(FileNotFoundError):
                removed = self._remove_folder(key, folder, before) or removed
        return removed

    def _remove_folder(self, key: str, folder: Path, before: float) -> Holding | None:
        own = self.root / key
        held = self._held(key, [folder])
        if folder == own and held.newest >= before:
            return None
        # Taken away at once, then looked at: whoever stores in it now finds it gone and stores
        # anew, and what was stored until now is seen here and put back.
        gone = folder.rename(self.root / f".gone.{key}.{uuid.uuid4().hex}")
        if self._held(key, [gone]).newest >= before:
            _put_back(gone, own)
            return None
        for thing in sorted(gone.iterdir(), key=lambda p: _marks_last(p.name)):
            thing.unlink(missing_ok=True)
        gone.rmdir()
        return held

    def _meet(self, host: str) -> set[str]:
        folder = self.root / ".hosts"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / quote(host, safe="")[:200]).touch()
        hosts = [t.name for t in sorted(_listed(folder), key=lambda t: t.time)]
        for oldest in hosts[:-_HOSTS]:
            (folder / oldest).unlink(missing_ok=True)
        return {unquote(name) for name in hosts}


def _listed(folder: Path) -> list[_Stored]:
    found: list[_Stored] = []
    for path in folder.iterdir():
        # A draft that was published, or what another collection has removed by now.
        with contextlib.suppress(FileNotFoundError):
            about = path.stat()
            found.append(_Stored(path.name, about.st_size, about.st_mtime))
    return found


def _put_back(gone: Path, folder: Path) -> None:
    """What was taken away, beside what may have been stored anew."""
    # The newest last: another collection that takes the rest sees that it has to be put back.
    for thing in sorted(_listed(gone), key=lambda t: t.time):
        _move(gone / thing.name, folder / thing.name)
    gone.rmdir()
    _sync(folder)


def _move(path: Path, to: Path) -> None:
    for _ in range(_WRITES):
        with contextlib.suppress(*_TAKEN):
            to.parent.mkdir(exist_ok=True)
            if to.exists():
                # Stored anew, and its time tells so.
                path.unlink()
            else:
                path.replace(to)
            return
        if not path.exists():
            raise FileNotFoundError(f"{path} was taken by another collection")
    raise OSError(f"{to.parent} is taken away again and again")


def _is_there(path: Path, data: bytes) -> bool:
    """Whether an object is whole; then it counts as stored now, and no collection takes it."""
    try:
        if path.read_bytes() != data:
            return False
        os.utime(path)
    except OSError:
        return False
    return True


def _publish(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class ObjectStore:
    """A cloud bucket by `obstore`."""

    def __init__(self, store: Any, *, namespace: str | None = None) -> None:
        self._store = store
        self._namespace = namespace
        self._proofs = Proofs()

    async def put(self, owner: str, data: bytes) -> str:
        """See `ArtifactStore`."""
        artifact = await _checked(data)
        with _as_oserror():
            for name, content in _marks(owner, self._namespace).items():
                await self._put(f"{_owner_key(owner)}/{name}", content)
            if not await self._put(_key(owner, artifact), data):
                # The same content under its own name: written again, it is whole whatever has
                # become of it, and as new as what a collection spares.
                await self._put(_key(owner, artifact), data, mode="overwrite")
        return artifact

    async def get(self, owner: str, artifact: str) -> bytes:
        """See `ArtifactStore`."""
        async with self._told(owner, artifact):
            data = await self._get(_key(owner, artifact))
        return await _verified(artifact, data)

    async def read(self, owner: str, artifact: str, offset: int, length: int) -> Part:
        """See `ArtifactStore`."""
        key = _key(owner, artifact)
        async with self._told(owner, artifact):
            proof = self._proofs.get(key) or await self._prove(key, artifact)
            start, end = proof.span(offset, length)
            if start == end:
                return Part(b"", proof.size)
            data = await self._range(key, artifact, start, end)
        if len(data) != end - start or not await asyncio.to_thread(proof.holds, start, data):
            raise _changed(artifact, proof.size)
        return Part(data[offset - start : offset - start + length], proof.size)

    async def holdings(self) -> AsyncIterator[Holding]:
        """See `ArtifactStore`."""
        with _as_oserror():
            found = await self._listed()
        for key, stored in found.items():
            with _as_oserror():
                held = await self._held(key, stored)
            yield held

    async def remove(self, key: str, *, before: float) -> Holding | None:
        """See `ArtifactStore`. What is stored between its two requests, listing and removing, under
        the id of a run that was just begun anew, is lost."""
        import obstore

        with _as_oserror():
            stored = (await self._listed(f"{key}/")).get(key, [])
            held = await self._held(key, stored)
            if not stored or held.newest >= before:
                return None
            for thing in sorted(stored, key=lambda t: _marks_last(t.name)):
                await obstore.delete_async(self._store, f"{key}/{thing.name}")
        return held

    async def _put(self, key: str, data: bytes, mode: Any = "create") -> bool:
        """False if it was there."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            await obstore.put_async(self._store, key, data, mode=mode)
        except AlreadyExistsError:
            return False
        return True

    async def _get(self, key: str) -> bytes:
        import obstore

        found = await obstore.get_async(self._store, key)
        return bytes(await found.bytes_async())

    async def _range(self, key: str, artifact: str, start: int, end: int) -> bytes:
        import obstore
        from obstore.exceptions import BaseError

        try:
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))
        except BaseError:
            # A bucket that is down, or an object that has become shorter: that is lost.
            await self._prove(key, artifact)
            raise

    @contextlib.asynccontextmanager
    async def _told(self, owner: str, artifact: str) -> AsyncIterator[None]:
        try:
            with _as_oserror():
                yield
        except FileNotFoundError:
            with _as_oserror():
                if await self._listed(f"{_owner_key(owner)}/"):
                    raise StateLost(f"artifact {artifact[:12]} is not in the store") from None
                # A wrong bucket, or one that is not there, is no loss yet.
                away = NothingStored if await self._has_owners() else OSError
            raise away("the artifact store has nothing of this run") from None

    async def _has_owners(self) -> bool:
        """Whether some of the first names are ours."""
        import obstore

        async for batch in obstore.list(self._store, chunk_size=_FIRST_NAMES):
            return any(_KEY.fullmatch(thing["path"].partition("/")[0]) for thing in batch)
        return False

    async def _prove(self, key: str, artifact: str) -> Proof:
        import obstore

        prover = Prover()
        found = await obstore.get_async(self._store, key)
        async for piece in found.stream(min_chunk_size=4 * BLOCK_BYTES):
            await asyncio.to_thread(prover.feed, bytes(piece))
        proof = prover.proof(artifact)
        if proof is None:
            raise _changed(artifact, prover.size)
        self._proofs.keep(key, proof)
        return proof

    async def _listed(self, prefix: str | None = None) -> dict[str, list[_Stored]]:
        """By owner."""
        import obstore

        found: dict[str, list[_Stored]] = defaultdict(list)
        async for batch in obstore.list(self._store, prefix):
            for thing in batch:
                key, _, name = thing["path"].partition("/")
                modified: datetime = thing["last_modified"]
                if _KEY.fullmatch(key) and "/" not in name:
                    found[key].append(_Stored(name, thing["size"], modified.timestamp()))
        return found

    async def _held(self, key: str, stored: list[_Stored]) -> Holding:
        owner: bytes | None = None
        with contextlib.suppress(FileNotFoundError):
            owner = await self._get(f"{key}/{_OWNER}")
        return _holding(key, owner, stored)


@contextlib.contextmanager
def _as_oserror() -> Iterator[None]:
    """The library's own errors; it tells of what is not there by Python's."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(f"artifact store: {_said(error)}") from error

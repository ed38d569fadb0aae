"""Large things out of band: one small port, a local folder by default, object stores by URL.

Artifacts are addressed by their content's SHA-256 and belong to one workflow id, so that storing
twice is harmless, a changed object is noticed, and a run cannot read another run's.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from turnkeeper.errors import StateLost

MAX_ARTIFACT_BYTES = 64_000_000
DEFAULT_URL = ".turnkeeper/artifacts"
_QUICK_BYTES = 256_000
_ID = re.compile(r"[0-9a-f]{64}")


class ArtifactStore(Protocol):
    """Bytes by content address, per owner (a workflow id)."""

    async def put(self, owner: str, data: bytes) -> str:
        """Store durably and return the id.

        Raises:
            ValueError: more than `MAX_ARTIFACT_BYTES`.
            OSError: the store cannot take it now.
        """
        ...

    async def get(self, owner: str, artifact: str) -> bytes:
        """The bytes of an artifact of this owner.

        Raises:
            StateLost: there is none, or its content is not what was stored.
            OSError: the store cannot be read now.
        """
        ...


def open_store(url: str | None = None) -> ArtifactStore:
    """The store of `url`: a folder's path, `file://`, or `s3://`, `gs://`, `az://` with `obstore`.

    The default is the environment's TURNKEEPER_ARTIFACTS, else `.turnkeeper/artifacts`.

    Raises:
        ValueError: a URL that cannot be used, saying what to install where that helps.
    """
    where = url or os.environ.get("TURNKEEPER_ARTIFACTS") or DEFAULT_URL
    scheme, separator, rest = where.partition("://")
    if not separator:
        return FolderStore(Path(where))
    if scheme == "file":
        return FolderStore(Path(rest))
    try:
        from obstore.store import from_url
    except ImportError:
        raise ValueError(f"{scheme}:// needs an extra: pip install 'turnkeeper[objects]'") from None
    try:
        return ObjectStore(from_url(where))
    except Exception as error:  # noqa: BLE001  the library raises many kinds for a bad URL
        raise ValueError(f"artifact store {scheme}://...: {error}") from None


async def _checked(data: bytes) -> str:
    if len(data) > MAX_ARTIFACT_BYTES:
        raise ValueError(f"an artifact of {len(data)} bytes; at most {MAX_ARTIFACT_BYTES} are kept")
    return await _digest(data)


async def _digest(data: bytes) -> str:
    if len(data) < _QUICK_BYTES:
        return sha256(data).hexdigest()
    # The largest take 0.1 s, in which a worker's loop has heartbeats to send.
    return await asyncio.to_thread(lambda: sha256(data).hexdigest())


def _key(owner: str, artifact: str) -> str:
    if not _ID.fullmatch(artifact):
        raise StateLost(f"{artifact[:80]!r} is not an artifact id")
    # Hashed: a workflow id may hold anything, a path may not.
    return f"{sha256(owner.encode()).hexdigest()[:32]}/{artifact}"


async def _verified(artifact: str, data: bytes) -> bytes:
    if await _digest(data) != artifact:
        raise StateLost(f"artifact {artifact[:12]} is not what was stored ({len(data)} bytes)")
    return data


class FolderStore:
    """A local folder. Written durably: file, then name, then folder are synced."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def put(self, owner: str, data: bytes) -> str:
        """See `ArtifactStore`."""
        artifact = await _checked(data)
        await asyncio.to_thread(self._write, owner, artifact, data)
        return artifact

    async def get(self, owner: str, artifact: str) -> bytes:
        """See `ArtifactStore`."""
        path = self.root / _key(owner, artifact)
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            if not path.parent.is_dir():
                # Nothing of the run is here: a folder that is not mounted is no loss yet.
                raise OSError(f"the artifact folder {self.root} has nothing of this run") from None
            raise StateLost(f"artifact {artifact[:12]} is not in {self.root}") from None
        return await _verified(artifact, data)

    def _write(self, owner: str, artifact: str, data: bytes) -> None:
        path = self.root / _key(owner, artifact)
        if path.exists():
            return
        # Objects are found by owner later on, when Temporal no longer knows the run.
        named = path.parent / "owner"
        if not named.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # The folder's own name, too, has to survive a loss of power.
            _sync(self.root)
            self._publish(named, owner.encode("utf-8", "replace"))
        self._publish(path, data)

    def _publish(self, path: Path, data: bytes) -> None:
        if path.exists():
            return
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

    def __init__(self, store: Any) -> None:
        self._store = store

    async def put(self, owner: str, data: bytes) -> str:
        """See `ArtifactStore`."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        artifact = await _checked(data)
        try:
            await obstore.put_async(self._store, _key(owner, artifact), data, mode="create")
        except AlreadyExistsError:
            pass  # the same content under its own name
        except BaseError as error:
            raise OSError(f"artifact store: {error}") from error
        return artifact

    async def get(self, owner: str, artifact: str) -> bytes:
        """See `ArtifactStore`."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = await obstore.get_async(self._store, _key(owner, artifact))
            return await _verified(artifact, bytes(await found.bytes_async()))
        except FileNotFoundError:
            raise StateLost(f"artifact {artifact[:12]} is not in the store") from None
        except BaseError as error:
            raise OSError(f"artifact store: {error}") from error

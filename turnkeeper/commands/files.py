"""Files that commands write: whole or not at all, and for their owner alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

_NAME_CHARACTERS = 150
"""Of an id in a file's name; most file systems allow 255 bytes in all."""


def name_of(run: str) -> str:
    """What the file of a run is called: callers choose ids."""
    name = quote(run, safe="")
    # Hidden files are drafts.
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > _NAME_CHARACTERS:
        name = f"{name[:_NAME_CHARACTERS]}~{sha256(run.encode()).hexdigest()[:16]}"
    return name


@contextlib.contextmanager
def draft(folder: Path) -> Iterator[Any]:
    """A file, for its owner alone, that is gone again unless it is kept: never half of one."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part", delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def keep(file: Any, path: Path, closed: datetime | None = None) -> None:
    """Let a draft stand as `path`, dated when the run `closed`."""
    file.flush()
    os.fsync(file.fileno())
    if closed is not None:
        os.utime(file.name, (closed.timestamp(),) * 2)
    Path(file.name).replace(path)

"""A script that follows its file, for who writes one while the provider runs."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

from turnkeeper.testing.provider.replies import Reply
from turnkeeper.testing.provider.script import Exchange, answer, load_script

__all__ = ["Reloaded"]


class Reloaded:
    """The script that `MODULE:NAME` names, imported anew when the module's file has changed.

    What it imports itself is not. A file that cannot be imported is a script that raises: requests
    are answered with HTTP 500 and why, until it is mended.

    Raises:
        ValueError: there is no such script at first; one line says why.
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._script: Any = load_script(reference)
        self._module = sys.modules[reference.partition(":")[0]]
        self._stamp = self._now()
        self._lock = threading.Lock()

    def __call__(self, exchange: Exchange) -> Reply:
        """The reply of the script as it is now."""
        with self._lock:
            stamp = self._now()
            if stamp != self._stamp:
                importlib.reload(self._module)
                self._script = load_script(self._reference)
                self._stamp = stamp
            script = self._script
        return answer(script, exchange)

    def _now(self) -> tuple[int, int] | None:
        """When the file was changed, and its size."""
        if self._module.__file__ is None:
            return None
        found = Path(self._module.__file__).stat()
        return found.st_mtime_ns, found.st_size

"""The output of a run, as a value of a caller's own type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnkeeper.artifacts import ArtifactStore
from turnkeeper.entries import strict_json
from turnkeeper.errors import AdmissionError, OutputMismatch, StateLost
from turnkeeper.output_type import Unfit, read_as

__all__ = ["output_of"]


async def output_of(
    store: Callable[[], ArtifactStore], run: str, value: Any, artifact: str | None, wanted: Any
) -> Any:
    """Of an output, or of the artifact that holds it: what `wanted`, a pydantic type, reads in it.

    Raises:
        OutputMismatch: it is not of that type, or cannot be read from the store.
    """
    try:
        if artifact is not None:
            value = strict_json(await store().get(run, artifact))
        return read_as(wanted, value)
    except (OSError, StateLost, AdmissionError) as error:
        told = f"run {run}: its output, artifact {artifact}, cannot be read: {error}"
        raise OutputMismatch(told) from error
    except Unfit as error:
        told = f"run {run}: its output is not of the type that is asked for: {error}"
        raise OutputMismatch(told) from None

"""Typed answers in a run: what the model is told, and what it has answered. Pure.

Whether an answer is of the agent's type is found out by the activity that got it, since the type is
its author's code. Here is what follows from that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from turnkeeper.contract import Checked
from turnkeeper.text import clip, one_line, utf8_size

CORRECTION_BYTES = 4_000
"""Of the problems in a correction, and of the schema; a longer one stays in the instructions."""

_INSTRUCTION = (
    "# Form of your answer\n"
    "When you have finished, and call no more tools, answer with one JSON value that fits the "
    "following JSON schema, and with nothing else: no text around it, no code fence. (A summary of "
    "the conversation, if you are asked for one, is plain text.)\n{schema}"
)
_CORRECTION = (
    "Your last answer could not be used:\n{problems}\n"
    "Answer again with one JSON value that fits {schema}, and with nothing else."
)
NOT_CHECKED = "It was not checked. Give it once more."
_REASON_CHARACTERS = 600


class Typed(BaseModel):
    """Part of `RunState`."""

    checked: Checked | None = None
    """Of the last reply; None if it ended no turn, or needed no check."""
    corrections: int = 0
    """Asked for since the last answer that fitted, or the last message that somebody sent."""

    @property
    def problems(self) -> Sequence[str]:
        """Why the last reply is no answer; none if it is one."""
        return self.checked.problems if self.checked else ()

    def unfit(self) -> bool:
        """Whether the answer that the last reply is does not fit, or was not checked."""
        if self.checked is None:
            # By a worker of before there were output types.
            self.checked = Checked(problems=[NOT_CHECKED])
        return bool(self.checked.problems)

    @property
    def value(self) -> str | None:
        """The last answer as JSON; None if there is none, or it is too long for a result."""
        return self.checked.value if self.checked else None

    def why(self, before: str | None = None) -> str | None:
        """The reason for a run's end, with what was wrong with its last answer."""
        if not self.problems:
            return before
        told = one_line(
            "the last answer does not fit: " + "; ".join(self.problems), _REASON_CHARACTERS
        )
        return f"{before}; {told}" if before else told


def with_form(instructions: str, schema: Any) -> str:
    """The instructions of an agent whose answers have a schema.

    They are pinned so: the words may change with a release, but not in a run, whose thinking is
    bound to them.
    """
    told = _INSTRUCTION.format(schema=_schema_text(schema))
    return f"{instructions}\n\n{told}" if instructions.strip() else told


def correction(problems: Sequence[str], schema: Any) -> str:
    """What the model reads after an answer that does not fit."""
    shown = clip("\n".join(f"- {p}" for p in problems), CORRECTION_BYTES)
    text = _schema_text(schema)
    known = f"this JSON schema:\n{text}\n" if utf8_size(text) <= CORRECTION_BYTES else ""
    return _CORRECTION.format(
        problems=shown, schema=known or "the JSON schema in your instructions"
    )


def _schema_text(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))

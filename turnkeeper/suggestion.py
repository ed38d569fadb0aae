"""Commands that people may give next, before it is known where they type them. Pure.

`turnkeeper.commands.place` writes them whole: interpreter, program, state folder and server.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnkeeper.text import one_line

if TYPE_CHECKING:
    from turnkeeper.contract import Awaited

WORDS = "..."
"""Stands for what a person has to write."""
_WORD = 1_000
# What means something to a shell between double quotes.
_SPECIAL = frozenset('"$`\\!')


@dataclass(frozen=True)
class Suggestion:
    """A command of `starter.py` or `worker.py`; as a string it is its arguments, for a shell."""

    verb: str = ""
    """Such as `approve` or `switch list`; `worker.py` has none."""
    names: tuple[str, ...] = ()
    """What stands without an option: ids, chosen by callers and models, or `WORDS`."""
    options: tuple[str | tuple[str, str], ...] = ()
    """`--landed`, or one with its value."""
    aim: str = ""
    """What it is for, as in `To start one: ...`."""
    program: str = "starter.py"

    def __str__(self) -> str:
        names, options = list(map(_quoted, self.names)), list(map(_option, self.options))
        # A name that begins with a dash would be taken for an option.
        dashed = any(name.startswith("-") for name in self.names)
        words = [*options, "--", *names] if dashed else [*names, *options]
        return " ".join([*self.verb.split(), *words])


def deciding(run_id: str, approval: str, *, allow: bool) -> Suggestion:
    """Decide a call that waits for a person's word."""
    if allow:
        return Suggestion("approve", (run_id, approval))
    return Suggestion("deny", (run_id, approval), (("--reason", WORDS),))


def resuming(run_id: str) -> Suggestion:
    """Let a paused run go on."""
    return Suggestion("resume", (run_id,), aim="resume it")


def settling(run_id: str, call_id: str, *, landed: bool) -> Suggestion:
    """Say whether a call took effect."""
    return Suggestion("unknown", (run_id, call_id), ("--landed" if landed else "--not-landed",))


def replying(run_id: str, call_id: str) -> Suggestion:
    """Answer the question of a call; without a call, send the next message."""
    if call_id:
        return Suggestion("answer", (run_id, call_id, WORDS), aim=f"answer {one_line(call_id, 80)}")
    return Suggestion("send", (run_id, WORDS), aim="send it a message")


def ending_waits(run_id: str, awaited: Iterable[Awaited], *, paused: bool) -> list[Suggestion]:
    """Resume a run, answer its questions, say something: whatever it waits for of these."""
    # What waits for a time is nobody's to end.
    said = [replying(run_id, a.call_id) for a in awaited if a.update]
    return [*([resuming(run_id)] if paused else []), *said]


def serving(task_queue: str, agent: str) -> Suggestion:
    """Start a worker."""
    options = (("--task-queue", task_queue), ("--agents", "MODULE"))
    aim = f"start a worker (MODULE defines the agent {one_line(agent, 64)})"
    return Suggestion("", (), options, aim, "worker.py")


def _option(option: str | tuple[str, str]) -> str:
    if isinstance(option, str):
        return option
    name, value = option
    return f"{name}{'=' if value.startswith('-') else ' '}{_quoted(value)}"


def _quoted(word: str) -> str:
    told = one_line(word, _WORD)
    if told == WORDS:
        # Whoever writes over it stays within the quotes.
        return f"'{told}'"
    if "'" in told and not _SPECIAL & set(told):
        return f'"{told}"'
    return shlex.quote(told)

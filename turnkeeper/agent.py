"""Declare an agent: a model, instructions, tools and limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from turnkeeper.contract import Signature, problem_text
from turnkeeper.errors import DefinitionError
from turnkeeper.output_type import OutputType
from turnkeeper.spec import (
    NOTES,
    AgentSpec,
    ApprovalPolicy,
    ContextPolicy,
    HistoryPolicy,
    Limits,
    ModelSpec,
    OnUnknown,
)
from turnkeeper.tools import Tool
from turnkeeper.typed import with_form

LEAST_REQUEST_TOKENS = 1_000
"""What has to be left of a window for a request, beside the longest reply."""
OUTAGE_SECONDS = 4 * 3_600.0
AGENT_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


Verify = Callable[[Signature], str | Awaitable[str]]


class Agent:
    """What a team writes; `spec()` is what a run is pinned to.

    Args:
        name: by which runs ask for it; letters, digits, `_`, `.` and `-`.
        model: the provider's id of the model, e.g. `claude-sonnet-5-5`.
        instructions: the system prompt. Keep it constant: dates and names belong in the prompt.
        tools: functions declared with `@tool`.
        limits: bounds of a run; a start request may set its own.
        max_output_tokens: length of a reply before it is asked for again with more.
        model_options: passed to the provider, e.g. `{"thinking": {"type": "adaptive"}}`.
        on_invalid_call: `tell` the model about an unknown tool or invalid arguments, or `stop`.
        on_unknown: a call may or may not have taken effect: `tell` the model, `wait` until a person
            resolves it (`starter.py unknown`), or `stop` the run with `outcome_unknown`.
        approvals: which calls a person has to allow, beside what the tools declare.
        verify: finds out who approves or denies: called with the `Signature`, it returns their
            name, or raises `PermissionError` with why the decision does not count. Without it names
            are shown as unverified.
        context: what is done when the conversation outgrows the model's window.
        history: when to continue as new; for tests and unusual histories.
        outage_seconds: how long a run waits for a provider that does not answer, beyond the two
            minutes of its own attempts, before it ends with `model_unavailable`; 0 for not at all.
        notes: give the model a scratchpad, the tools `note` and `read_notes`.
        output: what answers have to be: a type that pydantic knows (a model, a dataclass,
            `list[Row]`, ...) or a JSON schema as a dict. `RunResult.output` has the answer then.
        output_retries: times in a row, 0 to 10, that the model is asked to correct an answer that
            is not of that type; then the run ends with `invalid_output`.

    Raises:
        DefinitionError: says which argument is wrong and how to mend it.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str | ModelSpec,
        instructions: str,
        tools: Sequence[Tool] = (),
        limits: Limits | None = None,
        max_output_tokens: int | None = None,
        model_options: Mapping[str, Any] | None = None,
        on_invalid_call: Literal["tell", "stop"] = "tell",
        on_unknown: OnUnknown = "tell",
        approvals: ApprovalPolicy | None = None,
        verify: Verify | None = None,
        context: ContextPolicy | None = None,
        history: HistoryPolicy | None = None,
        outage_seconds: float = OUTAGE_SECONDS,
        notes: bool = False,
        output: Any = None,
        output_retries: int = 2,
    ) -> None:
        if not AGENT_NAME.fullmatch(name):
            raise DefinitionError(f"agent name {name!r}: use 1 to 64 letters, digits, _ . and -")
        self.name = name
        self.tools = _by_name(name, tools)
        self.verify = verify
        self.output = _output_type(name, output)
        """None: answers are any text."""
        settings: dict[str, Any] = {"name": model} if isinstance(model, str) else dict(model)
        if max_output_tokens is not None:
            settings["max_output_tokens"] = max_output_tokens
        if model_options is not None:
            settings["options"] = dict(model_options)
        given = {
            "name": name,
            "instructions": instructions,
            "tools": tuple(t.spec for t in self.tools.values()),
            "limits": limits or Limits(),
            "on_invalid_call": on_invalid_call,
            "on_unknown": on_unknown,
            "approvals": approvals or ApprovalPolicy(),
            "verifies": verify is not None,
            "context": context or ContextPolicy(),
            "history": history or HistoryPolicy(),
            "outage_seconds": outage_seconds,
            "notes": notes,
        }
        if self.output is not None:
            given |= _with_output(instructions, self.output, output_retries)
        try:
            pinned = {**given, "model": ModelSpec.model_validate(settings)}
            self._spec = AgentSpec.model_validate(pinned)
        except ValidationError as error:
            raise DefinitionError(f"agent {name!r}: {problem_text(error)}") from None
        _refuse_reserved(self._spec)
        _refuse_strangers(self._spec)
        _refuse_unfit(self._spec)

    def spec(self) -> AgentSpec:
        """The agent as data."""
        return self._spec


def _output_type(agent: str, output: Any) -> OutputType | None:
    try:
        return None if output is None else OutputType(output)
    except ValueError as error:
        raise DefinitionError(f"agent {agent!r}: output: {error}") from None


def _with_output(instructions: str, output: OutputType, retries: int) -> dict[str, Any]:
    spec = {"json_schema": output.json_schema, "typed": output.typed, "retries": retries}
    return {"instructions": with_form(instructions, output.json_schema), "output": spec}


def _by_name(agent: str, tools: Sequence[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for item in tools:
        if not isinstance(item, Tool):
            raise DefinitionError(
                f"agent {agent!r}: {getattr(item, '__name__', item)!r} is not a tool; "
                "declare it with @tool"
            )
        if item.name in found:
            raise DefinitionError(
                f"agent {agent!r}: two tools are called {item.name!r}; list it once, or rename one"
            )
        found[item.name] = item
    return found


def _refuse_reserved(spec: AgentSpec) -> None:
    for name in spec.built_in():
        if spec.tool(name) is not None:
            without = ", or leave out notes=True" if name in NOTES else ""
            raise DefinitionError(
                f"agent {spec.name!r}: {name!r} is the name of a built-in tool; "
                f"rename yours{without}"
            )


def _refuse_strangers(spec: AgentSpec) -> None:
    """A policy about a tool that the agent has not is a misspelt one, and another is denied."""
    for name, said in (spec.approvals.tools or {}).items():
        found = spec.tool(name)
        if found is not None and found.awaits is not None and said == "always":
            raise DefinitionError(
                f"agent {spec.name!r}: approvals.tools: {name} is served by the run itself, nobody "
                "is asked for it; use 'declared' or 'deny'"
            )
        if found is None:
            known = ", ".join(t.name for t in spec.tools) or "none"
            raise DefinitionError(
                f"agent {spec.name!r}: approvals.tools: there is no tool {name!r}; tools: {known}"
            )


def _refuse_unfit(spec: AgentSpec) -> None:
    """A window in which no conversation has room.

    Not in the models themselves: those are read from histories, too, whatever they say.
    """
    model, context = spec.model, spec.context
    output, window = model.max_output_tokens, model.window
    if output > model.ceiling:
        why = (
            f"max_output_tokens={output} is more than ceiling={model.ceiling}; lower it, or raise "
            "ModelSpec.ceiling, if the model allows it"
        )
    elif window is None:
        return
    elif output + LEAST_REQUEST_TOKENS > window:
        why = (
            f"of window={window} a reply of max_output_tokens={output} leaves less than "
            f"{LEAST_REQUEST_TOKENS} tokens for a request; lower max_output_tokens"
        )
    elif context and context.mode == "checkpoint" and context.checkpoint_tokens * 2 > window:
        why = (
            f"a summary of checkpoint_tokens={context.checkpoint_tokens} is more than half of "
            f"window={window}; lower checkpoint_tokens"
        )
    else:
        return
    raise DefinitionError(f"agent {spec.name!r}: {why}")

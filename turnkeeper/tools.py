"""Write a tool: `@tool` turns a typed function into what the model may call. Pure.

The docstring and the types are the schema that the model sees. The function stays callable as it
is, so it can be tested without anything of Turnkeeper.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import re
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from turnkeeper.blocks import Part
from turnkeeper.canonical import given
from turnkeeper.entries import arguments_digest, digest_of
from turnkeeper.errors import DefinitionError, NothingStored, StateLost, ToolFailed
from turnkeeper.probe import Probe
from turnkeeper.spec import Effect, ToolSpec
from turnkeeper.text import one_line

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that every provider accepts; a dot would collide with the built-in activities (`run.*`)."""
_EFFECTS = typing.get_args(Effect)


Wanted = Callable[[Mapping[str, Any]], "bool | str | Awaitable[bool | str]"]
"""Says of a call's arguments, by name as the tool's types read them, whether a person has to allow
it: False or True, or why. What it raises counts as a reason to ask."""


class _Log(Protocol):
    def info(self, event: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def warning(self, event: str, /, *args: Any, **kwargs: Any) -> Any: ...


@dataclasses.dataclass
class ToolContext:
    """What a tool may know about the call it serves. Ask for it by a parameter of this type.

    In a test of your own: `ToolContext(idempotency_key="k1")`.
    """

    idempotency_key: str = ""
    """The same over retries, crashes and continue-as-new: hand it to the target of an effect."""
    arguments_digest: str = ""
    """Of the arguments as the tool's types read them; one key with two of them is a conflict."""
    attempt: int = 1
    """1 for the first time the body runs for this call; best effort after a crash."""
    tool: str = ""
    agent: str = ""
    turn: int = 0
    call_id: str = ""
    """The model's own id of the call: not unique over runs, never use it as a key."""
    workflow_id: str = ""
    run_id: str = ""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """From the start request, as the caller gave it."""
    log: _Log = dataclasses.field(default_factory=lambda: logging.getLogger("turnkeeper.tool"))
    resume_from: Any = None
    """Details of the last heartbeat of an attempt that was lost, or None."""
    result_bytes: int | None = None
    """Of JSON: a text that takes more becomes an artifact. None if unknown."""
    _heartbeat: Callable[[Any], None] = dataclasses.field(default=lambda _: None, repr=False)
    _artifact: Callable[[str], Awaitable[bytes]] | None = dataclasses.field(
        default=None, repr=False
    )
    _part: Callable[[str, int, int], Awaitable[Part]] | None = dataclasses.field(
        default=None, repr=False
    )
    _memory: Callable[[], Awaitable[Any]] | None = dataclasses.field(default=None, repr=False)
    """What was said in this run, for the built-in tools: `activities.memory.Memory`."""

    @property
    def principal(self) -> str | None:
        """On whose behalf the run acts: `metadata["principal"]` of the start request."""
        return self.metadata.get("principal")

    async def artifact(self, artifact: str) -> bytes:
        """The content of an artifact of this run.

        Raises:
            ToolFailed: the run has no such artifact, or it was damaged.
            OSError: the store cannot be read now.
        """
        if self._artifact is None:
            raise ToolFailed("This run has no artifacts.")
        with self._naming(artifact):
            return await self._artifact(artifact)

    async def artifact_part(self, artifact: str, offset: int, length: int) -> Part:
        """Bytes of an artifact of this run from `offset` on, verified, and the size of the whole.

        Raises:
            ToolFailed: the run has no such artifact, or it was damaged.
            OSError: the store cannot be read now.
        """
        if self._part is None:
            # In a process of the tool's own, and in tests.
            whole = await self.artifact(artifact)
            return Part(whole[offset : offset + length], len(whole))
        with self._naming(artifact):
            return await self._part(artifact, offset, length)

    @contextlib.contextmanager
    def _naming(self, artifact: str) -> Iterator[None]:
        """The model reads which artifact it was, the log also where it should have been."""
        named = f"Artifact {one_line(artifact, 64)}"
        try:
            yield
        except (StateLost, NothingStored) as error:
            self.log.warning("artifact not readable: %s", error)
            told = f"{named} does not exist in this run, or was damaged. It cannot be read."
            raise ToolFailed(told) from None
        except OSError as error:
            self.log.warning("artifact store not readable: %s", error)
            raise OSError(f"{named} cannot be read at the moment.") from error

    async def memory(self) -> Any:
        """What was said in this run, for the built-in tools.

        Raises:
            ToolFailed: it cannot be found again.
        """
        if self._memory is None:
            raise ToolFailed("This run has no transcript.")
        try:
            return await self._memory()
        except StateLost as error:
            self.log.warning("transcript not readable: %s", error)
            raise ToolFailed(
                f"What was said earlier cannot be read: {one_line(str(error), 200)}"
            ) from None

    def heartbeat(self, details: Any = None) -> None:
        """Tell that the tool lives and where it stands; the next attempt reads `resume_from`."""
        self._heartbeat(details)


class Tool:
    """A function the model may call. Made by `@tool`; calling it calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        effect: Effect | None,
        timeout: float,
        retries: int,
        heartbeat: float | None,
        probe: Probe | None,
        key_ttl: float | None,
        approval: Literal["never", "always"] | Wanted,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.probe = probe
        self.wants_approval = approval if callable(approval) else None
        """Of a tool whose arguments decide it."""
        self.is_async = inspect.iscoroutinefunction(function)
        self.declared = effect is not None
        """Whether the author stated an effect; one who did not gets a single attempt."""
        self.arguments, self.context_parameter = _arguments_model(function, name)
        self.spec = ToolSpec(
            name=name,
            description=_description(function),
            input_schema=self.arguments.model_json_schema(schema_generator=_Schema),
            effect=effect or "once",
            timeout=timeout,
            retries=retries,
            heartbeat=heartbeat,
            key_ttl=key_ttl,
            approval="asks" if callable(approval) else approval,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself."""
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name

    @property
    def definition_digest(self) -> str:
        """Of what a person allows when they allow a call of it: another one is asked for anew."""
        spec = self.spec
        return digest_of([spec.name, spec.description, spec.input_schema, spec.effect])

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Keyword arguments for the function, validated by its own types.

        Sets the context's `arguments_digest`, which does not depend on key order, on defaults being
        written out or added by a later release, on 1 against 1.0, or on how a decimal or a date is
        spelt.

        Raises:
            ValueError: with a text for the model that names each wrong field and what is expected.
        """
        try:
            # As JSON: dates, tuples and enums follow JSON's rules, not Python's.
            valid = self.arguments.model_validate_json(to_json(arguments))
            _read_through(valid)
        except ValidationError as error:
            raise ValueError(_explain(error, self.spec)) from None
        bound = {
            field.alias or name: getattr(valid, name)
            for name, field in self.arguments.model_fields.items()
        }
        context.arguments_digest = arguments_digest(self.name, given(valid))
        if self.context_parameter:
            bound[self.context_parameter] = context
        return bound


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    effect: Effect | None = None,
    timeout: float = 60,
    retries: int | None = None,
    name: str | None = None,
    heartbeat: float | None = None,
    probe: Probe | None = None,
    key_ttl: float | None = None,
    approval: Literal["never", "always"] | Wanted = "never",
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | None = None,
    timeout: float = 60,
    retries: int | None = None,
    name: str | None = None,
    heartbeat: float | None = None,
    probe: Probe | None = None,
    key_ttl: float | None = None,
    approval: Literal["never", "always"] | Wanted = "never",
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Declare a tool.

    Args:
        effect: `read` (nothing changes), `idempotent` (the target honours `ctx.idempotency_key`),
            `reconcilable` (the target can be asked by `probe`) or `once` (one attempt, the
            default).
        timeout: seconds for one attempt, up to a day.
        retries: attempts after the first, up to 20; default 0 for `once`, where only `RetryTool`
            is ever retried, and 2 for the others.
        name: what the model calls it; default the function's name.
        heartbeat: seconds after which a call that did not `ctx.heartbeat()` counts as hung, and is
            stopped; by default only the timeout ends one.
        probe: of a `reconcilable` tool, see `turnkeeper.probe`: asked before any second attempt and
            after a last failure.
        key_ttl: of an `idempotent` or `reconcilable` tool: seconds that the target remembers a key,
            more than `timeout`. A retry that might come later is not made; its outcome is unknown.
            Counted within a run: a reset, or a repeated start, begins anew.
        approval: whether a person has to allow a call before it is run: `never`, `always`, or a
            function of its arguments, such as `lambda args: args["amount"] > 100`; a text that it
            returns tells the person why.

    Raises:
        DefinitionError: a parameter without a type, a name no provider accepts, a wrong option.
    """

    def declare(fn: Callable[..., Any]) -> Tool:
        where = _where(fn)
        called = name or fn.__name__
        if not TOOL_NAME.fullmatch(called):
            raise DefinitionError(
                f"{where}: tool name {called!r}: use 1 to 64 letters, digits, _ and -"
            )
        again = retries if retries is not None else (0 if effect in ("once", None) else 2)
        if problem := (
            _wrong_effect(effect, probe)
            or _wrong_bound(timeout, again, heartbeat)
            or _wrong_ttl(key_ttl, effect, timeout)
            or _wrong_approval(approval)
        ):
            raise DefinitionError(f"{where}: tool {called!r}: {problem}")
        return Tool(
            fn,
            name=called,
            effect=effect,
            timeout=timeout,
            retries=again,
            heartbeat=heartbeat,
            probe=probe,
            key_ttl=key_ttl,
            approval=approval,
        )

    return declare if function is None else declare(function)


def _wrong_effect(effect: Effect | None, probe: Probe | None) -> str | None:
    if effect is not None and effect not in _EFFECTS:
        return f"effect {effect!r} is none of {', '.join(_EFFECTS)}"
    if effect == "reconcilable" and probe is None:
        return (
            "a reconcilable tool needs probe=..., a function (ctx, args) that says whether the "
            "effect happened; without one the effect is 'once'"
        )
    if effect != "reconcilable" and probe is not None:
        return "only a tool with effect='reconcilable' has a probe"
    if probe is None:
        return None
    try:
        inspect.signature(probe).bind(None, None)
    except (TypeError, ValueError):
        return "its probe is called with (ctx, args), by position"
    return None


def _wrong_bound(timeout: float, retries: int, heartbeat: float | None) -> str | None:
    if not 0 < timeout <= 86_400:
        return "timeout is 0 to 86400 seconds"
    if not 0 <= retries <= 20:
        return "retries is 0 to 20"
    if heartbeat is not None and not 1 <= heartbeat <= timeout:
        return "heartbeat is seconds, from 1 up to the timeout"
    return None


def _wrong_ttl(key_ttl: float | None, effect: Effect | None, timeout: float) -> str | None:
    if key_ttl is None:
        return None
    if effect not in ("idempotent", "reconcilable"):
        return "key_ttl is for idempotent and reconcilable tools: others send no key"
    if not timeout < key_ttl:
        return f"key_ttl is seconds, more than the timeout of {timeout:g}"
    return None


def _wrong_approval(approval: object) -> str | None:
    if not callable(approval):
        known = approval in ("never", "always")
        return None if known else f"approval {approval!r}: use 'never', 'always' or a function"
    try:
        inspect.signature(approval).bind({})
    except (TypeError, ValueError):
        return "its approval function is called with (args), by position"
    return None


class _Schema(GenerateJsonSchema):
    """Without the titles that repeat each name: the model pays for every token of a schema."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def generate(
        self, schema: Any, mode: Literal["validation", "serialization"] = "validation"
    ) -> Any:
        """The schema without the model's own title and docstring."""
        made = super().generate(schema, mode)
        made.pop("title", None)
        made.pop("description", None)
        return made


def _arguments_model(fn: Callable[..., Any], name: str) -> tuple[type[BaseModel], str | None]:
    where = _where(fn)
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except Exception as error:
        raise DefinitionError(
            f"{where}: tool {name!r}: a type cannot be resolved ({error})"
        ) from error
    documented = _parameter_docs(fn)
    fields: dict[str, Any] = {}
    context_parameter: str | None = None
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(
                f"{where}: tool {name!r}: parameter {parameter.name!r}: a model passes "
                "arguments by name; *args, **kwargs and positional-only parameters cannot be used"
            )
        if parameter.name not in hints:
            kind = "ToolContext" if parameter.name in ("ctx", "context") else "str"
            raise DefinitionError(
                f"{where}: tool {name!r}: parameter {parameter.name!r} has no type; "
                f"write it as `{parameter.name}: {kind}`"
            )
        hint = hints[parameter.name]
        if hint in (ToolContext, ToolContext | None):
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # An alias for every field: parameters called `json`, `copy` or `model_config` would
        # otherwise clash with pydantic's own names, one of them in silence.
        extra: dict[str, Any] = {"alias": parameter.name}
        if parameter.name in documented and not FieldInfo.from_annotation(hint).description:
            extra["description"] = documented[parameter.name]
        fields[f"p{len(fields)}"] = (Annotated[hint, Field(**extra)], default)
    try:
        return _model(name, fields), context_parameter
    except Exception as error:
        raise DefinitionError(f"{where}: tool {name!r}: {_unfit(fields, error)}") from error


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    made: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    made.model_json_schema(schema_generator=_Schema)
    return made


def _unfit(fields: dict[str, Any], error: Exception) -> str:
    """Which parameter no JSON schema can be made of."""
    for name, (hint, default) in fields.items():
        try:
            _model("parameter", {name: (hint, default)})
        except Exception:  # noqa: BLE001 - it is the one that the whole failed by
            kind, *_, field = typing.get_args(hint)
            plain = isinstance(kind, type) and not typing.get_args(kind)
            # Without the modules, which a type's text has for each of its parts.
            called = kind.__name__ if plain else re.sub(r"\w+\.", "", str(kind))
            return (
                f"parameter {field.alias!r}: type {called} cannot be sent by a model; use str, "
                "int, a list, a dataclass or a pydantic model"
            )
    return f"no JSON schema can be made of its types ({error})"


def _description(fn: Callable[..., Any]) -> str:
    from docstring_parser import parse

    parsed = parse(inspect.getdoc(fn) or "")
    return "\n\n".join(t for t in (parsed.short_description, parsed.long_description) if t)


def _parameter_docs(fn: Callable[..., Any]) -> dict[str, str]:
    from docstring_parser import parse

    return {
        p.arg_name: " ".join((p.description or "").split())
        for p in parse(inspect.getdoc(fn) or "").params
    }


def _read_through(model: BaseModel) -> None:
    """Make lists of what pydantic would check only while the tool reads it, and only once."""
    for name in model.model_fields_set:
        if isinstance(value := getattr(model, name), Iterator):
            setattr(model, name, list(value))


def _explain(error: ValidationError, spec: ToolSpec) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"- {'.'.join(map(str, p['loc'])) or 'arguments'}: {p['msg']}" for p in problems[:10]]
    if len(problems) > 10:
        lines.append(f"- and {len(problems) - 10} more")
    known = ", ".join(spec.input_schema.get("properties", {})) or "none"
    return f"Invalid arguments for {spec.name}:\n" + "\n".join(lines) + f"\nParameters: {known}."


def _where(fn: Callable[..., Any]) -> str:
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)

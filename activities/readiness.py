"""Whether what this worker sends and reads can be sent and read: asked before it takes work.

Found in a run, a model that cannot be built or a value that is not JSON would fail that run on this
worker only, and each time anew.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from temporalio.converter import DataConverter

from activities.registry import Registry
from turnkeeper import contract, entries
from turnkeeper.agent import Agent
from turnkeeper.errors import AdmissionError, DefinitionError
from turnkeeper.spec import AgentSpec
from turnkeeper.state import RunState


def check(registry: Registry, converter: DataConverter) -> None:
    """Build every model, and send each agent's spec through the converter and back.

    Raises:
        DefinitionError: names what cannot be built or sent.
    """
    models: list[type[BaseModel]] = [*_models(contract), *_models(entries), AgentSpec, RunState]
    for model in models:
        _build(model, f"{model.__module__}.{model.__name__}")
    for agent in registry.agents.values():
        for tool in agent.tools.values():
            _build(tool.arguments, f"agent {agent.name!r}: tool {tool.name!r}")
        _round_trip(agent, converter)


def _models(module: Any) -> list[type[BaseModel]]:
    return [
        v
        for v in vars(module).values()
        if isinstance(v, type) and issubclass(v, BaseModel) and v.__module__ == module.__name__
    ]


def _build(model: type[BaseModel], where: str) -> None:
    try:
        # A model that was deferred builds at its first use, which may fail in one process only.
        model.model_rebuild(raise_errors=True)
        model.model_json_schema()
    except Exception as error:
        raise DefinitionError(f"{where}: its types cannot be built ({error})") from error


def _round_trip(agent: Agent, converter: DataConverter) -> None:
    spec = agent.spec()
    where = "model_options"
    try:
        for model in spec.models:
            entries.check_json(model.options)
            where = "context.summariser.options"
        (payload,) = converter.payload_converter.to_payloads([spec])
        (again,) = converter.payload_converter.from_payloads([payload], [AgentSpec])
    except AdmissionError as error:
        where = error.where.replace("$", where, 1)
        raise DefinitionError(f"agent {agent.name!r}: {where}: {error.why}") from None
    except Exception as error:
        raise DefinitionError(f"agent {agent.name!r}: it cannot be sent ({error})") from error
    if again != spec:
        raise DefinitionError(
            f"agent {agent.name!r}: as JSON it becomes another: {_difference(spec, again)}"
        )


def _difference(sent: AgentSpec, came: AgentSpec) -> str:
    names = [n for n in AgentSpec.model_fields if getattr(sent, n) != getattr(came, n)]
    return ", ".join(names)

"""The options of an agent, as their models and docstrings have them.

    python -m tests.option_tables        writes docs/options.md

`tests/test_tools.py` fails if the page says something else.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

from turnkeeper import ContextPolicy, HistoryPolicy, Limits, ModelSpec, Price
from turnkeeper.schemas import field_docstrings
from turnkeeper.spec import Strict

PAGE = Path(__file__).resolve().parent.parent / "docs/options.md"
_MODELS: tuple[tuple[str, type[Strict]], ...] = (
    ("Agent(model=...)", ModelSpec),
    ("ModelSpec(prices=[...])", Price),
    ("Agent(context=...)", ContextPolicy),
    ("Agent(limits=...)", Limits),
    ("Agent(history=...)", HistoryPolicy),
)
_SIGNS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def show() -> str:
    """The page."""
    parts = [
        "# Options of an agent",
        "Written from the docstrings in `turnkeeper/spec.py` by `python -m tests.option_tables`.",
    ]
    for where, model in _MODELS:
        parts += [f"## {model.__name__}", f"`{where}`. {_line(inspect.getdoc(model) or '')}"]
        said = field_docstrings(model)
        rows = [
            f"| `{name}` | {_default(field)} | {_line(said[name])}{_bounds(field)} |"
            for name, field in model.model_fields.items()
        ]
        parts.append("\n".join(["| option | default | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"{value:,}" if isinstance(value, int | float) else f"`{value!r}`"


def _bounds(field: Any) -> str:
    # Of a field that may be None, they stand in its first alternative.
    metadata = field.metadata or [
        bound
        for alternative in get_args(field.annotation)
        for info in getattr(alternative, "__metadata__", ())
        for bound in info.metadata
    ]
    told = [
        f"{said} {getattr(bound, name):,}"
        for bound in metadata
        for name, said in _SIGNS.items()
        if hasattr(bound, name)
    ]
    return f" ({', '.join(told)})" if told else ""


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(show())

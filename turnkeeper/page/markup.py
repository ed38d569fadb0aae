"""HTML made of tags and text: text is escaped wherever it stands, at this one place. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as _escape

from turnkeeper.text import printable, well_formed

__all__ = ["Html", "escape", "join", "tag"]

_VOID = frozenset({"br", "img", "meta"})
_PRE = frozenset({"pre"})


class Html(str):
    """Markup. Only this module makes it of text, and a stylesheet or the like that is ours."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Foreign text as markup that shows just it: in an element, or in an attribute with quotes.

    Control characters, those that turn the direction of writing, and lone surrogates become U+FFFD.
    """
    return Html(_escape(printable(well_formed(text.replace("\r\n", "\n")))))


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """An element; children that are no `Html` are text. None and False leave a child or an
    attribute out, True has an attribute without a value; `class_` and `http_equiv` are written as
    HTML has them.
    """
    given = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    # A line end that a `pre` begins with is not shown: ours is given in its place.
    first = "\n" if name in _PRE else ""
    return Html(f"<{name}{given}>{first}{join(children)}</{name}>")


def join(children: Iterable[str | None], between: str = "") -> Html:
    """One after the other, text escaped."""
    made = (c if isinstance(c, Html) else escape(c) for c in children if c is not None)
    return Html(escape(between).join(made))


def _attribute(name: str, value: str | float | bool) -> str:
    # Also what is markup elsewhere is text here.
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'

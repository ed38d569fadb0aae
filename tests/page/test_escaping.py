"""Nothing that a model, a tool or a caller says becomes markup of the page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.page.runs import hostile_run
from turnkeeper.page.document import page
from turnkeeper.page.markup import Html, escape, join, tag
from turnkeeper.page.story import story_of
from turnkeeper.text import printable, well_formed

HOSTILE = {
    "script": "<script>window.hacked=1</script>",
    "closing tags": "</pre></details></section></main></style></title></script><h1>mine</h1>",
    "handlers": "\"><img src=x onerror=alert(1)> ' onload='alert(1)' x=\"",
    "single quotes": "'><svg onload=alert(1)>",
    "urls": "javascript:alert(1) http://127.0.0.1:9/x data:text/html,<script>alert(1)</script>",
    "comments": "<!-- <![CDATA[ ]]> --> <?xml ?> <!doctype html>",
    "entities": "&lt;script&gt; &#60;script&#62; &amp;amp; &",
    "css": "}</style><style>*{display:none} url(http://127.0.0.1:9/)",
    "controls": "a\x00b\x07c\x1b[31md\x7fe\x85f\r\ng",
    "directions": "user\u202egpj.exe\u202c \u2066x\u2069 \u061c \u200f",
    "surrogates": "a\ud800b\udfffc",
    "separators": "a\u2028b\u2029c\ufeffd",
    "no character": "\ufffe\uffff\U0010ffff",
    "blank": " ",
}


class Skeleton(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(written)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element, by its name and what it has attributes of."""
        self.elements.append(f"<{tag} {' '.join(name for name, _ in attrs)}>")
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        """Its end."""
        self.elements.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        """Text as a reader sees it."""
        self.text += data

    def handle_comment(self, data: str) -> None:
        """There are none."""
        self.elements.append(f"<!--{data}-->")

    unknown_decl = handle_comment


def harmless(bad: str) -> str:
    """A text of the same length and lines."""
    return re.sub(r"[^\s]", "x", printable(well_formed(bad.replace("\r\n", "\n"))))


@pytest.mark.parametrize("over", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_changes_no_element(name: str, over: bool) -> None:
    """With it in every field the page has the very elements that it has with a harmless one."""
    bad = HOSTILE[name]
    written = hostile_page(bad, over=over)
    found = Skeleton(written)
    assert found.elements == Skeleton(hostile_page(harmless(bad), over=over)).elements
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", written)
    written.encode()


def hostile_page(bad: str, *, over: bool = True) -> str:
    """The page of a run that has a text wherever one can stand."""
    run, status, images = hostile_run(bad, over=over)
    return page(story_of(run, status), images)


@pytest.mark.parametrize("name", ["script", "closing tags", "handlers", "entities", "css"])
def test_it_is_shown_as_it_was_said(name: str) -> None:
    """Whoever reads the page sees the text itself, in messages, replies, arguments and results."""
    assert Skeleton(hostile_page(HOSTILE[name])).text.count(HOSTILE[name]) >= 10


def test_addresses_are_our_own() -> None:
    """Links lead to places on the page, images are within it, and nothing else names an address."""
    for bad in HOSTILE.values():
        found = Skeleton(hostile_page(bad))
        assert {name for name, _ in found.attributes} & {"style", "srcset", "action"} == set()
        for name, value in found.attributes:
            assert not name.startswith("on")
            if name == "href":
                assert re.fullmatch(r"#[a-z]+(-\d+)?", value or "")
            if name == "src":
                assert value == "data:image/png;base64,iVBORw0KGgo="


@given(st.text(st.characters(exclude_categories=[])))
def test_text_stays_text(text: str) -> None:
    """Any text, in an element and in an attribute, is read by a parser as what it was."""
    found = Skeleton(tag("p", text, title=text))
    shown = printable(well_formed(text.replace("\r\n", "\n")))
    assert (found.elements, found.text) == (["<p title>", "</p>"], shown)
    assert found.attributes == [("title", shown)]


def test_markup_is_escaped_once_and_only_where_it_is_text() -> None:
    """Elements stay elements within others; what is no `Html` does not, whatever it looks like."""
    assert tag("p", tag("b", "<i>"), None) == "<p><b>&lt;i&gt;</b></p>"
    assert tag("p", f"{tag('b', 'x')}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
    assert tag("a", href=Html('"><b>')) == '<a href="&quot;&gt;&lt;b&gt;"></a>'
    assert join(["<", Html("<br>")], "&") == "&lt;&amp;<br>"
    assert tag("details", open=True, id=None, hidden=False) == "<details open></details>"
    assert escape("\r\n") == "\n"

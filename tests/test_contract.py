"""The published schemas: they say what the models do, and what fits them is taken."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import contract_files
from tests.contract_files import CHANGED, OLD, published, to_do
from turnkeeper.contract import VERSION, read_public
from turnkeeper.json_schema import JsonSchema
from turnkeeper.notices import RUN_WAITING, Notice, NoticedCall
from turnkeeper.schemas import SENT, schemas
from turnkeeper.spec import DAY_LIMITS, Limits

PAGE = (contract_files.FOLDER.parent / "contract.md").read_text()

GOOD: dict[str, dict[str, Any]] = {
    "start": {"agent": "finance", "prompt": "Hi"},
    "send": {"message_id": "m-1", "text": "Hi"},
    "answer": {"call_id": "c-1", "text": "42"},
    "approve": {"approval": "a-1"},
    "deny": {"approval": "a-1"},
    "resolve": {"call_id": "c-1", "landed": True},
    "pause": {},
    "resume": {},
    "raise_limits": {"limits": {"turns": 9}},
    "stop": {},
    "day_limit": {"kind": "tenant", "name": "acme", "cost_usd": 20},
    "switch": {"kind": "tool", "name": "issue_refund", "off": True, "reason": "paid twice"},
}
LENGTHS = (64, 130, 200, 300, 512, 1_000, 2_000, 4_000, 20_000, 200_000)
TEXTS = [
    *("", " ", "\t\n", "\x1c", "\x85", "\ufeff", "\u200b", "\u3000", "a", "a b", "a  b", " a"),
    *("a\n", "a.b", "\u202e", "é", "\U0001f600" * 64, "tool", "tenant", "stop", "answer"),
    *("x" * n for n in LENGTHS),
    *("x" * (n + 1) for n in LENGTHS),
]
NUMBERS = [
    *(-1, 0, 1, 2, 32, 33, 100, 101, 100_000, 100_001, 10**6, 10**6 + 1, 10**9 + 1),
    *(366 * 86_400, 366 * 86_400 + 1, 10**15, 10**15 + 1, 0.5, 1.0, 1.5, 1e-9, 1e300),
]
OTHER = [None, [], {}, ["a"], {"a": "b"}, {"a": 1}]
# No true: some read it as a number, see below.
NESTED: list[Any] = [*TEXTS, *NUMBERS, *OTHER]
ANYTHING: list[Any] = [*NESTED, True, False]
FORK: dict[str, Any] = {"workflow_id": "w", "turn": 1}
FIELDS: dict[str, list[Any]] = {
    "limits": [
        {name: value} for name in (*Limits.model_fields, *DAY_LIMITS, "turn") for value in NESTED
    ],
    "metadata": [
        *({text: "x"} for text in TEXTS),
        *({"k": value} for value in ANYTHING),
        *({str(n): "" for n in range(size)} for size in (32, 33)),
    ],
    "fork": [
        FORK,
        *({**FORK, f: v} for f in ("workflow_id", "run_id", "turn", "edit", "x") for v in NESTED),
        *({f: v for f, v in FORK.items() if f != left_out} for left_out in FORK),
    ],
}


@functools.cache
def schema(name: str) -> JsonSchema:
    """A published one, as services read it."""
    return JsonSchema(published()[name])


def taken(name: str, body: Any) -> bool:
    """Whether a run would read it."""
    try:
        read_public(SENT[name], body)
    except ValueError:
        return False
    return True


def at_odds(limits: Any) -> bool:
    """Whether one limit is wrong beside another: JSON Schema does not compare fields."""
    if not isinstance(limits, dict):
        return False
    errors, calls = limits.get("recent_errors"), limits.get("recent_calls", 20)
    numbers = isinstance(errors, (int, float)) and isinstance(calls, (int, float))
    return numbers and errors > calls


def in_another_form(body: dict[str, Any]) -> bool:
    """Whether a number is written as true, or a whole one as 1.0: the page says that it may be
    read, or not."""
    return isinstance(body.get("cost_usd"), bool) or isinstance(body.get("tokens"), float)


def disagreement(name: str, body: dict[str, Any]) -> str:
    """What is wrong if a body fits and is refused, or the other way round."""
    problems = schema(name).problems(body)
    if at_odds(body.get("limits")) or in_another_form(body):
        return ""
    if taken(name, body) == (not problems):
        return ""
    return f"{str(body)[:200]}: {problems or 'fits'}"


@pytest.mark.parametrize("name", SENT)
def test_a_schema_says_what_a_run_takes(name: str) -> None:
    """Whatever one field is, and whichever is left out: it fits if and only if it is taken."""
    assert not schema(name).problems(GOOD[name])
    found = [
        disagreement(name, {**GOOD[name], field: value})
        for field in (*published()[name]["properties"], "more")
        for value in FIELDS.get(field, []) + ANYTHING
    ]
    found += [
        disagreement(name, {f: v for f, v in GOOD[name].items() if f != left_out})
        for left_out in GOOD[name]
    ]
    assert not [told for told in found if told][:5]


@pytest.mark.parametrize("name", ["start", "switch"])
@given(data=st.data())
def test_fields_that_depend_on_each_other(name: str, data: st.DataObject) -> None:
    """As a prompt on `keep_open`: also of several fields at once it says what is taken."""
    body = dict(GOOD[name])
    fields = [*published()[name]["properties"]]
    for field in data.draw(st.lists(st.sampled_from(fields), max_size=4)):
        body[field] = data.draw(st.sampled_from(FIELDS.get(field, []) + ANYTHING))
    for left_out in data.draw(st.lists(st.sampled_from(fields), max_size=1)):
        body.pop(left_out, None)
    assert not disagreement(name, body)


@pytest.mark.parametrize("body", [None, [], "now", 7, True])
@pytest.mark.parametrize("name", SENT)
def test_a_body_is_an_object(name: str, body: Any) -> None:
    """Nothing else fits, and nothing else is taken."""
    assert schema(name).problems(body)
    assert not taken(name, body)


@pytest.mark.parametrize("turns", ["8", True, 8.0])
def test_numbers_in_another_form_are_taken_all_the_same(turns: Any) -> None:
    """The page says so: what a schema refuses is not promised."""
    assert taken("start", {**GOOD["start"], "limits": {"turns": turns}})


def test_limits_at_odds_fit_and_are_refused() -> None:
    """The page says so: a schema does not compare fields."""
    body = {**GOOD["start"], "limits": {"recent_errors": 9, "recent_calls": 3}}
    assert not schema("start").problems(body)
    assert not taken("start", body)


def test_a_notice_fits() -> None:
    """As a receiver reads it."""
    call = NoticedCall(turn=1, call_id="c", tool="pay")
    told = {"id": "n", "time": "2026-01-01T00:00:00Z", "workflow_id": "w", "run_id": "r"}
    notice = Notice(**told, event=RUN_WAITING, agent="a", waiting_for="approval", calls=[call])
    assert not schema("notice").problems(notice.model_dump(mode="json", exclude_none=True))
    assert schema("notice").problems({**told, "agent": "a", "event": "run.other"})


def test_what_is_read_may_gain_fields() -> None:
    """A service that checks what it reads by an older schema goes on."""
    assert not schema("result").problems({"outcome": "completed", "later": 1, "limits": {"new": 1}})
    assert schema("result").problems({"answer": "no outcome"})


# --- the files ------------------------------------------------------------------------------------


def test_the_published_schemas_are_those_of_the_models() -> None:
    """The message says what to do when they are not."""
    assert to_do(published()) is None, to_do(published())


def test_a_version_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other schemas need another version; those of another version are written anew."""
    there = published()
    changed = {**there, "stop": {**there["stop"], "required": ["reason"]}}
    assert to_do(changed) == CHANGED
    monkeypatch.setattr(contract_files, "published", lambda: changed)
    with pytest.raises(SystemExit, match="raise VERSION"):
        contract_files.write()
    older = {n: {**s, "$id": f"urn:turnkeeper:contract:0.9:{n}"} for n, s in there.items()}
    assert to_do(older) == OLD


def test_every_schema_carries_name_and_version() -> None:
    """Who has stored one knows of which contract it is; fields are described."""
    assert re.fullmatch(r"[1-9]\d*\.\d+", VERSION)
    for name, document in schemas().items():
        assert document["$id"] == f"urn:turnkeeper:contract:{VERSION}:{name}"
        assert document["description"]
    assert schemas()["start"]["properties"]["metadata"]["description"]


def test_the_page_lists_every_body() -> None:
    """One line each, and none that does not exist."""
    assert sorted(re.findall(r"^\| \[`\w+`\]\(contract/(\w+)\.json\)", PAGE, re.MULTILINE)) == (
        sorted(schemas())
    )

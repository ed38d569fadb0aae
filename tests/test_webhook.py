"""The webhook: a run waits, failed, or has an unknown outcome; signed, and never in its way."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client, WorkflowExecutionStatus

from activities import notify
from activities.notify import Webhook
from tests.rig import Rig, RigFactory, until
from turnkeeper import tool
from turnkeeper.contract import NOTICE
from turnkeeper.errors import NoticeRefused
from turnkeeper.spec import HistoryPolicy
from turnkeeper.testing import Exchange, Reply, call, status, text
from turnkeeper.webhook import ID, SIGNATURE, TIMESTAMP, signed_headers, verify

SECRET = "whsec_" + base64.b64encode(b"a webhook's secret, 32 bytes long").decode()
PATH = "/hooks/t0p-secret-path"
NOW = 1_790_000_000


@dataclass
class Receiver:
    """A web server on loopback; each answer is a status, or a function that writes one."""

    port: int = 0
    answers: Sequence[Any] = ()
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def webhook(self) -> Webhook:
        """As a worker is told of it."""
        return Webhook(f"http://127.0.0.1:{self.port}{PATH}", SECRET)

    def told(self) -> list[dict[str, Any]]:
        """What came, each verified."""
        return [verify(SECRET, h, body, now=time.time()) for _, h, body in self.requests]

    def more_than(self, number: int) -> bool:
        """Whether so many requests have come, and one more."""
        return len(self.requests) > number

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, then the end of the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            length = int({k.lower(): v for k, v in headers.items()}["content-length"])
            body = await reader.readexactly(length)
            self.requests.append((first, headers, body))
            index = min(len(self.requests), len(self.answers)) - 1
            answer = self.answers[index] if self.answers else 204
            if callable(answer):
                await answer(writer)
            else:
                writer.write(f"HTTP/1.1 {answer} X\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def receiving(*answers: Any) -> AsyncIterator[Receiver]:
    """A receiver that gives these answers in turn, the last one for ever; 204 without any."""
    receiver = Receiver(answers=answers)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


@tool
async def send(to: str = "ann") -> str:
    """Send."""
    raise OSError("connection lost")


@tool(approval="always")
async def refund(order: str) -> str:
    """Refund."""
    return f"refunded {order}"


def results(exchange: Exchange) -> Reply:
    """An answer that is all results of the last turn."""
    return text(" | ".join(r.text for r in exchange.last_results))


async def deliveries(r: Rig, state: WorkflowExecutionStatus) -> list[str]:
    """Ids of the deliveries of a rig's runs in that state."""
    found = r.client.list_workflows(f"WorkflowType = '{NOTICE}' AND TaskQueue = '{r.task_queue}'")
    return [w.id async for w in found if w.status is state]


# --- what is told ---------------------------------------------------------------------------------


async def test_a_run_that_failed(rig: RigFactory) -> None:
    """Who, what and why, signed; once."""
    async with receiving() as hook, rig([status(401)], webhook=hook.webhook) as r:
        run = await r.start(metadata={"tenant": "acme"})
        result = await run.result(check=False)
        (told,) = await until(hook.told)
        assert told["event"] == "run.failed"
        assert (told["workflow_id"], told["agent"], told["tenant"]) == (run.id, "tester", "acme")
        assert (told["outcome"], told["reason"]) == ("model_rejected", result.reason)
        assert (told["version"], told["run_id"]) == (1, run.run_id)
        first, headers, _ = hook.requests[0]
        assert first == f"POST {PATH} HTTP/1.1"
        assert headers[ID] == told["id"]
        await until(lambda: deliveries(r, WorkflowExecutionStatus.COMPLETED))
        assert len(hook.requests) == 1
        assert await r.task_failures() == 0


async def test_a_run_that_waits_and_its_unknown_outcome(rig: RigFactory) -> None:
    """Both are told, with the call, under ids of their own; a run that completed tells no end."""
    script = [call("send", {"to": "ann"}), results]
    async with (
        receiving() as hook,
        rig(script, tools=[send], on_unknown="wait", webhook=hook.webhook) as r,
    ):
        run = await r.start()
        told = {t["event"]: t for t in await until(lambda: len(hook.requests) == 2 and hook.told())}
        assert sorted(told) == ["run.unknown", "run.waiting"]
        (unknown,) = (await run.status()).unknown
        for event in told.values():
            (noticed,) = event["calls"]
            assert (noticed["call_id"], noticed["key"]) == (unknown.call_id, unknown.key)
            assert noticed["arguments"] == 'to="ann"'
        waiting_for = told["run.waiting"]["waiting_for"]
        assert waiting_for == (await run.status()).waiting_for
        assert told["run.unknown"]["id"] != told["run.waiting"]["id"]
        await run.resolve(unknown.call_id, landed=True, result="sent")
        assert (await run.result()).outcome == "completed"
        assert len(hook.requests) == 2


async def test_after_a_retry_what_is_new_has_an_id_of_its_own(rig: RigFactory) -> None:
    """A receiver that drops known ids learns of another call and of each end; the same call, asked
    for again, is told under the same id."""
    attempts = iter(["o-1", "o-2", "o-2", None, None])

    def script(_: Exchange) -> Reply:
        order = next(attempts)
        return call("refund", {"order": order}) if order else status(401)

    async with receiving() as hook, rig(script, tools=[refund], webhook=hook.webhook) as r:
        run = await r.start()
        await until(lambda: hook.requests)
        for _ in range(4):
            told = len(hook.requests)
            await r.agents.retry_from(run.id, 1)
            await until(partial(hook.more_than, told))
        one, two, again, failed, failed_again = hook.told()
        assert [t["calls"][0]["arguments"] for t in (one, two)] == ['order="o-1"', 'order="o-2"']
        assert again["id"] == two["id"]
        assert [t["event"] for t in (failed, failed_again)] == ["run.failed"] * 2
        assert len({t["id"] for t in (one, two, failed, failed_again)}) == 4
        assert await r.task_failures() == 0


@pytest.mark.parametrize(
    ("policy", "events"), [("tell", ["run.unknown"]), ("stop", ["run.failed", "run.unknown"])]
)
async def test_an_unknown_outcome_by_policy(
    rig: RigFactory, policy: Any, events: list[str]
) -> None:
    """Told also when nobody is waited for, and when it is the run's end."""
    async with (
        receiving() as hook,
        rig([call("send"), results], tools=[send], on_unknown=policy, webhook=hook.webhook) as r,
    ):
        await r.run()
        await until(lambda: len(hook.requests) == len(events))
        assert sorted(t["event"] for t in hook.told()) == events


async def test_a_run_that_is_cancelled_tells_what_it_leaves_unknown(rig: RigFactory) -> None:
    """Temporal's cancel ends it at once; the notice is under way before."""
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.sleep(60)
        return "never"

    settings = {"heartbeat_seconds": 1}
    async with (
        receiving() as hook,
        rig([call("hang")], tools=[hang], webhook=hook.webhook, settings=settings) as r,
    ):
        run = await r.start()
        await begun.wait()
        await r.client.get_workflow_handle(run.id).cancel()
        assert (await run.result(check=False)).outcome == "cancelled"
        (told,) = await until(hook.told)
        assert told["event"] == "run.unknown"


async def test_nothing_is_told_of_what_ends_well_or_without_a_webhook(rig: RigFactory) -> None:
    """A limit is no failure; a worker without a webhook makes no event."""
    async with receiving() as hook:
        async with rig([text("Done."), call("send")], tools=[send], webhook=hook.webhook) as r:
            assert (await r.run()).outcome == "completed"
        async with rig([call("send"), results], tools=[send]) as r:
            await r.run()
            types = {e.event_type for e in await r.events()}
            assert not any("CHILD" in str(t) for t in types)
            assert await deliveries(r, WorkflowExecutionStatus.RUNNING) == []
        assert hook.requests == []


# --- receivers that do not behave -----------------------------------------------------------------


async def test_tried_again_under_the_same_id(rig: RigFactory) -> None:
    """500 and 503, then taken: at least once, with one id, each attempt signed anew."""
    async with receiving(500, 503, 200) as hook, rig([status(401)], webhook=hook.webhook) as r:
        assert (await r.run()).outcome == "model_rejected"
        await until(lambda: len(hook.requests) == 3)
        assert len({t["id"] for t in hook.told()}) == 1
        stamps = [int(h[TIMESTAMP]) for _, h, _ in hook.requests]
        assert stamps == sorted(stamps)
        assert stamps[0] < stamps[-1]
        await until(lambda: deliveries(r, WorkflowExecutionStatus.COMPLETED))


async def test_a_dead_receiver_holds_up_nothing(rig: RigFactory) -> None:
    """Nobody listens: the run waits, continues as new and ends as if there were no webhook, and
    the notices are delivered later."""
    async with receiving() as hook:
        port = hook.port
    dead = Webhook(f"http://127.0.0.1:{port}{PATH}", SECRET)

    def script(exchange: Exchange) -> Reply:
        if exchange.turn == 0:
            return call("send")
        return call("look", {"n": exchange.turn}) if exchange.turn < 20 else status(401)

    @tool(effect="read")
    async def look(n: int) -> str:
        """Look."""
        return "x" * 1_000

    history = HistoryPolicy(events=50, bytes=20_000)
    async with rig(script, tools=[send, look], webhook=dead, history=history) as r:
        began = time.monotonic()
        result = await r.run()
        assert result.outcome == "model_rejected"
        assert time.monotonic() - began < 30
        assert len(await r.executions()) > 1
        assert len(await deliveries(r, WorkflowExecutionStatus.RUNNING)) == 2
        late = Receiver()
        server = await asyncio.start_server(late.serve, "127.0.0.1", port)
        async with server:
            await until(lambda: len(late.requests) == 2, timeout=60)
        assert sorted(t["event"] for t in late.told()) == ["run.failed", "run.unknown"]
        assert await r.task_failures() == 0


async def test_a_redirect_is_not_followed(rig: RigFactory) -> None:
    """It would take the notice, and its signature, to somebody else."""
    async with receiving() as other:

        async def elsewhere(writer: asyncio.StreamWriter) -> None:
            where = f"http://127.0.0.1:{other.port}/"
            head = f"HTTP/1.1 307 X\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n"
            writer.write(head.encode())

        async with (
            receiving(elsewhere, 200) as hook,
            rig([status(401)], webhook=hook.webhook) as r,
        ):
            await r.run()
            await until(lambda: len(hook.requests) == 2)
        assert other.requests == []


async def test_slow_and_endless_answers_are_cut_off(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that says nothing costs its time-out and is asked again; a body is not read."""
    monkeypatch.setattr(notify, "ANSWER_SECONDS", 0.5)
    sent = [0]

    async def silent(_writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 1000000000\r\n\r\n")
        while sent[0] < 100_000_000:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent[0] += 65_536

    async with receiving(silent, endless) as hook, rig([status(401)], webhook=hook.webhook) as r:
        await r.run()
        await until(lambda: deliveries(r, WorkflowExecutionStatus.COMPLETED))
        assert len(hook.requests) == 2
        assert sent[0] < 20_000_000


async def test_the_secret_and_the_url_are_nowhere(
    rig: RigFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in the history of the run or of the delivery, nor in the log, also when it fails;
    what looks like a secret in arguments is not told."""
    lines: list[str] = []
    for level in ("info", "warning"):
        keep: Callable[..., None] = lambda *a, **k: lines.append(str((a, k)))  # noqa: E731
        monkeypatch.setattr(notify.log, level, keep)
    script = [call("send", {"to": "token sk-0123456789abcdef"}), results]
    async with (
        receiving(500, 200) as hook,
        rig(script, tools=[send], webhook=hook.webhook) as r,
    ):
        await r.run()
        (delivery,) = await until(lambda: deliveries(r, WorkflowExecutionStatus.COMPLETED))
        handles = [r.client.get_workflow_handle(i) for i in (r.ids[-1], delivery)]
        histories = [(await h.fetch_history()).to_json() for h in handles]
        seen = "".join([*map(_plain, histories), *lines, *capsys.readouterr()])
        assert "run.unknown" in seen
        assert "127.0.0.1 answered 500" in seen
        for secret in (SECRET, SECRET.removeprefix("whsec_"), PATH):
            assert secret not in seen
        assert [c["arguments"] for c in hook.told()[0]["calls"]] == ['to="token [redacted]"']


def _plain(history: str) -> str:
    """A history with what its payloads hold."""
    held: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            if isinstance(value.get("data"), str):
                held.append(base64.b64decode(value["data"]).decode("utf-8", "replace"))
            for item in value.values():
                walk(item)

    walk(json.loads(history))
    return history + "".join(held)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://example.com/hook", ""),
        ("", SECRET),
        ("ftp://example.com", SECRET),
        ("https://", SECRET),
        ("https://example.com/hook", "password"),
        ("https://example.com/hook", "whsec_c2hvcnQ="),
        ("https://example.com/hook", "whsec_not base64 at all, not base64 at all"),
    ],
)
def test_wrong_settings_are_refused(url: str, secret: str) -> None:
    """At the worker's start, by the variable's name and without its value."""
    with pytest.raises(ValueError, match="TURNKEEPER_WEBHOOK") as refused:
        Webhook.from_environment({notify.URL: url, notify.SECRET: secret})
    assert not secret or secret not in str(refused.value)


def test_without_settings_there_is_none() -> None:
    """The default; and what is shown of one is its host."""
    assert Webhook.from_environment({}) is None
    made = Webhook.from_environment({notify.URL: f"https://a.example{PATH}", notify.SECRET: SECRET})
    assert made is not None
    assert (made.host, repr(made)) == ("a.example", "Webhook()")


# --- the receiver's side --------------------------------------------------------------------------


def test_the_scheme_is_that_of_standard_webhooks() -> None:
    """The example of its specification's libraries, so that any of them can verify ours."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body)
    assert headers[SIGNATURE] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    told = verify(secret, headers, body, now=1_614_265_330)
    assert told == {"test": 2_432_232_314}


def test_several_signatures_and_headers_in_any_case() -> None:
    """While a secret is replaced there are two; servers spell headers as they like."""
    headers = signed_headers(SECRET, "n1", NOW, b"{}")
    headers[SIGNATURE] = f"v1,bm9uZQ== {headers[SIGNATURE]}"
    assert verify(SECRET, {k.upper(): v for k, v in headers.items()}, b"{}", now=NOW + 299) == {}


@pytest.mark.parametrize(
    ("changed", "body", "late"),
    [
        ({}, b'{"a":2}', 0),
        ({ID: "another"}, b'{"a":1}', 0),
        ({TIMESTAMP: str(NOW + 1)}, b'{"a":1}', 0),
        ({SIGNATURE: "v1,bm9uZQ=="}, b'{"a":1}', 0),
        ({SIGNATURE: "v1,\u00e4"}, b'{"a":1}', 0),
        ({SIGNATURE: ""}, b'{"a":1}', 0),
        ({SIGNATURE: "v1,\udc80"}, b'{"a":1}', 0),
        ({ID: "\udc80"}, b'{"a":1}', 0),
        ({TIMESTAMP: "soon"}, b'{"a":1}', 0),
        ({TIMESTAMP: "9" * 400}, b'{"a":1}', 0),
        ({TIMESTAMP: "-" + "9" * 5_000}, b'{"a":1}', 0),
        ({TIMESTAMP: f" {NOW}"}, b'{"a":1}', 0),
        ({}, b'{"a":1}', 301),
        ({}, b'{"a":1}', -301),
    ],
)
def test_what_is_not_genuine_or_old_is_refused(
    changed: dict[str, str], body: bytes, late: float
) -> None:
    """Another body, id, time or signature, one that is missing, and a recording played again."""
    headers = signed_headers(SECRET, "n1", NOW, b'{"a":1}') | changed
    with pytest.raises(NoticeRefused):
        verify(SECRET, headers, body, now=NOW + late)


@given(
    st.dictionaries(
        st.sampled_from([ID, TIMESTAMP, SIGNATURE, SIGNATURE.upper()]),
        st.text(st.characters()) | st.integers().map(str) | st.just(str(NOW)),
    ),
    st.binary(),
)
def test_whatever_anybody_sends_is_refused(changed: dict[str, str], body: bytes) -> None:
    """Without the secret nothing else is raised, lone surrogates and huge numbers included."""
    headers = signed_headers(SECRET, "n1", NOW, b"another body") | changed
    with pytest.raises(NoticeRefused):
        verify(SECRET, headers, body, now=NOW)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"a":' + b"9" * 5_000])
def test_a_signed_body_that_is_no_notice_is_refused(body: bytes) -> None:
    """Whoever has the secret may still send nonsense."""
    with pytest.raises(NoticeRefused):
        verify(SECRET, signed_headers(SECRET, "n1", NOW, body), body, now=NOW)


def test_a_missing_header_or_another_secret_is_refused() -> None:
    """The control: with all of them, and the right secret, it is taken."""
    headers = signed_headers(SECRET, "n1", NOW, b'{"a":1}')
    assert verify(SECRET, headers, b'{"a":1}', now=NOW) == {"a": 1}
    for name in (ID, TIMESTAMP, SIGNATURE):
        some = {k: v for k, v in headers.items() if k != name}
        with pytest.raises(NoticeRefused):
            verify(SECRET, some, b'{"a":1}', now=NOW)
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    with pytest.raises(NoticeRefused):
        verify(other, headers, b'{"a":1}', now=NOW)


async def test_a_start_by_hand_ends_by_name(rig: RigFactory, client: Client) -> None:
    """A delivery of what is no notice fails, and wedges nothing."""
    async with rig([]) as r:
        handle = await r.start_raw({"not": "a notice"}, workflow=NOTICE)
        with pytest.raises(Exception, match="failed"):
            await handle.result()
        assert await r.task_failures() == 0

"""The provider as a process of its own, and the log it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import turnkeeper.testing
from turnkeeper.testing import ScriptedProvider, cut, read_log, status, text

ROOT = Path(turnkeeper.testing.__file__).parents[2]
SCRIPT = """
    from turnkeeper.testing import call, text

    script = [
        [text("slow", delay=60), text("quick")],
        lambda exchange: text("x" * 100_000, chunk=10),
    ]
"""
HELLO = {"role": "user", "content": "hello"}


def ask(url: str, *messages: dict[str, Any], **options: Any) -> httpx2.Response:
    """Send a request."""
    fields = options.pop("fields", {})
    return httpx2.post(
        f"{url}/v1/messages",
        json={"model": "m", "max_tokens": 10, "messages": list(messages) or [HELLO], **fields},
        headers={"x-api-key": "sk-very-secret", "anthropic-version": "2026-10-21"},
        **options,
    )


Launch = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts providers with the script above; ends those that still run."""
    (tmp_path / "story.py").write_text(textwrap.dedent(SCRIPT))
    children: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "turnkeeper.testing.provider", "--script", "story:script"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
        child = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment
        )
        children.append(child)
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        assert ready["pid"] == child.pid
        return child, ready["url"]

    yield start
    for child in children:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process(launch: Launch, tmp_path: Path, number: signal.Signals) -> None:
    """It says where it listens, on standard output and in the ready file, serves, and ends with
    exit code 0 on a signal."""
    child, url = launch("--port", "0", "--ready-file", str(tmp_path / "ready"), "--no-fsync")
    assert json.loads((tmp_path / "ready").read_text()) == {"url": url, "pid": child.pid}
    answer = ask(url, HELLO, {"role": "assistant", "content": "x"}, HELLO)
    assert len(answer.json()["content"][0]["text"]) == 100_000
    child.send_signal(number)
    assert child.wait(30) == 0


def test_process_ends_with_its_parent(launch: Launch) -> None:
    """It ends when the process it was told to watch is gone."""
    parent = subprocess.Popen(["sleep", "60"])
    child, _ = launch("--parent-pid", str(parent.pid))
    parent.kill()
    assert child.wait(30) == 0
    parent.wait()


@pytest.mark.crash
def test_log_survives_a_kill(launch: Launch, tmp_path: Path) -> None:
    """After kill -9 every request that was answered, and the one being answered, is in the log;
    a provider started again on it counts on from there."""
    log = tmp_path / "log"
    child, url = launch("--log", str(log))
    long = [HELLO, {"role": "assistant", "content": "x"}, HELLO]
    for _ in range(20):
        ask(url, *long)
    with pytest.raises(httpx2.TimeoutException):
        ask(url, timeout=0.5)
    deadline = time.monotonic() + 5
    while len(read_log(log)) < 21 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    child.wait()

    records = read_log(log)
    assert [record.arrival for record in records] == list(range(1, 22))
    assert [record.turn for record in records] == [1] * 20 + [0]
    assert [record.repeat for record in records] == [*range(20), 0]
    assert {record.outcome for record in records[:20]} == {"sent"}

    _, url = launch("--log", str(log))
    assert ask(url).json()["content"][0]["text"] == "quick"
    last = read_log(log)[-1]
    assert (last.arrival, last.repeat, last.turn) == (22, 1, 0)


def test_record(tmp_path: Path) -> None:
    """A record tells what was asked, what was answered by which step, and how the reply ended; the
    file and the provider tell the same."""
    log = tmp_path / "log"
    script = [[cut(text("y"), at=5), status(529), text("ok")]]
    with ScriptedProvider(script, log=log) as provider:
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(provider.url, fields={"metadata": {"user_id": "u"}})
        ask(provider.url, fields={"metadata": {"user_id": "u"}})
        ask(provider.url, fields={"metadata": {"user_id": "u"}})
        ask(provider.url, fields={"max_tokens": 0})
        kept = provider.requests
    first, second, third, fourth = records = read_log(log)
    assert records == kept
    assert first.step == "text cut:close"
    assert (first.sent, first.outcome, first.status) == (5, "cut:close", 200)
    assert (second.step, second.status, second.repeat) == ("status:529", 529, 1)
    assert (third.step, third.turn, third.repeat, third.stream) == ("text", 0, 2, False)
    assert (third.model, third.messages, third.prompt) == ("m", 1, "hello")
    assert third.metadata == {"user_id": "u"}
    assert third.tokens == 10
    assert third.digest == first.digest != fourth.digest
    assert third.body is None
    assert (fourth.turn, fourth.messages) == (0, 1)
    assert (fourth.status, fourth.rule, fourth.step) == (400, "max_tokens_minimum", None)
    assert abs(fourth.time - time.time()) < 60


def test_bodies_on_request(tmp_path: Path) -> None:
    """Bodies are kept only if asked for; the key never is."""
    for log_bodies in (False, True):
        log = tmp_path / f"log-{log_bodies}"
        with ScriptedProvider([text("x")], log=log, log_bodies=log_bodies) as provider:
            ask(provider.url, fields={"system": "be brief"})
        (record,) = read_log(log)
        assert (record.body is not None) == log_bodies
        if log_bodies:
            assert record.body["system"] == "be brief"
        assert "secret" not in log.read_text()


def test_request_line_precedes_the_reply(tmp_path: Path) -> None:
    """The request is in the file before the first byte of its reply."""
    log = tmp_path / "log"
    with (
        ScriptedProvider([text("x" * 1000, delay_between=0.05)], log=log) as provider,
        httpx2.stream(
            "POST",
            f"{provider.url}/v1/messages",
            json={"model": "m", "max_tokens": 10, "messages": [HELLO], "stream": True},
            headers={"x-api-key": "any", "anthropic-version": "2026-10-21"},
        ) as response,
    ):
        next(response.iter_raw())
        (record,) = read_log(log)
        assert (record.step, record.outcome) == ("text", None)


def test_torn_line(tmp_path: Path) -> None:
    """The half line of a killed process is passed over, and does not swallow the next one."""
    log = tmp_path / "log"
    with ScriptedProvider([text("x")], log=log) as provider:
        ask(provider.url)
    with log.open("a") as file:
        file.write('{"event": "request", "arrival": 2, "ti')
    assert len(read_log(log)) == 1
    with ScriptedProvider([text("x")], log=log) as provider:
        ask(provider.url)
    assert [record.arrival for record in read_log(log)] == [1, 2]


def test_importing_is_cheap() -> None:
    """The test kit and the provider load neither the SDK nor Temporal."""
    code = (
        "import sys, turnkeeper.testing.provider\n"
        "sys.exit(any(name in sys.modules for name in ('anthropic', 'temporalio', 'httpx2')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

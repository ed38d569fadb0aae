"""The effect ledger: what it applies, what it records, and that it records before it replies."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.testing import AsyncEffects, EffectLedger, Effects
from turnkeeper.testing.effects import (
    EffectConflict,
    EffectError,
    Receipt,
    read_arrivals,
    read_probes,
    start_ledger,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[EffectLedger]:
    """A ledger in this process."""
    with EffectLedger(tmp_path / "effects.db") as running:
        yield running


@pytest.fixture
def effects(ledger: EffectLedger) -> Effects:
    """A client of it."""
    return Effects(ledger.url)


def ask(ledger: EffectLedger, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Send a request by another client than ours."""
    connection = http.client.HTTPConnection(ledger.host, ledger.port, timeout=10)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a_plain_effect_is_applied_at_each_arrival(ledger: EffectLedger, effects: Effects) -> None:
    """Two equal POSTs are two effects with two receipts."""
    before = time.time()
    first, second = (effects.plain("email", {"to": "a"}) for _ in range(2))
    assert (first, second) == (Receipt("email-1", 1, False), Receipt("email-2", 2, False))
    rows = effects.rows()
    assert rows == ledger.arrivals() == ledger.effects()
    assert [(row.arrival, row.kind, row.name, row.key) for row in rows] == [
        (1, "plain", "email", None),
        (2, "plain", "email", None),
    ]
    assert rows[0].body == {"to": "a"}
    assert before <= rows[0].time <= rows[1].time <= time.time()


def test_a_keyed_effect_is_applied_once(ledger: EffectLedger, effects: Effects) -> None:
    """A repeat gets the first receipt and is told so; both arrivals are rows, one is applied."""
    first = effects.keyed("refund", "k", {"order": 7, "amount": "1.50"})
    again = effects.keyed("refund", "k", {"amount": "1.50", "order": 7})
    assert (first.repeated, again.repeated) == (False, True)
    assert (again.receipt, again.arrival) == (first.receipt, first.arrival)
    rows = ledger.arrivals()
    assert [(row.key, row.applied, row.status) for row in rows] == [
        ("k", True, 200),
        ("k", False, 200),
    ]
    assert rows[0].digest == rows[1].digest
    assert [row.arrival for row in ledger.effects()] == [1]


@pytest.mark.parametrize(
    ("one", "other"), [({"n": 1}, {"n": 2}), ({"n": 1}, {"n": 1.0}), ([1, 2], [2, 1])]
)
def test_a_key_with_another_body_is_a_conflict(
    effects: Effects, ledger: EffectLedger, one: Any, other: Any
) -> None:
    """It is answered 409 and recorded; nothing is applied, and the first body goes on to count."""
    effects.keyed("refund", "k", one)
    with pytest.raises(EffectConflict, match="another body") as caught:
        effects.keyed("refund", "k", other)
    assert caught.value.status == 409
    assert effects.keyed("refund", "k", one).repeated
    assert [(row.applied, row.status) for row in ledger.arrivals()] == [
        (True, 200),
        (False, 409),
        (False, 200),
    ]


def test_keys_belong_to_a_name(effects: Effects) -> None:
    """The same key for two names is two effects."""
    assert not effects.keyed("refund", "k", 1).repeated
    assert not effects.keyed("email", "k", 2).repeated


def test_simultaneous_repeats_are_applied_once(ledger: EffectLedger, effects: Effects) -> None:
    """Of 40 requests at once with 4 keys, one of each key is applied."""
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda n: effects.keyed("refund", f"k{n % 4}", n % 4), range(40)))
    assert len({receipt.receipt for receipt in found}) == 4
    assert sum(not receipt.repeated for receipt in found) == 4
    assert [row.arrival for row in ledger.arrivals()] == list(range(1, 41))
    assert sorted(str(row.key) for row in ledger.effects()) == ["k0", "k1", "k2", "k3"]


def test_the_database_itself_refuses_a_second_effect(
    ledger: EffectLedger, effects: Effects
) -> None:
    """The oracle does not rest on its own code alone: a unique index guards the keys."""
    effects.keyed("refund", "k", 1)
    with sqlite3.connect(ledger.database) as other, pytest.raises(sqlite3.IntegrityError):
        other.execute(
            "INSERT INTO arrivals SELECT 9, kind, name, key, digest, body, time, 1, 200,"
            " receipt, behaviour FROM arrivals"
        )


def test_receipts_do_not_depend_on_what_came_before(tmp_path: Path) -> None:
    """A run with faults gets the receipts of the run without: they follow from the key."""
    found = []
    for name, before in (("control", 0), ("faulted", 3)):
        with EffectLedger(tmp_path / name) as ledger:
            for _ in range(before):
                Effects(ledger.url).plain("other", None)
            found.append(Effects(ledger.url).keyed("refund", "k", 1).receipt)
    assert found[0] == found[1]


def test_the_probe_says_what_has_landed(ledger: EffectLedger, effects: Effects) -> None:
    """Landed with the receipt, or not; the probe is recorded, with the arrivals before it."""
    key = "run/1 a?b"
    assert effects.probe("refund", key) is None
    receipt = effects.keyed("refund", key, 1)
    assert effects.probe("refund", key) == Receipt(receipt.receipt, receipt.arrival, True)
    assert effects.probe("email", key) is None
    probes = [(probe.name, probe.key, probe.after, probe.landed) for probe in ledger.probes()]
    assert probes == [
        ("refund", key, 0, False),
        ("refund", key, 1, True),
        ("email", key, 1, False),
    ]
    assert effects.probes() == ledger.probes() == read_probes(ledger.database)
    assert len(ledger.arrivals()) == 1


def test_a_probed_effect_is_applied_at_each_arrival(ledger: EffectLedger, effects: Effects) -> None:
    """Its key prevents nothing: who sends it twice without asking has applied it twice."""
    assert effects.landed("pickup", "k") is None
    first, again = (effects.probed("pickup", "k", {"order": 7}) for _ in range(2))
    assert (first.repeated, again.repeated) == (False, False)
    assert [(row.kind, row.key, row.applied) for row in ledger.effects()] == [
        ("probed", "k", True),
        ("probed", "k", True),
    ]
    assert effects.landed("pickup", "k") == Receipt(first.receipt, 1, True)
    assert [(p.name, p.after, p.landed) for p in ledger.probes()] == [
        ("pickup", 0, False),
        ("pickup", 2, True),
    ]


def test_a_probe_tells_the_kinds_apart(effects: Effects) -> None:
    """A keyed effect of the same name and key is another one."""
    effects.keyed("pickup", "k", 1)
    assert effects.landed("pickup", "k") is None
    assert effects.probe("pickup", "k") is not None


def test_a_probed_effect_needs_a_key(ledger: EffectLedger) -> None:
    """Without one nobody could ask for it."""
    status, answer = ask(ledger, "POST", "/probed/pickup", b"1")
    assert (status, ledger.effects()) == (400, [])
    assert "Idempotency-Key" in answer["error"]


def test_what_is_no_effect_is_recorded_and_not_applied(ledger: EffectLedger) -> None:
    """A body that is no JSON and a missing key are answered 400; even they are arrivals."""
    for body in (b"", b"{", b"NaN", b"[" * 100_000, b'"' + b"x" * (1 << 20) + b'"'):
        assert ask(ledger, "POST", "/plain/email", body)[0] == 400
    assert ask(ledger, "POST", "/keyed/refund", b"{}") == (
        400,
        {"error": "a keyed effect needs the header Idempotency-Key"},
    )
    assert [row.status for row in ledger.arrivals()] == [400] * 6
    assert ledger.effects() == []


def test_dumps(ledger: EffectLedger, effects: Effects) -> None:
    """`/arrivals` has every POST, `/effects` those that were applied; nothing else exists."""
    effects.keyed("refund", "k", {"order": 7})
    effects.keyed("refund", "k", {"order": 7})
    status, arrivals = ask(ledger, "GET", "/arrivals")
    assert status == 200
    assert [row["applied"] for row in arrivals] == [True, False]
    assert ask(ledger, "GET", "/effects")[1] == arrivals[:1]
    assert arrivals[0]["body"] == {"order": 7}
    assert ask(ledger, "GET", "/other")[0] == 404
    assert ask(ledger, "DELETE", "/arrivals")[0] == 404


def test_a_connection_serves_many_requests(ledger: EffectLedger) -> None:
    """The ledger keeps connections alive for clients that do."""
    connection = http.client.HTTPConnection(ledger.host, ledger.port, timeout=10)
    ends = set()
    for _ in range(3):
        connection.request("POST", "/plain/email", b"{}")
        ends.add(connection.sock.getsockname())
        assert connection.getresponse().read()
    connection.close()
    assert len(ends) == 1


def test_fail(ledger: EffectLedger, effects: Effects) -> None:
    """`fail` applies nothing, so that a retry is the first effect."""
    with pytest.raises(EffectError, match="503: told to fail=503"):
        effects.keyed("refund", "k", 1, behaviour="fail=503")
    assert not effects.keyed("refund", "k", 1).repeated
    assert [(row.applied, row.behaviour) for row in ledger.arrivals()] == [
        (False, "fail=503"),
        (True, None),
    ]


def test_apply_then_fail(effects: Effects) -> None:
    """The effect has landed, whatever the status says."""
    with pytest.raises(EffectError) as caught:
        effects.keyed("refund", "k", 1, behaviour="apply-then-fail=500")
    assert caught.value.status == 500
    assert effects.keyed("refund", "k", 1).repeated


def test_apply_then_drop(ledger: EffectLedger, effects: Effects) -> None:
    """The client loses the connection, the effect has landed and is recorded as such."""
    with pytest.raises(ConnectionError):
        effects.plain("email", 1, behaviour="apply-then-drop")
    (row,) = ledger.effects()
    assert (row.status, row.behaviour) == (200, "apply-then-drop")


async def test_apply_then_hang(ledger: EffectLedger) -> None:
    """The client waits for its whole timeout; the row is there long before."""
    waiting = asyncio.ensure_future(
        AsyncEffects(ledger.url, timeout=1).plain("email", 1, behaviour="apply-then-hang")
    )
    await asyncio.sleep(0.5)
    assert len(ledger.effects()) == 1
    assert not waiting.done()
    with pytest.raises(TimeoutError):
        await waiting


def test_delay(ledger: EffectLedger, effects: Effects) -> None:
    """The effect lands at once, its reply comes later; other requests do not wait for it."""
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        slow = pool.submit(effects.keyed, "refund", "k", 1, behaviour="delay=3")
        while not ledger.effects():
            time.sleep(0.01)
        assert effects.keyed("refund", "k", 1).repeated
        assert time.monotonic() - began < 3
        assert not slow.result().repeated
        assert time.monotonic() - began >= 3


def test_behaviour_is_planned_for_the_next_requests_of_a_name(
    ledger: EffectLedger, effects: Effects
) -> None:
    """A test plans it beside the tool, which knows nothing of it: in order, and so often."""
    ledger.behave("refund", "fail=503", times=2)
    effects.behave("refund", "fail=429")
    effects.plain("email", 1)
    found = []
    for _ in range(3):
        with pytest.raises(EffectError) as caught:
            effects.keyed("refund", "k", 1)
        found.append(caught.value.status)
    assert found == [503, 503, 429]
    assert not effects.keyed("refund", "k", 1).repeated


@pytest.mark.parametrize("behaviour", ["explode", "delay=soon", "delay=-1", "delay=nan", "fail=7"])
def test_an_unknown_behaviour_is_an_error(
    ledger: EffectLedger, effects: Effects, behaviour: str
) -> None:
    """Otherwise a test with a spelling mistake would pass without its fault."""
    with pytest.raises(ValueError, match=r"behaviour|float"):
        ledger.behave("refund", behaviour)
    with pytest.raises(EffectError, match="400"):
        effects.behave("refund", behaviour)
    with pytest.raises(EffectError, match="400"):
        effects.plain("refund", 1, behaviour=behaviour)
    assert ledger.arrivals() == []


async def test_the_asynchronous_client_does_the_same(ledger: EffectLedger) -> None:
    """Every method, and the same errors."""
    effects = AsyncEffects(ledger.url)
    assert await effects.probe("refund", "k") is None
    receipt = await effects.keyed("refund", "k", {"n": 1})
    assert (await effects.keyed("refund", "k", {"n": 1})).repeated
    assert (await effects.probe("refund", "k")) == Receipt(receipt.receipt, 1, True)
    with pytest.raises(EffectConflict):
        await effects.keyed("refund", "k", {"n": 2})
    with pytest.raises(ConnectionError):
        await effects.plain("email", 1, behaviour="apply-then-drop")
    assert await effects.landed("pickup", "k") is None
    booked = await effects.probed("pickup", "k", 1)
    assert (await effects.landed("pickup", "k")) == Receipt(booked.receipt, 5, True)
    assert [row.status for row in await effects.rows()] == [200, 200, 409, 200, 200]


def test_a_client_never_retries(ledger: EffectLedger, effects: Effects) -> None:
    """One call is one arrival, whatever comes of it."""
    for behaviour in ("fail=503", "apply-then-drop", "apply-then-fail=500"):
        with pytest.raises((EffectError, ConnectionError)):
            effects.plain("email", 1, behaviour=behaviour)
    assert len(ledger.arrivals()) == 3


def test_a_refused_connection_is_told_apart(tmp_path: Path) -> None:
    """ConnectionRefusedError says that nothing was sent: a tool may try again."""
    with EffectLedger(tmp_path / "effects.db") as ledger:
        url = ledger.url
    with pytest.raises(ConnectionRefusedError):
        Effects(url).plain("email", 1)


def test_a_ledger_continues_its_database(tmp_path: Path) -> None:
    """Keys are known and numbers count on; the rows can be read while nobody serves them."""
    database = tmp_path / "effects.db"
    with EffectLedger(database) as ledger:
        Effects(ledger.url).keyed("refund", "k", 1)
    assert [row.key for row in read_arrivals(database)] == ["k"] == [ledger.effects()[0].key]
    with EffectLedger(database) as ledger:
        again = Effects(ledger.url).keyed("refund", "k", 1)
    assert (again.repeated, again.arrival) == (True, 1)
    assert [row.arrival for row in read_arrivals(database)] == [1, 2]


def test_a_missing_database_is_not_an_empty_one(tmp_path: Path) -> None:
    """A checker with a wrong path must not find a world in which nothing happened."""
    with pytest.raises(sqlite3.OperationalError):
        read_arrivals(tmp_path / "no.db")
    assert not (tmp_path / "no.db").exists()


def test_every_commit_is_synced(ledger: EffectLedger) -> None:
    """The connection that writes is at synchronous=FULL (2)."""
    assert ledger._book._database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_loopback_only(tmp_path: Path) -> None:
    """An open ledger is not offered to the network."""
    with pytest.raises(ValueError, match="loopback"):
        EffectLedger(tmp_path / "effects.db", host="0.0.0.0")  # noqa: S104 it is refused


def test_a_taken_port_is_an_error(ledger: EffectLedger, tmp_path: Path) -> None:
    """Two ledgers on one port would each see half of the world."""
    second = EffectLedger(tmp_path / "second.db", port=ledger.port)
    with pytest.raises(OSError, match="in use"):
        second.start()
    second.stop()


@pytest.mark.crash
def test_as_a_process(tmp_path: Path) -> None:
    """It serves from a process of its own; what it has acknowledged survives its SIGKILL."""
    child, url = start_ledger(tmp_path)
    try:
        receipts = [Effects(url).keyed("refund", f"k{n}", n) for n in range(20)]
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    finally:
        child.end()
    rows = read_arrivals(tmp_path / "effects.db")
    assert [row.receipt for row in rows] == [receipt.receipt for receipt in receipts]
    child, url = start_ledger(tmp_path)
    try:
        assert Effects(url).keyed("refund", "k3", 3).repeated
    finally:
        child.end()
    assert child.status == 0


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """With `--parent-pid` it ends with exit code 0 when that process is gone."""
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = [sys.executable, "-m", "turnkeeper.testing.effects", "--parent-pid", str(parent.pid)]
    child = subprocess.Popen(
        [*command, "--database", str(tmp_path / "effects.db")],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert child.stdout is not None
    with child.stdout as output:
        ready = json.loads(output.readline())
        assert ready["pid"] == child.pid
        Effects(ready["url"]).plain("email", 1)
        parent.kill()
        parent.communicate()
        assert child.wait(30) == 0


def test_importing_is_cheap() -> None:
    """A tool that uses the client loads neither the SDK nor Temporal."""
    code = (
        "import sys; from turnkeeper.testing import Effects\n"
        "sys.exit(any(name in sys.modules for name in ('anthropic', 'temporalio', 'httpx2')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

"""The fault proxy: what each fault does to real connections, and that it is witnessed."""

from __future__ import annotations

import asyncio
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import KeepAliveConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from turnkeeper.testing import EffectLedger, Effects, FaultProxy, ScriptedProvider, text
from turnkeeper.testing.effects import Receipt
from turnkeeper.testing.embedded import EmbeddedServer
from turnkeeper.testing.loopback import LoopbackServer
from turnkeeper.testing.proxy import ProxyError


class Echo(LoopbackServer):
    """Sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0)
        self.heard = b""

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.heard += data
            writer.write(data)
            await writer.drain()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """An upstream without any protocol."""
    with Echo() as running:
        yield running


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    """A proxy before the echo."""
    with FaultProxy(echo.host, echo.port) as running:
        yield running


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[EffectLedger]:
    """An upstream that knows what has reached it."""
    with EffectLedger(tmp_path / "effects.db") as running:
        yield running


def dial(proxy: FaultProxy, timeout: float = 5) -> socket.socket:
    """Connect."""
    return socket.create_connection((proxy.host, proxy.port), timeout)


def said(connection: socket.socket, data: bytes) -> bytes:
    """Send something, and hear it back in full, or as much as comes."""
    connection.sendall(data)
    return hears(connection, len(data))


def hears(connection: socket.socket, size: int) -> bytes:
    """The next `size` bytes, or as much as comes."""
    heard = b""
    while len(heard) < size and (piece := connection.recv(size - len(heard))):
        heard += piece
    return heard


def hears_nothing(connection: socket.socket, seconds: float = 0.3) -> bool:
    """Whether nothing comes for a while."""
    connection.settimeout(seconds)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# --- any protocol -----------------------------------------------------------------------------


def test_it_passes(echo: Echo, proxy: FaultProxy) -> None:
    """Without a fault every byte passes, both ways, and is counted; nothing is witnessed."""
    data = bytes(range(256)) * 8_000
    with ThreadPoolExecutor(2) as pool, dial(proxy) as one:
        sending = pool.submit(one.sendall, data)
        heard = b""
        while len(heard) < len(data):
            heard += one.recv(1 << 16)
        sending.result()
        with dial(proxy) as two:
            assert said(two, b"two") == b"two"
    assert heard == data
    assert (proxy.connections, proxy.bytes_up, proxy.bytes_down) == (2, *[len(data) + 3] * 2)
    assert proxy.injections == []


def test_a_half_closed_connection_is_answered(proxy: FaultProxy) -> None:
    """The end of one direction leaves the other one open."""
    with dial(proxy) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b"last"
        assert connection.recv(10) == b""


def test_an_upstream_that_is_not_there_ends_the_connection() -> None:
    """A client finds its connection reset."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        pytest.raises(ConnectionResetError),
        dial(proxy) as connection,
    ):
        connection.recv(1)


def test_delay(proxy: FaultProxy) -> None:
    """Every chunk takes so much longer each way, side by side; after `heal` none does."""
    with dial(proxy) as connection:
        proxy.delay(200)
        began = time.monotonic()
        connection.sendall(b"a")
        time.sleep(0.1)
        assert said(connection, b"b") == b"a"
        assert time.monotonic() - began >= 0.4
        assert connection.recv(1) == b"b"
        assert time.monotonic() - began >= 0.5
        proxy.delay(20_000)
        proxy.heal()
        began = time.monotonic()
        assert said(connection, b"c") == b"c"
        assert time.monotonic() - began < 10
    assert proxy.injected == {"delay": 1}


def test_delayed_bytes_arrive_after_their_sender_is_gone(echo: Echo, proxy: FaultProxy) -> None:
    """A client that gave up meets an upstream that acts later: the network does that too."""
    proxy.delay(300)
    with dial(proxy) as connection:
        connection.sendall(b"late")
    assert echo.heard == b""
    assert within(30, lambda: echo.heard == b"late")


def test_throttle(proxy: FaultProxy) -> None:
    """Bytes pass at the rate that was asked for, down to one in a while."""
    proxy.throttle(10_000)
    with dial(proxy) as connection:
        began = time.monotonic()
        assert said(connection, b"x" * 5_000) == b"x" * 5_000
        assert time.monotonic() - began >= 0.4
        proxy.throttle(10)
        began = time.monotonic()
        assert said(connection, b"abc") == b"abc"
        assert time.monotonic() - began >= 0.2
    assert proxy.injected["throttle"] == 2


@pytest.mark.parametrize("how", ["close", "reset"])
def test_cut(proxy: FaultProxy, how: Any) -> None:
    """A connection ends when so many bytes have passed, old and new ones, so many times."""
    with dial(proxy) as old:
        assert said(old, b"before") == b"before"
        proxy.cut(4, how=how, times=2)
        for connection in (old, dial(proxy)):
            if how == "close":
                assert said(connection, b"123456") == b"1234"
            else:
                with pytest.raises(ConnectionResetError):
                    said(connection, b"123456")
            connection.close()
    with dial(proxy) as third:
        assert said(third, b"123456") == b"123456"
    assert [(i.kind, i.connection, i.detail) for i in proxy.injections] == [
        ("cut", 1, f"{how} down"),
        ("cut", 2, f"{how} down"),
    ]
    assert abs(proxy.injections[0].time - time.time()) < 60


def test_cut_before_the_upstream(echo: Echo, proxy: FaultProxy) -> None:
    """Upwards at 0, not one byte arrives."""
    proxy.cut(0, direction="up")
    with dial(proxy) as connection:
        assert said(connection, b"never") == b""
    assert echo.heard == b""


def test_hold(echo: Echo, proxy: FaultProxy) -> None:
    """A direction stands still, the other passes; after `heal` all of it arrives, in order."""
    with dial(proxy) as connection:
        proxy.hold("down")
        connection.sendall(b"one ")
        assert within(30, lambda: echo.heard == b"one ")
        assert hears_nothing(connection)
        proxy.hold()
        connection.sendall(b"two")
        assert hears_nothing(connection)
        assert echo.heard == b"one "
        proxy.heal()
        assert said(connection, b"one two") == b"one two"
        assert within(30, lambda: echo.heard == b"one twoone two")
    assert proxy.injected["hold"] >= 1


def test_black_hole(echo: Echo, proxy: FaultProxy) -> None:
    """Old and new connections swallow bytes, both ways; `heal` resets them, and them alone."""
    with dial(proxy) as idle, dial(proxy) as old:
        assert said(idle, b"1") == said(old, b"1") == b"1"
        proxy.black_hole()
        with dial(proxy) as new:
            for connection in (old, new):
                connection.sendall(b"swallowed")
                assert hears_nothing(connection)
            proxy.heal()
            for connection in (old, new):
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
        assert said(idle, b"2") == b"2"
    assert echo.heard == b"112"
    assert proxy.injected == {"black_hole": 2}


def test_refuse(proxy: FaultProxy) -> None:
    """Old connections are reset, new ones refused; `heal` listens on the same port again."""
    with dial(proxy) as old:
        assert said(old, b"1") == b"1"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            old.recv(1)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
    proxy.heal()
    with dial(proxy) as new:
        assert said(new, b"1") == b"1"
    assert [(i.kind, i.connection) for i in proxy.injections] == [("refuse", 0), ("refuse", 1)]


class Greeter(Echo):
    """Speaks first, as SMTP servers do."""

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await super()._connection(reader, writer)


def test_a_greeting_is_no_reply() -> None:
    """What an upstream says first passes; the first request after it loses its answer."""
    with Greeter() as greeter, FaultProxy(greeter.host, greeter.port) as proxy:
        proxy.drop_reply(b"one")
        with dial(proxy) as connection:
            assert hears(connection, 5) == b"hello"
            with pytest.raises(ConnectionResetError):
                said(connection, b"one")
        assert greeter.heard == b"one"
        assert proxy.injected == {"drop_reply": 1}


def test_waiting_for_a_fault_has_a_bound(proxy: FaultProxy) -> None:
    """A fault that never hits is an error, with the count: without a witness a test is void."""
    with pytest.raises(ProxyError, match="cut hit 0 of 2 times"):
        proxy.wait_for("cut", 2, timeout=0.1)


def test_a_match_that_raises_is_not_silent(echo: Echo) -> None:
    """The connection ends, and so does the test: at the end of `with`."""
    proxy = FaultProxy(echo.host, echo.port).start()
    proxy.drop_reply(lambda _: bool(1 // 0))
    with dial(proxy) as connection, pytest.raises(ConnectionResetError):
        said(connection, b"x")
    with pytest.raises(ProxyError, match="connection 1: ZeroDivisionError"):
        proxy.__exit__(None, None, None)


def test_faults_need_a_running_proxy(echo: Echo) -> None:
    """A fault for nobody would be a test without a fault."""
    with pytest.raises(RuntimeError, match="does not run"):
        FaultProxy(echo.host, echo.port).delay(1)


async def test_it_serves_while_the_caller_is_busy(echo: Echo) -> None:
    """It has a thread of its own: blocking calls in a coroutine pass through it."""
    async with FaultProxy(echo.host, echo.port) as proxy:
        with dial(proxy) as connection:
            assert said(connection, b"x") == b"x"


# --- HTTP/1.1 ---------------------------------------------------------------------------------


def test_a_dropped_reply_was_acted_upon(ledger: EffectLedger) -> None:
    """The effect has landed, its client knows nothing, and the repeat gets the receipt: with a
    key exactly one effect, without one as many as there were attempts."""
    with FaultProxy(ledger.host, ledger.port) as proxy:
        effects = Effects(proxy.url)
        for number in range(20):
            proxy.drop_reply(b"POST /keyed/refund")
            assert effects.plain("email", number).arrival
            with pytest.raises(ConnectionError):
                effects.keyed("refund", f"k{number}", number)
            (landed,) = [row for row in ledger.effects() if row.key == f"k{number}"]
            again = effects.keyed("refund", f"k{number}", number)
            assert again == Receipt(str(landed.receipt), landed.arrival, True)
        drops = proxy.wait_for("drop_reply", 20)
    assert {drop.detail for drop in drops} == {"POST /keyed/refund HTTP/1.1"}
    assert proxy.injected == {"drop_reply": 20}


def test_requests_of_one_connection_are_told_apart(ledger: EffectLedger) -> None:
    """With keep-alive a match sees the request that is being answered, not those before it."""
    with FaultProxy(ledger.host, ledger.port) as proxy, httpx2.Client() as client:
        proxy.drop_reply(re.compile(rb'"order": ?7'), times=2)

        def post(order: int) -> int:
            return client.post(f"{proxy.url}/plain/refund", json={"order": order}).status_code

        assert [post(order) for order in (1, 2, 3)] == [200] * 3
        assert proxy.connections == 1
        for _ in range(2):
            with pytest.raises(httpx2.TransportError):
                post(7)
        assert [post(order) for order in (7, 8)] == [200] * 2
        assert proxy.injected == {"drop_reply": 2}
    assert [row.body["order"] for row in ledger.effects()] == [1, 2, 3, 7, 7, 7, 8]


def test_of_two_requests_at_once_one_is_meant(ledger: EffectLedger) -> None:
    """`times=1` is once, also while both are unanswered; a drop that hits nobody is given back."""
    with FaultProxy(ledger.host, ledger.port) as proxy, ThreadPoolExecutor(2) as pool:
        proxy.drop_reply(b"POST /plain")
        with pytest.raises(TimeoutError):
            Effects(proxy.url, timeout=0.3).plain("email", 0, behaviour="apply-then-hang")
        assert within(30, lambda: not proxy._links)
        both = [
            pool.submit(Effects(proxy.url).plain, "email", n, behaviour="delay=0.5")
            for n in range(2)
        ]
        broken = [one.exception() for one in both if one.exception() is not None]
        assert [type(error) for error in broken] == [ConnectionResetError]
    assert proxy.injected == {"drop_reply": 1}
    assert len(ledger.effects()) == 3


def test_a_healed_drop_does_not_hit(ledger: EffectLedger) -> None:
    """A request that was marked is answered, if the fault ended before its answer began."""
    with FaultProxy(ledger.host, ledger.port) as proxy, ThreadPoolExecutor(1) as pool:
        proxy.drop_reply()
        slow = pool.submit(Effects(proxy.url).plain, "email", 1, behaviour="delay=0.5")
        assert within(30, lambda: len(ledger.effects()) == 1)
        proxy.heal()
        assert slow.result().receipt == "email-1"
    assert proxy.injections == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_whose_reply_is_dropped_was_paid_for(stream: bool) -> None:
    """The provider has counted the request and answered it; the client sees a broken connection,
    also of a streamed reply. 20 times each, and the next request is answered."""
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"x-api-key": "any", "anthropic-version": "2026-10-21"}
    with (
        ScriptedProvider([[text("x" * 2_000)] * 40]) as provider,
        FaultProxy(provider.host, provider.port) as proxy,
        httpx2.Client(base_url=proxy.url, headers=headers) as client,
    ):
        for _ in range(20):
            proxy.drop_reply(b"POST /v1/messages ")
            with pytest.raises(httpx2.TransportError):
                client.post("/v1/messages", json={**body, "stream": stream})
            assert client.post("/v1/messages", json={**body, "stream": stream}).status_code == 200
        assert proxy.injected == {"drop_reply": 20}
        assert [record.status for record in provider.requests] == [200] * 40


def test_a_generation_cut_in_its_middle() -> None:
    """A streamed reply ends after so many bytes, without a word."""
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"x-api-key": "any", "anthropic-version": "2026-10-21"}
    with (
        ScriptedProvider([text("x" * 2_000)]) as provider,
        FaultProxy(provider.host, provider.port) as proxy,
    ):
        proxy.cut(600)
        with pytest.raises(httpx2.RemoteProtocolError):
            httpx2.post(f"{proxy.url}/v1/messages", json={**body, "stream": True}, headers=headers)
        assert proxy.bytes_down == 600


# --- gRPC -------------------------------------------------------------------------------------

CALLS: list[str] = []


@activity.defn
async def note(name: str) -> str:
    """Count a call."""
    CALLS.append(name)
    return name


@workflow.defn
class Noting:
    """Calls one activity."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Call it."""
        return await workflow.execute_activity(
            note, name, start_to_close_timeout=timedelta(seconds=2)
        )

    @workflow.signal
    def go_on(self) -> None:
        """Do nothing, durably."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A Temporal server for the tests below: their workflows are no agent runs."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("proxied"), port=0) as running:
        yield running


@pytest.fixture
def to_server(server: EmbeddedServer) -> Iterator[FaultProxy]:
    """A proxy before it."""
    host, port = server.address.split(":")
    with FaultProxy(host, int(port)) as running:
        yield running


def new_id() -> str:
    """A workflow id."""
    return f"proxied-{uuid.uuid4().hex[:8]}"


async def events(client: Client, id: str) -> list[EventType.ValueType]:  # noqa: A002
    """The kinds of a run's events."""
    handle = client.get_workflow_handle(id)
    return [event.event_type async for event in handle.fetch_history_events()]


async def test_a_start_whose_answer_is_dropped_starts_one_workflow(
    server: EmbeddedServer, to_server: FaultProxy
) -> None:
    """The SDK's client tries again with the same request id and gets that run. 20 times."""
    direct, proxied = await Client.connect(server.address), await Client.connect(to_server.address)
    for number in range(20):
        id_ = new_id()
        to_server.drop_reply(b"/StartWorkflowExecution")
        handle = await proxied.start_workflow("Noting", id_, id=id_, task_queue="nobody")
        runs = [run async for run in direct.list_workflows(f"WorkflowId = '{id_}'")]
        while not runs:
            await asyncio.sleep(0.05)
            runs = [run async for run in direct.list_workflows(f"WorkflowId = '{id_}'")]
        assert [run.run_id for run in runs] == [handle.first_execution_run_id]
        assert to_server.injected == {"drop_reply": number + 1}
    assert {injection.detail for injection in to_server.injections} == {
        "POST /temporal.api.workflowservice.v1.WorkflowService/StartWorkflowExecution HTTP/2"
    }


async def test_a_signal_whose_answer_is_dropped_is_recorded_once(
    server: EmbeddedServer, to_server: FaultProxy
) -> None:
    """The second request carries the same request id."""
    direct, proxied = await Client.connect(server.address), await Client.connect(to_server.address)
    id_ = new_id()
    await direct.start_workflow("Noting", id_, id=id_, task_queue="nobody")
    to_server.drop_reply(b"/SignalWorkflowExecution")
    await proxied.get_workflow_handle(id_).signal("go_on")
    assert to_server.injected == {"drop_reply": 1}
    kinds = await events(direct, id_)
    assert kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) == 1


async def test_a_completion_whose_answer_is_dropped_is_one_result(
    server: EmbeddedServer, to_server: FaultProxy
) -> None:
    """The worker reports the result again, is told that it is known, and goes on: each activity
    ran once and has one result. The long polls on that connection end with it."""
    direct = await Client.connect(server.address)
    worker_client = await Client.connect(to_server.address)
    queue, path = new_id(), b"/RespondActivityTaskCompleted"
    CALLS.clear()
    async with Worker(
        worker_client,
        task_queue=queue,
        workflows=[Noting],
        activities=[note],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        for number in range(5):
            id_ = new_id()
            to_server.drop_reply(path)
            # Short, since the next task may be handed to a poll on the connection that is gone.
            result = await direct.execute_workflow(
                Noting.run, id_, id=id_, task_queue=queue, task_timeout=timedelta(seconds=1)
            )
            assert result == id_
            await asyncio.to_thread(to_server.wait_for, "drop_reply", number + 1)
            kinds = await events(direct, id_)
            assert kinds.count(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED) == 1
            assert CALLS.count(id_) == 1
    assert to_server.injected == {"drop_reply": 5}


async def test_other_calls_of_a_connection_are_not_meant(
    server: EmbeddedServer, to_server: FaultProxy
) -> None:
    """The paths are compressed and the calls mixed: only the one that matches is dropped."""
    proxied = await Client.connect(to_server.address)
    to_server.drop_reply(lambda request: b"/GetSystemInfo HTTP/2\r\n" in request)
    ids = [new_id() for _ in range(30)]
    await asyncio.gather(
        *(proxied.start_workflow("Noting", id_, id=id_, task_queue="nobody") for id_ in ids)
    )
    assert to_server.connections == 1
    assert to_server.injections == []


async def test_a_partition_heals(server: EmbeddedServer, to_server: FaultProxy) -> None:
    """A client whose connection is a black hole finds out by itself, and starts its run once the
    network is back."""
    direct = await Client.connect(server.address)
    proxied = await Client.connect(
        to_server.address,
        keep_alive_config=KeepAliveConfig(interval_millis=500, timeout_millis=500),
    )
    id_ = new_id()
    to_server.black_hole()
    starting = asyncio.ensure_future(
        proxied.start_workflow(
            "Noting", id_, id=id_, task_queue="nobody", rpc_timeout=timedelta(seconds=20)
        )
    )
    await asyncio.to_thread(to_server.wait_for, "black_hole")
    await asyncio.sleep(1)
    assert not starting.done()
    to_server.heal()
    handle = await starting
    assert (await direct.get_workflow_handle(id_).describe()).run_id == (
        handle.first_execution_run_id
    )

"""The refunds agent in runs through Temporal: whole conversations, and replies that get lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from examples.refunds import carrier, orders
from examples.refunds.agent import agent
from examples.refunds.carrier_service import CarrierService
from examples.refunds.mail_sink import MailSink
from examples.refunds.sample import SAMPLE
from examples.refunds.script import script
from examples.refunds.services import fill
from examples.refunds.tools import is_large
from starter import _parser
from tests.postgres import running_postgres
from tests.rig import RigFactory, until
from tests.workers import Site, open_site
from turnkeeper.client import AgentRunHandle
from turnkeeper.contract import ApprovalAsked
from turnkeeper.testing import FaultProxy
from turnkeeper.testing.stack import DemoAgent, Stack, connect

ROOT = Path(__file__).resolve().parents[2]
BROKEN = "Refund order 1007, it arrived broken."
REFUNDED = "Refunded 49.90 EUR for order 1007 (R-1) and told the customer. Pickup P-1 is on "


@dataclass
class Shop:
    """What the tools change, and the connections on the way to it."""

    folder: Path
    url: str
    sink: MailSink
    to_mail: FaultProxy
    to_carrier: FaultProxy

    def refunds(self) -> list[tuple[int, str]]:
        """(cents, key) of each refund."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            rows = connection.execute(sa.select(orders.REFUNDS)).all()
        return [(row.amount, row.key) for row in rows]

    def assert_done_once(self) -> None:
        """One refund, one pickup and one mail, each under a key of its own."""
        ((cents, refunded),) = self.refunds()
        ((reference, order_id),) = booked(self.folder)
        (sent,) = self.sink.mails()
        assert (cents, order_id, sent["Subject"]) == (4990, 1007, "Your refund for order 1007")
        key = sent["Message-ID"].removeprefix("<").partition("@")[0]
        assert len({refunded, reference, key}) == 3

    def subjects(self) -> list[str]:
        """Of each mail that was sent."""
        return [str(sent["Subject"]) for sent in self.sink.mails()]


def booked(folder: Path) -> list[tuple[str, int]]:
    """(reference, order) of each pickup in the carrier's database."""
    with closing(sqlite3.connect(folder / "carrier.db")) as database:
        return database.execute("SELECT reference, order_id FROM pickups").fetchall()


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Shop]:
    """The sample's orders, a mail server and a carrier, where the tools find them."""
    fill(url)
    with (
        pytest.MonkeyPatch.context() as settings,
        MailSink(folder / "mails") as sink,
        CarrierService(folder / "carrier.db") as service,
        FaultProxy("127.0.0.1", sink.port) as to_mail,
        FaultProxy("127.0.0.1", service.port) as to_carrier,
    ):
        settings.setenv("REFUNDS_DATABASE_URL", url)
        settings.setenv("REFUNDS_SMTP", to_mail.address)
        settings.setenv("REFUNDS_CARRIER_URL", to_carrier.url)
        yield Shop(folder, url, sink, to_mail, to_carrier)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """With its orders in SQLite."""
    with opened(tmp_path, f"sqlite:///{tmp_path / 'orders.db'}") as shop:
        yield shop


@pytest.fixture(params=["sqlite", "postgresql"])
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """With its orders in each kind of database."""
    if request.param == "sqlite":
        yield request.getfixturevalue("shop")
        return
    with (
        running_postgres() as server,
        opened(tmp_path, f"postgresql+psycopg://{server.new_database()}") as shop,
    ):
        yield shop


async def test_a_whole_conversation(rig: RigFactory, any_shop: Shop) -> None:
    """The order is looked up and refunded, its pickup booked, its customer told: each once."""
    async with rig(script, agents=[agent]) as r:
        result = await r.run(BROKEN, agent="refunds")
        assert (result.outcome, result.errors, result.unknown) == ("completed", 0, [])
        assert result.answer is not None
        assert result.answer.startswith(REFUNDED)
        assert await r.task_failures() == 0
    any_shop.assert_done_once()
    assert any_shop.to_carrier.connections == 1


async def test_a_booking_whose_reply_is_lost(rig: RigFactory, shop: Shop) -> None:
    """The probe finds it: the run goes on with the receipt, and nothing is booked again."""
    shop.to_carrier.drop_reply(b"POST /pickups")
    async with rig(script, agents=[agent]) as r:
        result = await r.run(BROKEN, agent="refunds")
        assert result.answer is not None
        assert result.answer.startswith(REFUNDED)
        assert await r.task_failures() == 0
    assert shop.to_carrier.injected["drop_reply"] == 1
    shop.assert_done_once()


async def test_a_booking_whose_request_is_lost(
    rig: RigFactory, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe finds none, and none can come any more: the next attempt books."""
    monkeypatch.setattr(carrier, "SETTLED_SECONDS", 0.1)
    shop.to_carrier.cut(0, how="reset", direction="up", times=1)
    async with rig(script, agents=[agent]) as r:
        result = await r.run(BROKEN, agent="refunds")
        assert result.answer is not None
        assert result.answer.startswith(REFUNDED)
        assert await r.task_failures() == 0
    # The request that was lost, the probe's two, and the one that booked.
    assert shop.to_carrier.injected["cut"] == 1
    assert shop.to_carrier.connections == 4
    shop.assert_done_once()


async def test_a_mail_whose_reply_is_lost(rig: RigFactory, shop: Shop) -> None:
    """It may have been sent: the run waits for a person, and it is never sent again."""
    shop.to_mail.drop_reply(re.compile(rb"\r\n\.\r\n$"))
    async with rig(script, agents=[agent]) as r:
        run = await r.start(BROKEN, agent="refunds")

        async def unknown() -> Any:
            return (await run.status()).unknown

        (doubt,) = await until(unknown)
        assert (doubt.tool, doubt.status) == ("send_email", "waiting")
        assert shop.subjects() == ["Your refund for order 1007"]
        said = "The mail server's log has it."
        await run.resolve(doubt.call_id, landed=True, result=said, actor="ann")
        result = await run.result()
        assert result.answer is not None
        assert result.answer.startswith(REFUNDED)
        assert await r.task_failures() == 0
    assert shop.to_mail.injected["drop_reply"] == 1
    shop.assert_done_once()


async def test_a_mail_server_that_is_away_for_a_moment(rig: RigFactory, shop: Shop) -> None:
    """Nothing was sent, so a mail that is sent once is tried again."""
    shop.to_mail.drop_reply(b"rcpt ")
    async with rig(script, agents=[agent]) as r:
        result = await r.run(BROKEN, agent="refunds")
        assert (result.outcome, result.errors) == ("completed", 0)
    assert shop.to_mail.injected["drop_reply"] == 1
    shop.assert_done_once()


async def test_what_the_customer_asks_twice_is_refunded_once(rig: RigFactory, shop: Shop) -> None:
    """Two runs are two keys: what is left of the order is what protects it."""
    async with rig(script, agents=[agent]) as r:
        answers = [(await r.run(BROKEN, agent="refunds")).answer for _ in range(2)]
    assert answers[1] == "Order 1007 is refunded already."
    shop.assert_done_once()


# --- a refund that is not the model's to decide -----------------------------------------------


LARGE = "Refund order 1012, it arrived broken."


async def test_a_denied_refund_is_told(rig: RigFactory, shop: Shop) -> None:
    """Nothing of it is done, and the customer gets no mail that promises it."""
    async with rig(script, agents=[agent]) as r:
        run = await r.start(LARGE, agent="refunds")
        await run.deny((await asked(run)).id, reason="Ask for a photo first.", actor="ann")
        answer = (await run.result()).answer or ""
        assert answer.startswith("I got stuck at issue_refund: Denied by ann: Ask for a photo")
    assert shop.refunds() == []
    assert shop.subjects() == []


async def asked(run: AgentRunHandle) -> ApprovalAsked:
    """What the run waits for."""

    async def waiting() -> list[ApprovalAsked]:
        return [a for a in (await run.status()).approvals if a.status == "waiting"]

    (found,) = await until(waiting)
    return found  # type: ignore[no-any-return]


@pytest.fixture
async def away(virtual: WorkflowEnvironment, shop: Shop, tmp_path: Path) -> AsyncIterator[Site]:
    """Workers of the agent, on a server whose clock can be put forward."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("REFUNDS_")}
    address = virtual.client.service_client.config.target_host
    assert settings["REFUNDS_DATABASE_URL"] == shop.url
    with virtual.with_time_skipping_disabled():
        async with open_site(
            virtual.client,
            address,
            tmp_path,
            script,
            module="tests.patient_refunds",
            environment=settings,
        ) as site:
            yield site


@pytest.mark.timeout(240)
async def test_a_large_refund_waits_for_days(
    virtual: WorkflowEnvironment, away: Site, shop: Shop
) -> None:
    """Its worker is killed, and it continues as new, while it waits; two days later somebody allows
    it at the terminal: it is refunded once."""
    first = await away.worker()
    run = await away.start(LARGE, agent="refunds")
    waiting = await asked(run)
    assert (waiting.tool, waiting.effect) == ("issue_refund", "idempotent")
    assert waiting.why == "249.00 EUR are more than 100"
    await away.kill(first)
    await away.worker()
    handle = virtual.client.get_workflow_handle(run.id)
    began = (await handle.describe()).run_id
    for _ in range(20):
        # What does not fit is dropped, but stands in history.
        await handle.signal("approve", {"approval": "0"})
        await asyncio.sleep(0.1)
    await until(lambda: continued(handle, began))
    handle = virtual.client.get_workflow_handle(run.id)
    await virtual.fast_forward(handle, timedelta(days=2))
    assert f"approve {run.id} {waiting.id}" in await card(handle)
    assert shop.refunds() == []
    listed = await until(lambda: starter(handle, "approvals", "--json"))
    assert [a["approval"]["id"] for a in json.loads(listed)["approvals"]] == [waiting.id]
    told = await starter(handle, "approve", run.id, waiting.id, "--actor", "ann")
    assert told == f"run {run.id} goes on: the call is run\n"
    result = await run.result(timeout=60)
    assert (result.answer or "").startswith("Refunded 249.00 EUR for order 1012 (R-1)")
    assert [(a.status, a.actor) for a in result.approvals] == [("approved", "ann")]
    assert "was approved by ann (unverified)" in (await card(handle)).replace("\\", "")
    assert not away.provider.rejections
    ((cents, _key),) = shop.refunds()
    assert cents == 24_900
    assert shop.subjects() == ["Your refund for order 1012"]


async def starter(handle: WorkflowHandle[Any, Any], *arguments: str) -> str:
    """What the command line prints."""
    address = handle._client.service_client.config.target_host
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "starter.py", "--address", address, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def card(handle: WorkflowHandle[Any, Any]) -> str:
    """The run card, as the UI asks for it."""
    told = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(told.current_details)


async def continued(handle: WorkflowHandle[Any, Any], began: str) -> bool:
    """Whether the run goes on in another execution than the one in which it began."""
    return (await handle.describe()).run_id != began


# --- as a person runs it ----------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings of a folder and of ports that nobody else has; the folder."""
    mail, booking = free_ports(2)
    monkeypatch.delenv("REFUNDS_DATABASE_URL", raising=False)
    monkeypatch.setenv("REFUNDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REFUNDS_SMTP", f"127.0.0.1:{mail}")
    monkeypatch.setenv("REFUNDS_CARRIER_URL", f"http://127.0.0.1:{booking}")
    return tmp_path / "home"


@contextmanager
def services() -> Iterator[list[str]]:
    """The command that runs all services, in a process; the lines that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.refunds.services"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield [process.stdout.readline() for _ in range(4)]
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_the_two_commands_of_the_example(tmp_path: Path, at_home: Path) -> None:
    """Services, and a stack as `starter.py dev` runs it: a run does all there is to do."""
    (tmp_path / "state").mkdir()
    served = DemoAgent("examples.refunds", "examples.refunds.script:script")
    with (
        services() as printed,
        Stack.start(ROOT, tmp_path / "state", demo=served, announce=print) as stack,
    ):
        assert "6 orders added" in printed[0]
        assert stack.ready() == ["refunds"]
        client = await connect(stack.address, stack.state_dir)
        result = await (await client.start("refunds", BROKEN)).result(timeout=60)
    assert result.answer is not None
    assert result.answer.startswith(REFUNDED)
    assert [len(MailSink(at_home / "mails").mails()), len(booked(at_home))] == [1, 1]


def test_the_page_says_what_to_type_and_what_waits() -> None:
    """Its commands are those of the command line, and the one order that it names waits."""
    page = (ROOT / "examples" / "refunds" / "README.md").read_text()
    commands = re.findall(r"^    \S+ starter\.py (.+)$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        _parser().parse_args(shlex.split(command))
    left = {o.id: o.amount - o.refunded for o in SAMPLE}
    assert [order for order, amount in left.items() if is_large({"amount": amount})] == [1012]
    assert "| 1012 | 249.00: waits for a person |" in page


def test_services_that_are_there_already(at_home: Path) -> None:
    """A second command says that the port is taken, and ends; orders are kept for the next one."""
    with services():
        second = subprocess.run(
            [sys.executable, "-m", "examples.refunds.services"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (second.returncode, second.stdout) == (1, "")
        assert re.fullmatch(r"services: .*address already in use.*\n", second.stderr)
    with services() as printed:
        assert "as it was" in printed[0]

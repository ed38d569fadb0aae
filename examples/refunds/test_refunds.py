"""The refunds agent's tools against real services: a database, a mail server, the carrier.

A test of your own agent can begin as a copy of this file. What becomes of the tools' failures in a
run is in `tests/examples/test_refunds.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
import smtplib
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from examples.refunds import carrier, carrier_service, mail, mail_sink, orders
from examples.refunds.agent import agent
from examples.refunds.mail_sink import MailSink
from examples.refunds.script import script
from examples.refunds.services import fill
from examples.refunds.tools import (
    book_pickup,
    find_order,
    find_pickup,
    issue_refund,
    send_email,
)
from tests.postgres import Postgres, running_postgres
from turnkeeper import Landed, NotLanded, RetryTool, ToolContext, ToolFailed
from turnkeeper.ledger import KeyConflict
from turnkeeper.testing import Exchange, FaultProxy
from turnkeeper.testing.process import ChildProcess

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting from outside reaches a test, and no service that it does not ask for."""
    monkeypatch.setenv("REFUNDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REFUNDS_SMTP", NOBODY)
    monkeypatch.setenv("REFUNDS_CARRIER_URL", f"http://{NOBODY}")
    monkeypatch.delenv("REFUNDS_DATABASE_URL", raising=False)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One server for this module, a database for each test."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    """The sample's orders in SQLite."""
    return filled(f"sqlite:///{tmp_path / 'orders.db'}", monkeypatch)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[sa.Engine]:
    """The sample's orders in each kind of database."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite")
        return
    address = request.getfixturevalue("postgres").new_database()
    engine = filled(f"postgresql+psycopg://{address}", monkeypatch)
    yield engine
    engine.dispose()


def filled(url: str, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    """The sample's orders at this URL, where the tools now find them."""
    assert fill(url)
    monkeypatch.setenv("REFUNDS_DATABASE_URL", url)
    return sa.create_engine(url)


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailSink]:
    """A mail server."""
    with MailSink(tmp_path / "mails") as server:
        monkeypatch.setenv("REFUNDS_SMTP", f"127.0.0.1:{server.port}")
        yield server


@pytest.fixture
def mail_proxy(sink: MailSink, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """What breaks on the way to the mail server."""
    with FaultProxy("127.0.0.1", sink.port) as proxy:
        monkeypatch.setenv("REFUNDS_SMTP", proxy.address)
        yield proxy


@pytest.fixture
def carrier_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The carrier's service."""
    with carrier_service.CarrierService(tmp_path / "carrier.db") as service:
        monkeypatch.setenv("REFUNDS_CARRIER_URL", service.url)
        yield service.url


def start_carrier(folder: Path) -> tuple[ChildProcess, str]:
    """The carrier's service in a process of its own, its database in a folder; and its URL."""
    command = [sys.executable, "-m", "examples.refunds.carrier_service"]
    process = ChildProcess.start(
        "carrier",
        [*command, "--database", str(folder / "carrier.db")],
        folder=folder,
        cwd=ROOT,
        environment={},
    )
    return process, str(json.loads(process.wait_ready(30))["url"])


def refund(amount: str, *, key: str = "k1", order_id: int = 1007) -> Any:
    """One attempt of a call: the arguments pass the tool's own types."""
    context = ToolContext(idempotency_key=key)
    asked = {"order_id": order_id, "amount": amount, "reason": "broken"}
    return issue_refund(**issue_refund.bind(asked, context))


def made(database: sa.Engine) -> list[tuple[int, str]]:
    """(cents, key) of each refund."""
    with database.connect() as connection:
        rows = connection.execute(sa.select(orders.REFUNDS)).all()
    return [(row.amount, row.key) for row in rows]


def email(text: str = "All done.", *, order_id: int = 1007) -> Any:
    """One attempt to tell a customer."""
    return send_email(order_id, "Your refund", text, ToolContext(idempotency_key="k1"))


def pickup(key: str = "k1") -> Any:
    """One attempt to book."""
    return book_pickup(1007, ToolContext(idempotency_key=key))


# --- the order database -----------------------------------------------------------------------


def test_an_order_is_found(database: sa.Engine) -> None:
    """With exact amounts, and what is left of them."""
    refund("9.95")
    assert find_order(1007) == {
        "id": 1007,
        "customer": "carla@customers.example",
        "address": "2 Orchard Road, Wells",
        "item": "set of six glasses",
        "state": "delivered",
        "amount": Decimal("49.90"),
        "refunded": Decimal("9.95"),
        "left": Decimal("39.95"),
    }
    with pytest.raises(ToolFailed, match="There is no order 4711"):
        find_order(4711)


def test_a_second_attempt_gets_the_first_ones_receipt(database: sa.Engine) -> None:
    """One key is one refund, however often it is attempted and however the amount is spelt."""
    first = refund("49.9")
    assert first == {"refund": "R-1", "order_id": 1007, "amount": "49.90", "left": "0.00"}
    assert refund("49.90") == first
    assert made(database) == [(4990, "k1")]
    assert find_order(1007)["refunded"] == Decimal("49.90")


def test_attempts_at_the_same_time_make_one_refund(database: sa.Engine) -> None:
    """All get the one receipt."""
    together = threading.Barrier(8)

    def attempt(_: int) -> Any:
        together.wait()
        return refund("5.00")

    with ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(attempt, range(8)))
    assert receipts == [receipts[0]] * 8
    assert made(database) == [(500, "k1")]


def test_calls_at_the_same_time_do_not_refund_too_much(database: sa.Engine) -> None:
    """Of eight calls that want 20.00 of 49.90 each, two get it and the others are told."""
    together = threading.Barrier(8)

    def attempt(number: int) -> str:
        together.wait()
        try:
            return str(refund("20.00", key=f"k{number}")["amount"])
        except ToolFailed as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        told = sorted(threads.map(attempt, range(8)))
    assert told[:2] == ["20.00", "20.00"]
    assert all("9.90 EUR are left" in each for each in told[2:])
    assert [cents for cents, _ in made(database)] == [2000, 2000]


def test_another_amount_under_the_same_key_is_a_conflict(database: sa.Engine) -> None:
    """The model reads that the first stands and nothing was done now."""
    refund("10.00")
    with pytest.raises(
        KeyConflict, match="What was done then stands; nothing was done now"
    ) as told:
        refund("20.00")
    assert isinstance(told.value, ToolFailed)
    assert made(database) == [(1000, "k1")]


def test_no_more_than_what_is_left(database: sa.Engine) -> None:
    """It is refused with what is left, and has changed nothing: the key is free for less."""
    refund("40.00", key="k0")
    with pytest.raises(ToolFailed, match=r"9\.91 EUR is more .* 9\.90 EUR are left"):
        refund("9.91")
    assert refund("9.90")["left"] == "0.00"
    with pytest.raises(ToolFailed, match="There is no order 4711"):
        refund("1.00", key="k2", order_id=4711)
    assert made(database) == [(4000, "k0"), (990, "k1")]


def test_the_database_itself_refuses_too_much(database: sa.Engine) -> None:
    """Whoever writes: an order with more refunded than paid cannot be stored."""
    with pytest.raises(sa.exc.IntegrityError), database.begin() as connection:
        connection.execute(orders.ORDERS.update().values(refunded=orders.ORDERS.c.amount + 1))


@pytest.mark.parametrize("amount", ["0", "-5", "0.001", "NaN", "Infinity", "12345678901.00", "a"])
def test_amounts_that_are_none(amount: str) -> None:
    """The model is told which argument is wrong; nothing is asked of the database."""
    with pytest.raises(ValueError, match="- amount: "):
        refund(amount)


def test_a_fraction_of_a_cent_is_not_rounded(sqlite: sa.Engine) -> None:
    """Also where the tool is called as the function it is."""
    with pytest.raises(ToolFailed, match="whole cents"):
        issue_refund(1007, Decimal("0.005"), "broken", ToolContext(idempotency_key="k1"))


@pytest.mark.parametrize("url", ["sqlite:////nowhere/o.db", f"postgresql+psycopg://a@{NOBODY}/o"])
def test_a_database_that_is_not_there(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Nothing has happened, so it is tried again; the text says what to do."""
    monkeypatch.setenv("REFUNDS_DATABASE_URL", url)
    with pytest.raises(
        RetryTool, match=r"does not answer\. `python -m examples\.refunds\.services"
    ):
        refund("1.00")


@pytest.mark.parametrize("tool", [email, pickup, lambda: find_order(1007)])
def test_a_database_that_fails_before_anything_is_sent(sqlite: sa.Engine, tool: Any) -> None:
    """Nothing has happened, also for a tool that is done once."""
    with sqlite.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME COLUMN customer TO buyer"))
    with pytest.raises(RetryTool, match="while the order was looked up"):
        tool()


def test_a_database_without_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again would not help; once it is filled the same process finds them."""
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    monkeypatch.setenv("REFUNDS_DATABASE_URL", url)
    with pytest.raises(ToolFailed, match=r"empty\. `python -m examples\.refunds\.services"):
        find_order(1007)
    assert fill(url)
    assert find_order(1007)["id"] == 1007
    assert not fill(url)


def test_a_database_that_was_begun_anew(sqlite: sa.Engine, tmp_path: Path) -> None:
    """No connection goes on with the file that was removed."""
    refund("1.00")
    (tmp_path / "orders.db").unlink()
    fill(str(sqlite.url))
    assert find_order(1007)["refunded"] == 0


@pytest.mark.parametrize(
    ("name", "value", "tool"),
    [
        ("REFUNDS_DATABASE_URL", "orders", lambda: find_order(1007)),
        ("REFUNDS_SMTP", "mail", email),
        ("REFUNDS_SMTP", "mail:99999", email),
        ("REFUNDS_CARRIER_URL", "carrier:80", pickup),
    ],
)
def test_a_setting_that_is_wrong(
    sqlite: sa.Engine, monkeypatch: pytest.MonkeyPatch, name: str, value: str, tool: Any
) -> None:
    """It is named; nothing was done."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ToolFailed, match=name):
        tool()


# --- mail -------------------------------------------------------------------------------------


def test_a_mail_arrives(sqlite: sa.Engine, sink: MailSink) -> None:
    """At the order's address, with the key by which a person can look for it, and every word."""
    text = "Grüße,\n.\n..dots\n" + "long " * 300
    assert email(text) == "Sent to carla@customers.example."
    (arrived,) = sink.mails()
    assert arrived["To"] == "carla@customers.example"
    assert arrived["Subject"] == "Your refund"
    assert arrived["Message-ID"] == "<k1@refunds.example>"
    assert words(arrived).split() == text.split()


def words(arrived: EmailMessage) -> str:
    """The text of a mail."""
    content = arrived.get_content()
    assert isinstance(content, str)
    return content


def test_a_recipient_that_is_refused(sqlite: sa.Engine, sink: MailSink) -> None:
    """The model reads the mail server's own words."""
    with pytest.raises(ToolFailed, match=r"550 dov@moved\.invalid does not exist\. Nothing was"):
        email(order_id=1008)
    assert sink.mails() == []


def test_an_address_beyond_ascii(sink: MailSink) -> None:
    """Nothing was sent, and nobody has to find out whether it was."""
    with pytest.raises(
        ToolFailed, match=r"jörg@customers\.example cannot be used.*Nothing was sent"
    ):
        mail.send(mail.compose("jörg@customers.example", "Your refund", "Done.", "k1"))
    assert sink.mails() == []


def test_no_mail_server(sqlite: sa.Engine) -> None:
    """Nothing was sent, so a tool that is done once is tried again; the text says what to do."""
    with pytest.raises(RetryTool, match=r"nothing was sent\. `python -m examples\.refunds\.serv"):
        email()


@pytest.mark.parametrize("step", ["ehlo", "mail", "rcpt"])
def test_a_connection_that_breaks_before_the_text(
    sqlite: sa.Engine, sink: MailSink, mail_proxy: FaultProxy, step: str
) -> None:
    """Nothing was sent, and the next attempt sends it."""
    mail_proxy.drop_reply(step.encode())
    with pytest.raises(RetryTool, match="nothing was sent"):
        email()
    assert mail_proxy.injected["drop_reply"] == 1
    assert sink.mails() == []
    email()
    assert len(sink.mails()) == 1


def test_a_text_whose_answer_is_lost(
    sqlite: sa.Engine, sink: MailSink, mail_proxy: FaultProxy
) -> None:
    """It may have been sent (here it was): no error that allows another attempt."""
    mail_proxy.drop_reply(re.compile(rb"\r\n\.\r\n$"))
    with pytest.raises(OSError, match="closed"):
        email()
    assert mail_proxy.injected["drop_reply"] == 1
    assert len(sink.mails()) == 1


def test_an_end_of_the_connection_after_the_text(
    sqlite: sa.Engine, sink: MailSink, mail_proxy: FaultProxy
) -> None:
    """Sent is sent: a farewell that gets no answer changes nothing."""
    mail_proxy.drop_reply(b"quit")
    assert email() == "Sent to carla@customers.example."
    assert mail_proxy.injected["drop_reply"] == 1
    assert len(sink.mails()) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("452 the disk is full", RetryTool),
        ("554 no thanks", ToolFailed),
        ("nonsense", smtplib.SMTPResponseException),
    ],
)
def test_a_text_that_is_refused(
    sqlite: sa.Engine,
    sink: MailSink,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    error: type[Exception],
) -> None:
    """4yz: not now. 5yz: never. An answer that is neither says nothing: it may have been sent."""

    async def refuse(*_: object) -> str:
        return answer

    monkeypatch.setattr(mail_sink._Keeper, "handle_DATA", refuse)
    with pytest.raises(error) as told:
        email()
    assert isinstance(told.value, OSError) or "Nothing was sent" in str(told.value)


def test_a_subject_cannot_add_headers(sqlite: sa.Engine) -> None:
    """A line break in it is refused as an argument, and once more before anything is sent."""
    subject = "Refund\r\nBcc: all@customers.example"
    with pytest.raises(ValueError, match="- subject: "):
        send_email.bind({"order_id": 1007, "subject": subject, "text": "x"}, ToolContext())
    with pytest.raises(ToolFailed, match="cannot be sent"):
        send_email(1007, subject, "x", ToolContext(idempotency_key="k1"))


# --- the carrier ------------------------------------------------------------------------------


def test_a_pickup_is_booked_each_time(sqlite: sa.Engine, carrier_url: str) -> None:
    """The carrier knows no keys, only references: that is what the probe is for."""
    first, second = pickup(), pickup()
    assert first["pickup"] != second["pickup"]
    assert carrier.bookings("k1") == [first, second]
    assert carrier.bookings("k2") == []
    assert time.strptime(first["day"], "%Y-%m-%d").tm_wday < 5


@pytest.mark.crash
def test_bookings_survive_the_carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was answered is on the disk."""
    process, url = start_carrier(tmp_path)
    monkeypatch.setenv("REFUNDS_CARRIER_URL", url)
    booked = carrier.book("k1", 1007, "2 Orchard Road")
    process.kill()
    process.end()
    process, url = start_carrier(tmp_path)
    monkeypatch.setenv("REFUNDS_CARRIER_URL", url)
    assert carrier.bookings("k1") == [booked]
    process.end()


def test_the_carrier_refuses_what_comes_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is booked, so another attempt may be made."""
    process, url = start_carrier(tmp_path)
    monkeypatch.setenv("REFUNDS_CARRIER_URL", url)
    early = time.time() - 60
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: early)
        with pytest.raises(RetryTool, match=r"too late; nothing was booked: .* has expired"):
            carrier.book("k1", 1007, "2 Orchard Road")
    assert carrier.bookings("k1") == []
    process.end()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/pickups", [], 400),
        ("POST", "/pickups", {"order_id": 1007}, 400),
        ("POST", "/pickups", {"reference": "k1", "order_id": 1007, "address": "x"}, 400),
        ("POST", "/pickups", {"reference": "x" * 70_000}, 400),
        ("POST", "/elsewhere", {}, 400),
        ("GET", "/pickups", None, 404),
        ("GET", "/elsewhere?reference=k1", None, 404),
    ],
)
def test_requests_that_the_carrier_does_not_know(
    carrier_url: str, method: str, path: str, body: Any, status: int
) -> None:
    """Each is answered with a status and a reason, and books nothing."""
    answered, reason = carrier._ask(method, path, body)
    assert (answered, list(reason)) == (status, ["error"])
    assert carrier.bookings("k1") == []


def test_a_pickup_that_the_carrier_refuses(carrier_url: str) -> None:
    """The model reads why."""
    with pytest.raises(ToolFailed, match=r"no address to pick up from\. Nothing was booked"):
        carrier.book("k1", 1007, " ")


def test_a_carrier_that_has_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it booked: no error that says that nothing happened."""

    def fail(*_: object) -> None:
        raise carrier_service.Refusal(503, "the database is closed")

    monkeypatch.setattr(carrier_service._Book, "add", fail)
    monkeypatch.setattr(carrier_service._Book, "of", fail)
    with carrier_service.CarrierService(tmp_path / "carrier.db") as service:
        monkeypatch.setenv("REFUNDS_CARRIER_URL", service.url)
        with pytest.raises(carrier.CarrierError, match="answered 503"):
            carrier.book("k1", 1007, "2 Orchard Road")
        with pytest.raises(carrier.CarrierError, match="answered 503"):
            carrier.bookings("k1")


def test_no_carrier(sqlite: sa.Engine) -> None:
    """Nothing was booked; the text says what to do."""
    with pytest.raises(RetryTool, match=r"nothing was booked\. `python -m examples\.refunds\.serv"):
        pickup()


async def test_the_probe_finds_a_booking(sqlite: sa.Engine, carrier_url: str) -> None:
    """Its receipt is what the tool would have returned."""
    booked = pickup()
    assert await find_pickup(ToolContext(idempotency_key="k1"), {}) == Landed(booked)


async def test_the_probe_waits_for_a_request_that_is_on_its_way(
    sqlite: sa.Engine, carrier_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A no is said when no request can arrive any more, and not before."""
    monkeypatch.setattr(carrier, "SETTLED_SECONDS", 0.6)
    asked = asyncio.ensure_future(find_pickup(ToolContext(idempotency_key="k1"), {}))
    await asyncio.sleep(0.3)
    assert not asked.done()
    booked = await asyncio.to_thread(pickup)
    assert await asked == Landed(booked)
    assert await find_pickup(ToolContext(idempotency_key="k2"), {}) == NotLanded()


def test_a_no_of_the_probe_comes_after_the_last_moment_of_a_request() -> None:
    """With a second for clocks that differ, and within the time that a probe has."""
    assert carrier._VALID_SECONDS + 1 <= carrier.SETTLED_SECONDS
    # Half of the timeout is what a probe has.
    assert book_pickup.spec.timeout / 2 > carrier.SETTLED_SECONDS + carrier._VALID_SECONDS


# --- the agent and its script -----------------------------------------------------------------


def test_each_tool_has_the_promise_that_its_target_allows() -> None:
    """And a description of all that the model has to fill in."""
    specs = {spec.name: spec for spec in agent.spec().tools}
    assert {name: spec.effect for name, spec in specs.items()} == {
        "find_order": "read",
        "issue_refund": "idempotent",
        "send_email": "once",
        "book_pickup": "reconcilable",
    }
    assert list(specs["issue_refund"].input_schema["properties"]) == [
        "order_id",
        "amount",
        "reason",
    ]
    assert all(spec.description for spec in specs.values())
    assert agent.spec().on_unknown == "wait"


def ask(question: str) -> str:
    """The answer of the script, which is given whatever the real tools return to its calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for turn in range(8):
        reply: Any = script(Exchange({"messages": messages}, {}, repeat=0, arrival=turn + 1))
        blocks = [
            dict(block.data) | ({"id": f"t{turn}"} if block.data["type"] == "tool_use" else {})
            for block in reply.blocks
        ]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if not calls:
            return "".join(block["text"] for block in blocks)
        results = [result(call) for call in calls]
        messages += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": results},
        ]
    raise AssertionError("the script went on calling tools")


def result(call: dict[str, Any]) -> dict[str, Any]:
    """What the real tool makes of a call."""
    used = agent.tools[call["name"]]
    block = {"type": "tool_result", "tool_use_id": call["id"]}
    try:
        value = used(**used.bind(call["input"], ToolContext(idempotency_key=call["id"])))
    except ToolFailed as error:
        return block | {"content": str(error), "is_error": True}
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return block | {"content": text}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "Refund order 1007, it arrived broken.",
            r"Refunded 49\.90 EUR for order 1007 \(R-1\) and told the customer\. Pickup P-1 is on ",
        ),
        (
            "Refund 12.50 of order 1001.",
            r"Refunded 12\.50 EUR for order 1001 \(R-1\) and told the customer\.$",
        ),
        ("Refund 99.00 of order 1001.", "stuck at issue_refund: 99.00 EUR is more than"),
        ("Refund order 1004, please.", "Order 1004 is shipped"),
        ("Refund order 1008, wrong colour.", "stuck at send_email: .* does not exist"),
        ("Refund order 1009.", "refunded already"),
        ("Refund order 4711.", "stuck at find_order: There is no order 4711"),
        ("Who won the cup?", "Refund order 1007, it arrived broken"),
    ],
)
def test_the_script_answers_from_what_the_tools_return(
    sqlite: sa.Engine, sink: MailSink, carrier_url: str, question: str, answer: str
) -> None:
    """Played against the real tools, the script ends in the right answer."""
    assert re.search(answer, ask(question))


def test_the_letter_tells_what_was_done(
    sqlite: sa.Engine, sink: MailSink, carrier_url: str
) -> None:
    """The amount that was refunded, and the day that the carrier gave."""
    ask("Refund order 1007, it arrived broken.")
    (arrived,) = sink.mails()
    (booked,) = carrier.bookings("t2")
    assert "refunded 49.90 EUR for your order 1007" in words(arrived)
    assert f"picks the item up on {booked['day']}" in words(arrived)

"""The world of the refunds agent, real and slow: an order database, a mail server, a carrier.

Each is read here by its own means: what the agent or its tools say of it plays no part.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from examples.refunds import orders
from examples.refunds.mail_sink import MailSink
from examples.refunds.orders import Order
from tests.faults.crew import ROOT
from tests.postgres import find_postgres, running_postgres
from turnkeeper.testing import FaultProxy
from turnkeeper.testing.effects import Arrival
from turnkeeper.testing.process import ChildProcess

_READY_SECONDS = 60.0


@dataclass(frozen=True)
class Request:
    """What a customer asks for, and what is right: `amount` back, and a pickup or none."""

    order: Order
    amount: Decimal
    comes_back: bool

    @property
    def prompt(self) -> str:
        """In the customer's words."""
        whole = self.amount == self.order.left
        what = "Refund" if whole else f"Refund {self.amount} of"
        return f"{what} order {self.order.id}{', it arrived broken' if self.comes_back else ''}."

    @classmethod
    def drawn(cls, number: int, chance: random.Random) -> Request:
        """The `number`th customer's."""
        cents = chance.randint(500, 10_000)
        order = Order(
            id=10_000 + number,
            customer=f"customer-{number}@customers.example",
            address=f"{number} Station Road, Hale",
            item="kettle",
            state="delivered",
            amount=Decimal(cents).scaleb(-2),
        )
        part = cents if chance.random() < 0.5 else chance.randint(100, cents - 1)
        return cls(order, Decimal(part).scaleb(-2), chance.random() < 0.7)


@dataclass
class Shop:
    """Made by `opened`. environment: where the tools find it."""

    environment: dict[str, str]
    _database: sa.Engine
    _folder: Path

    def look(self) -> list[Arrival]:
        """All that has happened, as rows of a ledger; when it did is not known."""
        return [*self._refunds(), *self._pickups(), *self._mails()]

    def refunded(self) -> dict[int, Decimal]:
        """What each order says of itself."""
        with self._database.connect() as connection:
            rows = connection.execute(sa.select(orders.ORDERS.c.id, orders.ORDERS.c.refunded)).all()
        return {row.id: Decimal(row.refunded).scaleb(-2) for row in rows}

    def receipt(self, tool: str, key: str) -> str | None:
        """What a person finds out about a call: None, or a receipt as the tool would return it."""
        found = next((row for row in self.look() if (row.name, row.key) == (tool, key)), None)
        if found is None:
            return None
        if tool == "send_email":
            return "The mail server's log has it."
        return json.dumps(found.body)

    def _refunds(self) -> Iterator[Arrival]:
        with self._database.connect() as connection:
            rows = connection.execute(sa.select(orders.REFUNDS)).all()
        for row in rows:
            amount = str(Decimal(row.amount).scaleb(-2))
            body = {"refund": f"R-{row.id}", "order_id": row.order_id, "amount": amount}
            yield _row("issue_refund", row.key, body)

    def _pickups(self) -> Iterator[Arrival]:
        with contextlib.closing(sqlite3.connect(self._folder / "carrier.db")) as database:
            rows = database.execute("SELECT number, reference, order_id, day FROM pickups")
            for number, reference, order_id, day in rows.fetchall():
                body = {"pickup": f"P-{number}", "order_id": order_id, "day": day}
                yield _row("book_pickup", reference, body)

    def _mails(self) -> Iterator[Arrival]:
        for path in sorted((self._folder / "mails" / "new").iterdir()):
            mail = message_from_bytes(path.read_bytes(), policy=default)
            key = mail["Message-ID"].removeprefix("<").partition("@")[0]
            order_id = int(str(mail["Subject"]).rpartition(" ")[2])
            yield _row("send_email", key, {"order_id": order_id})


def _row(name: str, key: str, body: Mapping[str, Any]) -> Arrival:
    return Arrival(
        arrival=0,
        kind="probed",
        name=name,
        key=key,
        digest="",
        body=dict(body),
        time=0,
        applied=True,
        status=200,
        receipt=None,
        behaviour=None,
    )


@contextlib.contextmanager
def opened(
    folder: Path, requests: Sequence[Request], *, database: str, latency: float
) -> Iterator[Shop]:
    """A shop with an order for each request, `latency` milliseconds away in each direction.

    `database` is `sqlite` or `postgresql`; SQLite is a file, and not away at all.
    """
    folder.mkdir()
    with contextlib.ExitStack() as running:

        def far(port: int) -> FaultProxy:
            proxy = running.enter_context(FaultProxy("127.0.0.1", port))
            proxy.delay(latency)
            return proxy

        url = sa.make_url(f"sqlite:///{folder / 'orders.db'}")
        tools = url
        if database == "postgresql":
            server = running.enter_context(running_postgres())
            url = sa.make_url(f"postgresql+psycopg://{server.new_database()}")
            tools = url.set(port=far(server.port).port)
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        orders.create_tables(engine)
        with engine.begin() as connection:
            orders.add(connection, *(r.order for r in requests))
        sink = running.enter_context(MailSink(folder / "mails"))
        carrier = _carrier(folder)
        running.callback(carrier.end)
        carrier_url = urlsplit(json.loads(carrier.wait_ready(_READY_SECONDS))["url"])
        environment = {
            "REFUNDS_DATABASE_URL": tools.render_as_string(hide_password=False),
            "REFUNDS_SMTP": far(sink.port).address,
            "REFUNDS_CARRIER_URL": far(carrier_url.port or 0).url,
        }
        yield Shop(environment, engine, folder)


def usual_database() -> str:
    """What a shop with several workers has, where this machine has it.

    PostgreSQL: its workers write at once, each locks the row of its own order alone, and what a
    dead one has locked is let go with its connection. SQLite has one writer at a time, no network
    on the way, and is for one machine.
    """
    return "postgresql" if find_postgres() else "sqlite"


def _carrier(folder: Path) -> ChildProcess:
    command = [sys.executable, "-m", "examples.refunds.carrier_service", "--port", "0"]
    return ChildProcess.start(
        "carrier",
        [*command, "--database", str(folder / "carrier.db")],
        folder=folder,
        cwd=ROOT,
        environment=os.environ,
    )

"""The order database: SQLAlchemy Core, on SQLite and PostgreSQL alike.

Amounts are exact: `Decimal` in Python, whole cents in the database, since SQLite has no decimals.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from examples.refunds.settings import database_url
from turnkeeper import RetryTool, ToolFailed
from turnkeeper.ledger import create_ledger

__all__ = [
    "ORDERS",
    "REFUNDS",
    "Order",
    "add",
    "create_tables",
    "find",
    "look_up",
    "refund",
    "transaction",
]

_WHAT_TO_DO: Final = (
    "`python -m examples.refunds.services` makes and fills it; REFUNDS_DATABASE_URL names another."
)
# A transaction that stands still keeps its key and its order from the next attempt; this is less
# than the timeout of any tool that has one.
_IDLE_MILLISECONDS: Final = 15_000

_METADATA: Final = sa.MetaData()

ORDERS: Final = sa.Table(
    "orders",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("customer", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("item", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("refunded", sa.BigInteger, nullable=False),
    sa.CheckConstraint("refunded BETWEEN 0 AND amount", name="refunded_at_most_the_amount"),
)

REFUNDS: Final = sa.Table(
    "refunds",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("order_id", sa.ForeignKey(ORDERS.c.id), nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class Order:
    """customer: an e-mail address. state: `placed`, `shipped`, `delivered` or `cancelled`.
    amount: what was paid, in euros; refunded: what of it was paid back."""

    id: int
    customer: str
    address: str
    item: str
    state: str
    amount: Decimal
    refunded: Decimal = Decimal("0.00")

    @property
    def left(self) -> Decimal:
        """What can still be refunded."""
        return self.amount - self.refunded


def create_tables(engine: sa.Engine) -> None:
    """Make all tables that are not there, the ledger's among them."""
    _METADATA.create_all(engine)
    create_ledger(engine)


@contextmanager
def transaction() -> Iterator[sa.Connection]:
    """A connection to the order database, in a transaction that commits after the block.

    Raises:
        RetryTool: the database does not answer; nothing has happened.
        ToolFailed: it has no orders, or its URL is wrong.
    """
    with ExitStack() as opened:
        try:
            # Apart: an OperationalError of the block or of the commit is another matter.
            connection = opened.enter_context(_engine(database_url()).connect())
            has_orders = sa.inspect(connection).has_table(ORDERS.name)
            connection.rollback()
        except ArgumentError:
            raise ToolFailed("REFUNDS_DATABASE_URL is not a URL of SQLAlchemy's.") from None
        except (OperationalError, sa.exc.TimeoutError) as error:
            raise RetryTool(f"The order database does not answer. {_WHAT_TO_DO}") from error
        if not has_orders:
            raise ToolFailed(f"The order database is empty. {_WHAT_TO_DO}")
        with connection.begin():
            yield connection


def find(connection: sa.Connection, order_id: int) -> Order:
    """The order of this number.

    Raises:
        ToolFailed: there is none.
    """
    found = connection.execute(sa.select(ORDERS).where(ORDERS.c.id == order_id)).one_or_none()
    if found is None:
        raise ToolFailed(f"There is no order {order_id}.")
    row = found._asdict()
    return Order(**row | {name: _euros(row[name]) for name in ("amount", "refunded")})


def look_up(order_id: int) -> Order:
    """The order of this number, in a transaction of its own.

    Raises:
        ToolFailed: there is none.
        RetryTool: the database does not say; what is to follow has not begun.
    """
    try:
        with transaction() as connection:
            return find(connection, order_id)
    except SQLAlchemyError as error:
        raise RetryTool("The order database failed while the order was looked up.") from error


def add(connection: sa.Connection, *orders: Order) -> None:
    """Add orders."""
    rows = [
        vars(order) | {"amount": _cents(order.amount), "refunded": _cents(order.refunded)}
        for order in orders
    ]
    connection.execute(ORDERS.insert(), rows)


def refund(
    connection: sa.Connection, order_id: int, amount: Decimal, reason: str, key: str
) -> dict[str, Any]:
    """Refund part of an order, or all of it; the receipt, in plain JSON.

    Raises:
        ToolFailed: there is no such order, or less is left of it.
    """
    cents = _cents(amount)
    # The condition is part of the change: of two refunds at once, the second sees the first's.
    enough = (ORDERS.c.id == order_id) & (ORDERS.c.amount - ORDERS.c.refunded >= cents)
    change = ORDERS.update().where(enough).values(refunded=ORDERS.c.refunded + cents)
    changed = connection.execute(change.returning(ORDERS.c.amount - ORDERS.c.refunded))
    left = changed.scalar_one_or_none()
    if left is None:
        order = find(connection, order_id)
        raise ToolFailed(
            f"{_euros(cents)} EUR is more than can be refunded: of the {order.amount} EUR of order "
            f"{order_id}, {order.refunded} EUR are refunded and {order.left} EUR are left. Nothing "
            "was refunded."
        )
    row = {"order_id": order_id, "amount": cents, "reason": reason, "key": key}
    number = connection.execute(REFUNDS.insert().values(row).returning(REFUNDS.c.id)).scalar_one()
    return {
        "refund": f"R-{number}",
        "order_id": order_id,
        "amount": str(_euros(cents)),
        "left": str(_euros(left)),
    }


@lru_cache(maxsize=8)
def _engine(url: str) -> sa.Engine:
    """One for each process. Parameters stay out of its errors, which a model may read."""
    if sa.make_url(url).get_backend_name() == "sqlite":
        # A connection that is kept would go on with a file that was removed.
        return sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)
    idle = f"-c idle_in_transaction_session_timeout={_IDLE_MILLISECONDS}"
    arguments = {"options": idle, "connect_timeout": 5}
    return sa.create_engine(
        url, connect_args=arguments, pool_pre_ping=True, pool_timeout=5, hide_parameters=True
    )


def _cents(amount: Decimal) -> int:
    cents = amount * 100
    if cents != cents.to_integral_value():
        raise ToolFailed(f"{amount} EUR is no amount of whole cents.")
    return int(cents)


def _euros(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)

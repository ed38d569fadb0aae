"""The tools of the refunds agent. Their docstrings and types are what the model reads.

Each has another `effect`, since its target allows another promise: a database of one's own can keep
our key, a mail server knows none, and a carrier knows none but can be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from examples.refunds import carrier, mail, orders
from turnkeeper import Landed, NotLanded, ToolContext, tool
from turnkeeper.ledger import once_per_key

__all__ = ["book_pickup", "find_order", "issue_refund", "send_email"]

LARGE = Decimal(100)
"""Euros: a larger refund is no longer the model's alone to decide."""

OrderId = Annotated[int, Field(ge=1, le=2**31 - 1, description="Number of the order.")]


@tool(effect="read", timeout=15)
def find_order(order_id: OrderId) -> dict[str, Any]:
    """Look an order up: its item and state, the customer's address, and the amounts in euros.

    `amount` was paid, `refunded` was paid back already, and `left` can still be refunded.
    """
    order = orders.look_up(order_id)
    return {**vars(order), "left": order.left}


def is_large(args: Mapping[str, Any]) -> str | bool:
    """Whether a person has to allow a refund, and why."""
    return args["amount"] > LARGE and f"{args['amount']} EUR are more than {LARGE}"


@tool(effect="idempotent", timeout=30, retries=4, approval=is_large)
def issue_refund(
    order_id: OrderId,
    amount: Annotated[
        Decimal,
        Field(gt=0, max_digits=12, decimal_places=2, description="In euros, such as 12.50."),
    ],
    reason: Annotated[str, Field(max_length=500, description="Why, in a few words.")],
    ctx: ToolContext,
) -> Any:
    """Pay an order back, or part of it, to where the payment came from.

    Never more than what is left of it. Returns the number of the refund.
    """
    # First the key: of two attempts one makes the change, and the other gets its receipt.
    with orders.transaction() as connection, once_per_key(connection, ctx) as effect:
        if effect.is_new:
            effect.receipt = orders.refund(
                connection, order_id, amount, reason, ctx.idempotency_key
            )
    return effect.receipt


# `retries` is for RetryTool alone: mail servers know no keys, so an attempt that may have sent is
# the last one.
@tool(effect="once", timeout=60, retries=3)
def send_email(
    order_id: OrderId,
    subject: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\r\n]+$")],
    text: Annotated[str, Field(min_length=1, max_length=20_000, description="Plain text.")],
    ctx: ToolContext,
) -> str:
    """Send an e-mail to the customer of an order, at the address that the order has."""
    # The address is not the model's to choose: nobody talks it into writing to someone else.
    customer = orders.look_up(order_id).customer
    mail.send(mail.compose(customer, subject, text, ctx.idempotency_key))
    return f"Sent to {customer}."


async def find_pickup(ctx: ToolContext, _args: Mapping[str, Any]) -> Landed | NotLanded:
    """Ask the carrier for what was booked under the call's key."""
    booked = await asyncio.to_thread(carrier.bookings, ctx.idempotency_key)
    if not booked:
        # The request of the attempt before may still be on its way; not for longer than this.
        await asyncio.sleep(carrier.SETTLED_SECONDS)
        booked = await asyncio.to_thread(carrier.bookings, ctx.idempotency_key)
    return Landed(booked[0]) if booked else NotLanded()


@tool(effect="reconcilable", probe=find_pickup, timeout=30, retries=4)
def book_pickup(order_id: OrderId, ctx: ToolContext) -> dict[str, Any]:
    """Have the carrier pick an order up at the customer's address. Returns the day."""
    return carrier.book(ctx.idempotency_key, order_id, orders.look_up(order_id).address)

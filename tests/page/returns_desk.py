"""A run of 60 turns as a person may have to read it: errors, approvals, an image, hostile text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import PIL.Image
import PIL.ImageDraw

from tests.media_samples import encoded
from turnkeeper import Media, ToolFailed, tool
from turnkeeper.testing import call, reply, text, thinking

TURNS = 60
HOSTILE = (
    "</pre></details></section></main></style></script>"
    "<script>window.hacked = 1; alert('hacked')</script>"
    "<img src=x onerror=\"window.hacked = 1; alert('hacked')\">"
    "<img src='http://127.0.0.1:9/beacon.png'><iframe src='http://127.0.0.1:9/'></iframe>"
    "<a href=\"javascript:window.hacked=1\" style='position:fixed;inset:0'>click</a>"
)
_ORDERS = 12
_UNCLEAR = 5
"""The order whose customer may or may not have been written to."""


@tool(effect="read")
async def look_up(order: int) -> str:
    """Look up an order."""
    await asyncio.sleep(0.01)
    if order == 1009:
        return f"note of the customer: {HOSTILE}"
    lines = [{"sku": f"SKU-{order}-{n}", "name": "Lamp, brass", "quantity": n} for n in (1, 2)]
    return json.dumps({"order": order, "customer": "A. Customer", "lines": lines}, indent=2)


@tool(effect="read")
async def read_policy(section: int) -> str:
    """Read a section of the returns policy."""
    if section > 9:
        raise ToolFailed(f"The policy has no section {section}. It has sections 1 to 9.")
    rule = "Goods that arrive broken are refunded whole within thirty days of their delivery."
    return "\n".join(f"{section}.{n}  {rule}" for n in range(1, 31))


@tool(effect="read")
async def photo(order: int) -> list[str | Media]:
    """The photo that a customer has sent."""
    if order % 4:
        return [f"There is no photo of order {order}."]
    image = PIL.Image.new("RGB", (640, 400), "#d9cfc0")
    draw = PIL.ImageDraw.Draw(image)
    draw.polygon([(220, 110), (420, 110), (480, 240), (160, 240)], fill="#b5893f")
    draw.rectangle([312, 240, 328, 350], fill="#6b5a3a")
    draw.line([(250, 120), (330, 200), (300, 235)], fill="#402", width=4)
    return ["The photo that was sent:", Media(encoded(image), name=f"order-{order}.png")]


@tool(effect="read")
async def stock(sku: str) -> str:
    """How many of an article there are."""
    await asyncio.sleep(0.02)
    return f"{sku}  {len(sku) * 3} in stock"


def large(args: Mapping[str, Any]) -> bool | str:
    """Whether a person is asked."""
    return args["amount"] > 100 and f"{args['amount']} EUR is more than 100"


@tool(effect="idempotent", approval=large)
async def issue_refund(order: int, amount: int) -> str:
    """Refund an order."""
    return f"Refunded {amount} EUR for order {order}."


@tool(effect="once")
async def write_to_customer(order: int, letter: str) -> str:
    """Write to the customer of an order."""
    if order % 1000 == _UNCLEAR:
        raise ConnectionError("the mail server closed the connection")
    return f"Sent, {len(letter)} characters."


TOOLS = [look_up, read_policy, photo, stock, issue_refund, write_to_customer]
PROMPT = (
    "Go through the twelve returns of today (orders 1001 to 1012). Look at each one, refund what "
    "the policy allows, and write to the customers.\n\nAsk before anything over 100 EUR."
)
ANSWER = (
    "All twelve returns are done. Eleven were refunded; the refund of order 1008 was denied.\n\n"
    "- Order 1005: I cannot tell whether the letter was sent. Please look at the mail server's log."
)


def script() -> list[Any]:
    """The replies, a turn each."""
    worked = [r for n in range(1, _ORDERS + 1) for r in _order(n)]
    return [*worked[: TURNS - 1], text(ANSWER)]


def _order(number: int) -> list[Any]:
    order = 1000 + number
    section = 17 if number in (2, 3, 11) else 1 + number % 9
    amount = 240 if number in (4, 8) else 20 + number
    letter = f"Dear customer,\n\nwe have refunded {amount} EUR for order {order}.\n\nYour shop"
    thought = thinking(f"Order {order} is next. " + "What does the policy say about it? " * 6)
    return [
        reply([thought, text(f"Order {order} is next."), call("look_up", {"order": order})]),
        reply([call("read_policy", {"section": section})], delay=0.01 * number),
        reply([call("photo", {"order": order}), call("stock", {"sku": f"SKU-{order}-1"})]),
        reply([call("issue_refund", {"order": order, "amount": amount})], delay=0.02),
        reply([call("write_to_customer", {"order": order, "letter": letter})]),
    ]

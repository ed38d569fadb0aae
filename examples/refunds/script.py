"""What the scripted provider plays for the refunds agent, where there is no real model.

    python -m turnkeeper.testing.provider --script examples.refunds.script:script

It handles "Refund order 1007, it arrived broken." and "Refund 12.50 of order 1001." in the order of
the agent's instructions, from what the tools return. A pickup is booked where the request says why
the item comes back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from turnkeeper.testing import Exchange, Reply, call, reply, text

__all__ = ["script"]

_CAPABILITIES: Final = (
    "I am a script that stands in for a model. I can refund an order: Refund order 1007, it arrived"
    " broken. Or a part of it: Refund 12.50 of order 1001."
)
_COMES_BACK: Final = re.compile(r"\b(broken|damaged|faulty|wrong|return|unwanted)", re.IGNORECASE)


def script(exchange: Exchange) -> Reply:
    """The reply to `exchange`. It depends on nothing else, so a repeated request gets it again."""
    asked = _Request.of(exchange.prompt)
    if asked is None:
        return text(_CAPABILITIES)
    done = dict(_results(exchange.body["messages"]))
    if not done:
        return reply(
            [text("I look the order up."), call("find_order", {"order_id": asked.order_id})]
        )
    last = list(done)[-1]
    if exchange.last_results and exchange.last_results[-1].is_error:
        return text(f"I got stuck at {last}: {done[last]}")
    return asked.go_on(last, {name: _json(told) for name, told in done.items()})


@dataclass(frozen=True)
class _Request:
    """A refund of an order; all that is left of it where no `amount` is named."""

    order_id: int
    amount: Decimal | None
    comes_back: bool

    @classmethod
    def of(cls, words: str) -> _Request | None:
        order = re.search(r"\border ([0-9]{1,9})\b", words, re.IGNORECASE)
        if order is None:
            return None
        amount = re.search(r"\brefund ([0-9]{1,9}\.[0-9]{2})\b", words, re.IGNORECASE)
        return cls(
            order_id=int(order[1]),
            amount=Decimal(amount[1]) if amount else None,
            comes_back=_COMES_BACK.search(words) is not None,
        )

    def go_on(self, last: str, done: dict[str, Any]) -> Reply:
        """The next step after the tool `last`, from what each tool has returned."""
        order = {"order_id": self.order_id}
        if last == "find_order":
            return self._refund(done["find_order"])
        if last == "issue_refund" and self.comes_back:
            return reply([text("The item comes back."), call("book_pickup", order)])
        if last in ("issue_refund", "book_pickup"):
            subject = f"Your refund for order {self.order_id}"
            mail = {"subject": subject, "text": _letter(done)}
            return reply([text("I tell the customer."), call("send_email", order | mail)])
        return text(_answer(done))

    def _refund(self, found: dict[str, Any]) -> Reply:
        if found["state"] != "delivered":
            return text(f"Order {self.order_id} is {found['state']}: there is nothing to refund.")
        if self.amount is None and not Decimal(found["left"]):
            return text(f"Order {self.order_id} is refunded already.")
        amount = str(self.amount or found["left"])
        reason = "the item comes back" if self.comes_back else "asked for by the customer"
        refund = {"order_id": self.order_id, "amount": amount, "reason": reason}
        return reply([text(f"I refund {amount} EUR."), call("issue_refund", refund)])


def _letter(done: dict[str, Any]) -> str:
    refund, pickup = done["issue_refund"], done.get("book_pickup", {})
    lines = [
        "Hello,",
        f"we have refunded {refund['amount']} EUR for your order {refund['order_id']}.",
        *([f"The carrier picks the item up on {pickup['day']}."] if "day" in pickup else []),
        "Your customer support",
    ]
    return "\n\n".join(lines)


def _answer(done: dict[str, Any]) -> str:
    refund, pickup = done["issue_refund"], done.get("book_pickup", {})
    booked = f" Pickup {pickup['pickup']} is on {pickup['day']}." if "pickup" in pickup else ""
    return (
        f"Refunded {refund['amount']} EUR for order {refund['order_id']} ({refund['refund']}) and "
        f"told the customer.{booked}"
    )


def _results(messages: list[Any]) -> Iterator[tuple[str, str]]:
    """(tool, text) of each result, in order."""
    names: dict[str, str] = {}
    for message in messages:
        if isinstance(message["content"], str):
            continue
        for block in message["content"]:
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                yield names[block["tool_use_id"]], _words(block.get("content") or "")


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _json(words: str) -> Any:
    try:
        found = json.loads(words)
    except ValueError:
        # A sentence, such as that of a person who settled what became of a call.
        return {}
    return found if isinstance(found, dict) else {}

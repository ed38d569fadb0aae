"""The refunds agent: "Refund order 1007, it arrived broken." """

from __future__ import annotations

from examples.refunds.tools import book_pickup, find_order, issue_refund, send_email
from turnkeeper import Agent, ApprovalPolicy, Limits

__all__ = ["agent"]

_INSTRUCTIONS = """\
You are the customer support of a shop, and handle refunds. Amounts are in euros.

1. Look the order up with `find_order` before anything else; never rely on what the request says \
about it. If the request names no order, ask for its number.
2. Refund what was asked for, and all that is left of the order if no amount was named; never more \
than what is left. Do not refund an order that is on its way (`placed`, `shipped`): say so.
3. If the customer has to send the item back (broken, wrong or unwanted), book a pickup, once.
4. Tell the customer with one e-mail what was done: the amount, and the day of the pickup. Promise \
nothing that you have not seen confirmed in a result.
5. Answer with one or two sentences that say what was done, with the numbers of refund and pickup.

When a result says that something failed, nothing of it was done: mend the arguments if that is \
what it says, or report it. When it says that a call was denied, do not try it in another way, in \
parts for example: say so. When a result says that a call may or may not have taken effect, do \
not make that call again, and do not tell the customer that it was done or not done: go on with \
what does not depend on it, and say in your answer what a person has to check."""

agent = Agent(
    name="refunds",
    model="claude-sonnet-5-5",
    instructions=_INSTRUCTIONS,
    tools=[find_order, issue_refund, send_email, book_pickup],
    # A person finds out in a minute, from the mail server's log, what no model can know; a run
    # that waits costs nothing. A model told of the doubt could only pass it on to the customer.
    on_unknown="wait",
    # What is asked for on a Friday evening is not denied before Monday.
    approvals=ApprovalPolicy(expires=3 * 86_400),
    limits=Limits(turns=12, wall_seconds=7 * 86_400),
)

"""The client of the carrier's service, see `carrier_service`."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Final
from urllib.parse import quote

from examples.refunds.settings import carrier
from turnkeeper import RetryTool, ToolFailed

__all__ = ["SETTLED_SECONDS", "CarrierError", "book", "bookings"]

_VALID_SECONDS: Final = 5.0
"""After which the carrier refuses a request that arrives late."""
SETTLED_SECONDS: Final = _VALID_SECONDS + 1
"""After which no request that was sent can bring a booking any more; the clocks of both sides may
differ by a second."""
_WHAT_TO_DO: Final = "`python -m examples.refunds.services` runs one; REFUNDS_CARRIER_URL names it."


class CarrierError(Exception):
    """The carrier did not answer as agreed: what it did is not known."""


def book(reference: str, order_id: int, address: str) -> dict[str, Any]:
    """Book a pickup; the carrier does so each time it is asked, whatever the reference.

    Raises:
        RetryTool: the carrier is not there, or the request came too late; nothing was booked.
        ToolFailed: it refuses the booking.
        CarrierError, OSError, http.client.HTTPException: it may have booked.
    """
    asked = {
        "reference": reference,
        "order_id": order_id,
        "address": address,
        "expires": time.time() + _VALID_SECONDS,
    }
    status, answer = _ask("POST", "/pickups", asked)
    if status == 201:
        return dict(answer)
    said = answer.get("error", f"status {status}")
    if status == 410:
        raise RetryTool(f"The carrier got the request too late; nothing was booked: {said}")
    if 400 <= status < 500:
        raise ToolFailed(f"The carrier refuses the pickup: {said}. Nothing was booked.")
    raise CarrierError(f"the carrier answered {status}: {said}")


def bookings(reference: str) -> list[dict[str, Any]]:
    """The pickups under this reference, the first one first.

    Raises:
        RetryTool, CarrierError, OSError, http.client.HTTPException: there is no answer.
    """
    status, answer = _ask("GET", f"/pickups?reference={quote(reference, safe='')}")
    if status != 200:
        raise CarrierError(f"the carrier answered {status}")
    return list(answer["pickups"])


def _ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    host, port = carrier()
    connection = http.client.HTTPConnection(host, port, timeout=_VALID_SECONDS)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise RetryTool(
                f"The carrier at {host}:{port} does not answer; nothing was booked. {_WHAT_TO_DO}"
            ) from error
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, _json(reply.read())
    finally:
        connection.close()


def _json(body: bytes) -> Any:
    try:
        answer = json.loads(body)
    except ValueError:
        raise CarrierError("the carrier's answer is no JSON") from None
    if not isinstance(answer, dict):
        raise CarrierError("the carrier's answer is no object")
    return answer

"""One request to the webhook of this worker's operator."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.redact import Redactor
from turnkeeper.contract import NOT_DELIVERED, NOTIFY
from turnkeeper.notices import Notice
from turnkeeper.webhook import signed_headers, signing_key

if TYPE_CHECKING:
    import httpx2

ANSWER_SECONDS = 10.0
"""For one request: connecting, sending, and the receiver's status."""
URL, SECRET = "TURNKEEPER_WEBHOOK_URL", "TURNKEEPER_WEBHOOK_SECRET"

log = structlog.get_logger("turnkeeper.notify")


@dataclass(frozen=True)
class Webhook:
    """Where notices go, and what they are signed with.

    Raises:
        ValueError: one of both is wrong.
    """

    # Both out of every traceback and log: the path of a URL may be as secret as the secret.
    url: str = field(repr=False)
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            sound = False
        if not sound:
            raise ValueError(f"{URL} is no http(s) URL")
        try:
            signing_key(self.secret)
        except ValueError as error:
            make = "import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())"
            raise ValueError(f'{SECRET}: {error}; make one: python -c "{make}"') from None

    @property
    def host(self) -> str:
        """Whom it belongs to: what of it may be shown."""
        return urlsplit(self.url).hostname or ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Webhook | None:
        """That of TURNKEEPER_WEBHOOK_URL and TURNKEEPER_WEBHOOK_SECRET; None without both.

        Raises:
            ValueError: one of both is missing or wrong.
        """
        variables = os.environ if environment is None else environment
        url, secret = variables.get(URL, "").strip(), variables.get(SECRET, "").strip()
        if not url and not secret:
            return None
        if not url or not secret:
            raise ValueError(f"{URL} and {SECRET}: set both, or none of them")
        return cls(url, secret)


class Notify:
    """The activity `run.notify`."""

    def __init__(self, webhook: Webhook | None, redactor: Redactor) -> None:
        self._webhook = webhook
        self._redactor = redactor
        self._client: httpx2.AsyncClient | None = None

    @activity.defn(name=NOTIFY)
    async def run(self, notice: Notice) -> None:
        """Send it once; the receiver has it when the answer is a 2xx.

        Raises:
            ApplicationError: of type `not_delivered`, to be tried again.
        """
        webhook = self._webhook
        if webhook is None:
            raise self._failed(notice, f"this worker has no webhook ({URL})")
        body = notice.cleaned(self._redactor.error).model_dump_json(exclude_none=True).encode()
        headers = signed_headers(webhook.secret, notice.id, int(time.time()), body)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await self._post(webhook.url, body, headers)
        except Exception as error:  # noqa: BLE001  of the HTTP library, which may name the URL
            why = f"{webhook.host} does not answer: {type(error).__name__}"
            raise self._failed(notice, why) from None
        if not 200 <= status < 300:
            raise self._failed(notice, f"{webhook.host} answered {status}")
        log.info("notified", event_kind=notice.event, notice=notice.id, run=notice.workflow_id)

    async def close(self) -> None:
        """Release connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(follow_redirects=False, timeout=ANSWER_SECONDS)
        headers = headers | {"content-type": "application/json", "user-agent": "turnkeeper"}
        # Streamed, and closed unread: the status is all that counts.
        async with self._client.stream("POST", url, content=body, headers=headers) as response:
            return response.status_code

    def _failed(self, notice: Notice, why: str) -> ApplicationError:
        log.warning(
            "notice not delivered",
            event_kind=notice.event,
            notice=notice.id,
            run=notice.workflow_id,
            attempt=activity.info().attempt,
            why=why,
        )
        return ApplicationError(why, type=NOT_DELIVERED)

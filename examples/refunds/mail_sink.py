"""A mail server for a development machine: it keeps what it gets, and sends nothing on.

Mails are kept in a Maildir, which any mail program reads. An address whose domain ends in
`.invalid`, which by RFC 2606 no domain does, is refused as one that does not exist.
"""

from __future__ import annotations

import asyncio
import mailbox
import sys
import threading
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from aiosmtpd.smtp import SMTP, Envelope, Session

__all__ = ["MailSink"]

_SECONDS: Final = 10


class MailSink:
    """The server in a thread of this process: `with MailSink(folder) as sink`.

    `port` 0 takes a free one; it is known once it runs. Raises OSError if the port is taken.
    """

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.port = port
        self._kept = mailbox.Maildir(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def mails(self) -> list[EmailMessage]:
        """What has arrived, in no order."""
        return [message_from_bytes(kept.as_bytes(), policy=default) for kept in self._kept]

    def __enter__(self) -> Self:
        self._thread.start()
        # Not aiosmtpd's own Controller, which cannot take a free port.
        listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        try:
            self._server = listening.result(_SECONDS)
        except BaseException:
            self._end()
            raise
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._end()

    async def _listen(self) -> asyncio.Server:
        keeper = _Keeper(self._kept)
        return await self._loop.create_server(
            lambda: SMTP(keeper, loop=self._loop), "127.0.0.1", self.port
        )

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()


class _Keeper:
    """What the server does at each step; the names are aiosmtpd's."""

    def __init__(self, kept: mailbox.Maildir) -> None:
        self._kept = kept

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _: list[Any]
    ) -> str:
        if address.lower().endswith(".invalid"):
            return f"550 {address} does not exist"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        content = envelope.content
        assert isinstance(content, bytes)
        # Written and synced before the answer.
        self._kept.add(content)
        subject = message_from_bytes(content, policy=default)["Subject"]
        sys.stderr.write(f"mail to {', '.join(envelope.rcpt_tos)}: {subject}\n")
        return "250 kept"

"""One e-mail over SMTP, sent at most once.

A message is the mail server's from the moment at which it confirms the text. Whatever fails before
the text has begun to travel has sent nothing (RetryTool, ToolFailed); so has a text that the server
refuses. If the connection breaks in between, nobody here can tell: that error is raised as it is.

Synchronous on purpose: the standard library's client says exactly where it stands, and the tool
that uses it runs in a process that can be killed.
"""

from __future__ import annotations

import contextlib
import smtplib
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import localtime
from typing import Final, NoReturn

from examples.refunds.settings import smtp
from turnkeeper import RetryTool, ToolFailed

__all__ = ["SENDER", "compose", "send"]

SENDER: Final = "support@refunds.example"
_SECONDS: Final = 10
"""For each answer of the mail server."""
_WHAT_TO_DO: Final = (
    "`python -m examples.refunds.services` runs a mail server; REFUNDS_SMTP names another."
)


def compose(to: str, subject: str, text: str, key: str) -> EmailMessage:
    """The message; its Message-ID has the key, by which a person finds it in a mail log.

    Raises:
        ToolFailed: subject or address cannot be a header.
    """
    # Not every mail server takes eight bits.
    message = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
    try:
        message["From"] = f"Customer support <{SENDER}>"
        message["To"] = to
        message["Subject"] = subject
        message["Date"] = localtime()
        message["Message-ID"] = f"<{key}@refunds.example>"
        message.set_content(text)
        message.as_bytes()
    except (MessageError, ValueError) as error:
        raise ToolFailed(f"This cannot be sent as an e-mail: {error}. Nothing was sent.") from None
    return message


def send(message: EmailMessage) -> None:
    """Hand the message to the mail server.

    Raises:
        RetryTool: the server is not there, or takes nothing for now; nothing was sent.
        ToolFailed: it refuses the recipient or the text, or the address is no ASCII; nothing was
            sent.
        OSError: the server did not confirm the text; it may have been sent.
    """
    server = smtplib.SMTP(timeout=_SECONDS, local_hostname="localhost")
    try:
        _open(server, *smtp(), recipient=message["To"])
        _hand_over(server, message.as_bytes())
        # It has the message: how the connection ends does not matter any more.
        with contextlib.suppress(OSError):
            server.quit()
    finally:
        server.close()


def _open(server: smtplib.SMTP, host: str, port: int, recipient: str) -> None:
    try:
        code, said = server.connect(host, port)
        if code == 220:
            server.ehlo_or_helo_if_needed()
            code, said = server.mail(SENDER)
        if code == 250:
            code, said = server.rcpt(recipient)
    except UnicodeError:
        raise ToolFailed(
            f"The address {recipient} cannot be used: it is not plain ASCII. Nothing was sent."
        ) from None
    # Of which every smtplib.SMTPException is one.
    except OSError as error:
        raise RetryTool(
            f"The mail server at {host}:{port} cannot be reached or ended the connection; nothing "
            f"was sent. {_WHAT_TO_DO}"
        ) from error
    if code not in (250, 251):
        _refused(f"mail for {recipient}", code, said)


def _hand_over(server: smtplib.SMTP, text: bytes) -> None:
    try:
        code, said = server.data(text)
    except smtplib.SMTPDataError as error:
        _refused("the message", error.smtp_code, error.smtp_error)
    if code != 250:
        _refused("the message", code, said)


def _refused(what: str, code: int, said: bytes | str) -> NoReturn:
    words = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    if not 400 <= code < 600:
        # No answer that SMTP knows: it may mean anything.
        raise smtplib.SMTPResponseException(code, words)
    told = f"The mail server does not take {what}: {code} {words}. Nothing was sent."
    # 4yz: not now. 5yz: never.
    raise RetryTool(told) if code < 500 else ToolFailed(told)

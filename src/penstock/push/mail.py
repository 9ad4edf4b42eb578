"""The courier of mail: subscriptions with the protocols ``email`` (the text of a message) and
``email-json`` (the notification of SNS).

Mails go to the operator's mail server (``push.smtp_url``) by ``smtplib``, in at most two threads;
other messages wait without a thread. A body is always written as base64, so that no line of a
message can be taken for a command, and control characters of a subject become spaces, so that it
cannot add a header."""

import asyncio
import base64
import re
import smtplib
import socket
import ssl
import threading
from contextlib import suppress
from datetime import datetime
from email.utils import format_datetime
from typing import Final

from penstock.flow.verdicts import Failure
from penstock.model.sent_message import SentMessage
from penstock.model.subscription import Subscription, SubscriptionState
from penstock.push.couriers import DELIVERED
from penstock.wire.aws.sns.book_rules import is_mail_address
from penstock.wire.aws.sns.notification import unsubscribe_url
from penstock.wire.webhooks.content import timestamp
from penstock.wire.webhooks.courier_urls import MailServer

THREADS_MAX: Final = 2
STEP_SECONDS_MAX: Final = 15.0  # for the connection and for each reply of the server
_SUBJECT_DEFAULT: Final = "AWS Notification Message"  # filters of mailboxes look for it
_PERMANENT: Final = 500  # lowest SMTP code of a failure that a retry does not change
_TOO_LARGE: Final = 552
_WORD_BYTES_MAX: Final = 45  # 60 characters of base64, in a line of 78
_is_plain = re.compile("[ !-<>-~]{1,60}").fullmatch  # without the sign = of encoded texts
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class MailCourier:
    def __init__(
        self,
        server: MailServer,
        *,
        sender: str,  # ``push.mail_from``, an address
        tls: ssl.SSLContext,
        seconds_max: float = STEP_SECONDS_MAX,
    ) -> None:
        self._server = server
        self._sender = sender
        self._tls = tls
        self._seconds_max = seconds_max
        self._free = asyncio.Semaphore(THREADS_MAX)

    async def send(self, one: Subscription, message: SentMessage) -> int | Failure:
        if not is_mail_address(message.endpoint):
            return Failure.ADDRESS_INVALID
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[int | Failure] = loop.create_future()

        def ended(result: int | Failure | Exception) -> None:
            self._free.release()
            if sent.done():
                return  # cancelled
            if isinstance(result, Exception):
                sent.set_exception(result)
            else:
                sent.set_result(result)

        def work() -> None:
            result: int | Failure | Exception
            try:
                result = self._send(one, message)
            except Exception as error:  # a bug
                result = error
            with suppress(RuntimeError):  # the event loop was closed meanwhile
                loop.call_soon_threadsafe(ended, result)

        # A daemon, because a mail can take a minute and must not delay the end of the process.
        try:
            threading.Thread(target=work, name="mail", daemon=True).start()
        except RuntimeError:  # too many threads
            self._free.release()
            return Failure.MAIL_FAILED
        return await sent

    def _send(self, one: Subscription, message: SentMessage) -> int | Failure:
        mail = compose(one, message, sender=self._sender)
        try:
            client = self._connect()
            try:
                client.sendmail(self._sender, [message.endpoint], mail)
            finally:
                with suppress(OSError):  # the server has accepted the mail, however it says goodbye
                    client.quit()
        except OSError as error:  # also all errors of smtplib
            return _failure_of(error)
        return DELIVERED

    def _connect(self) -> smtplib.SMTP:
        server = self._server
        # Without a name of its own, the library would look one up in the DNS.
        own_name, seconds = self._sender.rpartition("@")[2], self._seconds_max
        client: smtplib.SMTP
        if server.is_tls:
            client = smtplib.SMTP_SSL(
                server.host, server.port, own_name, timeout=seconds, context=self._tls
            )
        else:
            client = smtplib.SMTP(server.host, server.port, own_name, timeout=seconds)
        try:
            client.ehlo_or_helo_if_needed()
            is_tls = server.is_tls
            if not (is_tls or server.is_local) and client.has_extn("starttls"):
                client.starttls(context=self._tls)
                is_tls = True
            if server.user:
                if not (is_tls or server.is_local):
                    raise ssl.SSLError("the mail server offers no TLS, which a password needs")
                client.login(server.user, server.password)
        except BaseException:
            client.close()
            raise
        return client


def compose(one: Subscription, message: SentMessage, *, sender: str) -> bytes:
    """Return a mail as it is sent."""
    text = message.body.decode(errors="replace")
    if one.protocol == "email-json":
        text = message.notification.decode(errors="replace") or text
    elif one.state is SubscriptionState.CONFIRMED:
        url = unsubscribe_url(one.base_url, one.arn)
        text = f"{text}\n\n--\nTo stop receiving these messages, open this link:\n{url}\n"
    subject = _CONTROL.sub(" ", message.subject or "").strip() or _SUBJECT_DEFAULT
    head = (
        f"From: {sender}",
        f"To: {message.endpoint}",
        f"Subject: {_header_text(subject)}",
        f"Date: {format_datetime(datetime.fromisoformat(timestamp(message.sent_at_ms)))}",
        f"Message-ID: <{message.message_id}@{sender.rpartition('@')[2]}>",
        "Auto-Submitted: auto-generated",  # no notice of absence is sent back
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: base64",
    )
    body = base64.encodebytes(text.encode(errors="replace")).replace(b"\n", b"\r\n")
    return "\r\n".join((*head, "", "")).encode("ascii") + body


def _header_text(text: str) -> str:
    """Return a text for a header, as RFC 2047 has it. The library of Python must not do this: it
    decodes a subject that looks encoded, and writes the line breaks that it finds there."""
    if _is_plain(text):
        return text
    words, word = [], b""
    for char in text:
        raw = char.encode(errors="replace")
        if len(word) + len(raw) > _WORD_BYTES_MAX:
            words.append(word)
            word = b""
        word += raw
    encoded = [base64.b64encode(one).decode() for one in (*words, word)]
    return "\r\n ".join(f"=?utf-8?b?{one}?=" for one in encoded)


def _failure_of(error: OSError) -> Failure:
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        [(code, _)] = error.recipients.values()
        return _rejected(code)
    if isinstance(error, smtplib.SMTPDataError):
        return _rejected(error.smtp_code)
    if isinstance(error, smtplib.SMTPSenderRefused) and error.smtp_code == _TOO_LARGE:
        return Failure.MAIL_REJECTED
    if isinstance(error, smtplib.SMTPServerDisconnected):
        return Failure.CONNECTION_LOST
    if isinstance(error, smtplib.SMTPException):  # of the login or the sender: settings are wrong
        return Failure.MAIL_FAILED
    if isinstance(error, ssl.SSLError):
        return Failure.TLS
    if isinstance(error, socket.gaierror):
        return Failure.NOT_RESOLVED
    return Failure.TIMEOUT if isinstance(error, TimeoutError) else Failure.NOT_CONNECTED


def _rejected(code: int) -> Failure:
    return Failure.MAIL_REJECTED if code >= _PERMANENT else Failure.MAIL_FAILED

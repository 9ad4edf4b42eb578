"""Mails through a real SMTP dialogue with a server of the tests."""

import asyncio
import ssl
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.smtp_server import SmtpServer

from penstock.flow.verdicts import Failure
from penstock.model.sent_message import SentMessage
from penstock.model.subscription import Subscription, SubscriptionState, new_id
from penstock.push.couriers import Courier
from penstock.push.mail import MailCourier, compose
from penstock.wire.webhooks.courier_urls import MailServer

TLS = ssl.create_default_context()
ACCOUNT = "000000000000"
TOPIC = f"arn:aws:sns:us-east-1:{ACCOUNT}:orders"
FROM, TO = "sns@example.com", "ann@example.com"
SENT = SentMessage(
    "12345678-1234-4234-8234-123456789abc",
    TO,
    "Grüße\n.\nRCPT TO:<eve@example.com>\n".encode(),
    1_700_000_000_000,
    "Order 7",
    TOPIC,
    notification=b'{"Type":"Notification"}',
)


def subscription(protocol: str = "email") -> Subscription:
    return Subscription(
        id=new_id("topic", protocol, TO, random=b"\1" * 8),
        topic_id="topic",
        source_arn=TOPIC,
        account=ACCOUNT,
        region="us-east-1",
        protocol=protocol,
        endpoint=TO,
        created_at_ms=0,
        state=SubscriptionState.CONFIRMED,
        base_url="http://sns.example",
    )


@pytest.fixture
async def server() -> AsyncIterator[SmtpServer]:
    async with SmtpServer() as running:
        yield running


def courier(server: SmtpServer, **changes: object) -> Courier:
    at = msgspec.structs.replace(MailServer("127.0.0.1", server.port, is_tls=False), **changes)
    return MailCourier(at, sender=FROM, tls=TLS)


async def test_a_mail_has_the_text_and_a_link_to_unsubscribe(server: SmtpServer) -> None:
    assert await courier(server).send(subscription(), SENT) == 200
    [mail] = server.mails
    assert mail.recipients == [f"TO:<{TO}>"]
    assert mail.sender.startswith(f"FROM:<{FROM}>")
    message = mail.message
    assert (message["From"], message["To"], message["Subject"]) == (FROM, TO, "Order 7")
    assert message["Message-ID"] == f"<{SENT.message_id}@example.com>"
    assert message["Date"] == "Tue, 14 Nov 2023 22:13:20 +0000"
    text = message.get_content()
    link = f"http://sns.example/?Action=Unsubscribe&SubscriptionArn={subscription().arn}"
    assert text.startswith("Grüße\n.\nRCPT TO:<eve@example.com>\n")
    assert link in text


async def test_email_json_gets_the_notification(server: SmtpServer) -> None:
    assert await courier(server).send(subscription("email-json"), SENT) == 200
    assert server.mails[0].message.get_content().strip() == '{"Type":"Notification"}'


async def test_a_confirmation_has_no_link_to_unsubscribe(server: SmtpServer) -> None:
    pending = msgspec.structs.replace(subscription(), state=SubscriptionState.PENDING)
    await courier(server).send(pending, msgspec.structs.replace(SENT, subject=None))
    message = server.mails[0].message
    assert message["Subject"] == "AWS Notification Message"
    assert "Unsubscribe" not in message.get_content()


# ── Attacks ──────────────────────────────────────────────────────────────────────────────────

ATTACKS = [
    "hello\r\nBcc: eve@example.com",
    "hello\nBcc: eve@example.com",
    "hello\rBcc: eve@example.com",
    "hello\r\n\r\nbody",
    "hello\u2028Bcc: eve@example.com",
    "\x0bBcc: eve@example.com",
    "x" * 100 + "\nBcc: eve@example.com",
    "=?utf-8?q?hello=0ABcc:_eve=40example.com?=",
]


@pytest.mark.parametrize("subject", ATTACKS)
async def test_a_subject_adds_no_header_and_no_recipient(server: SmtpServer, subject: str) -> None:
    sent = msgspec.structs.replace(SENT, subject=subject)
    assert await courier(server).send(subscription(), sent) == 200
    [mail] = server.mails
    assert mail.message["Bcc"] is None
    assert mail.message.get_content().startswith("Grüße")
    assert mail.recipients == [f"TO:<{TO}>"]
    assert sum(line.upper().startswith("RCPT") for line in server.commands) == 1


@pytest.mark.parametrize(
    "address",
    ["ann@example.com\r\nRCPT TO:<eve@example.com>", "ann@example.com, eve@example.com",
     "ann@example.com> <eve@example.com", "ann@example.com\nBcc: eve@example.com", ""],
)  # fmt: skip
async def test_a_bad_address_is_never_sent_to_the_server(server: SmtpServer, address: str) -> None:
    sent = msgspec.structs.replace(SENT, endpoint=address)
    assert await courier(server).send(subscription(), sent) is Failure.ADDRESS_INVALID
    assert server.commands == []


@given(st.text(), st.binary())
def test_any_subject_and_body_give_one_mail_with_these_headers(subject: str, body: bytes) -> None:
    sent = msgspec.structs.replace(SENT, subject=subject, body=body)
    raw = compose(subscription(), sent, sender=FROM)
    head, _, rest = raw.partition(b"\r\n\r\n")
    names = [line.split(b":")[0] for line in head.split(b"\r\n") if line[:1] not in b" \t"]
    assert sorted(names) == sorted(
        b"From To Subject Date Message-ID Auto-Submitted MIME-Version Content-Type"
        b" Content-Transfer-Encoding".split()
    )
    assert all(32 <= byte < 127 or byte in b"\r\n\t" for byte in raw)
    assert all(not line.startswith(b".") for line in rest.split(b"\r\n"))


# ── What the server may reply ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("verb", "reply", "expected"),
    [
        ("RCPT", "550 no such mailbox", Failure.MAIL_REJECTED),
        ("RCPT", "450 busy", Failure.MAIL_FAILED),
        (".", "554 spam", Failure.MAIL_REJECTED),
        (".", "451 later", Failure.MAIL_FAILED),
        ("DATA", "554 no", Failure.MAIL_REJECTED),
        ("MAIL", "552 too large", Failure.MAIL_REJECTED),
        ("MAIL", "550 sender", Failure.MAIL_FAILED),
        ("connect", "421 busy", Failure.MAIL_FAILED),
        ("connect", None, Failure.CONNECTION_LOST),
        ("EHLO", None, Failure.CONNECTION_LOST),
        (".", None, Failure.CONNECTION_LOST),
        ("connect", "garbage", Failure.MAIL_FAILED),
    ],
)
async def test_what_becomes_of_the_replies_of_the_server(
    server: SmtpServer, verb: str, reply: str | None, expected: Failure
) -> None:
    server.replies[verb] = reply
    assert await courier(server).send(subscription(), SENT) is expected
    assert server.mails == []


@pytest.mark.parametrize("reply", ["500 no", None])
async def test_a_mail_that_was_accepted_is_delivered_however_the_dialogue_ends(
    server: SmtpServer, reply: str | None
) -> None:
    server.replies["QUIT"] = reply
    assert await courier(server).send(subscription(), SENT) == 200
    assert len(server.mails) == 1


async def test_nobody_listens(server: SmtpServer) -> None:
    async with SmtpServer() as other:
        gone = other.port
    nobody = courier(server, port=gone)
    assert await nobody.send(subscription(), SENT) is Failure.NOT_CONNECTED


async def test_a_password_is_sent_to_this_machine_and_else_only_over_tls(
    server: SmtpServer,
) -> None:
    async with SmtpServer(extensions=("AUTH PLAIN",)) as login:
        known = courier(login, user="u", password="p")
        assert await known.send(subscription(), SENT) == 200
        assert any(line.startswith("AUTH PLAIN ") for line in login.commands)
    async with SmtpServer(extensions=("AUTH PLAIN",)) as far:
        # A spelling that is not recognized as this machine stands for another one.
        elsewhere = courier(far, user="u", password="p", host="127.1")
        assert await elsewhere.send(subscription(), SENT) is Failure.TLS
        assert not any(line.startswith("AUTH") for line in far.commands)


async def test_at_most_two_mails_are_under_way_and_the_others_wait(server: SmtpServer) -> None:
    server.held = asyncio.Event()
    mail = courier(server)
    tasks = [asyncio.create_task(mail.send(subscription(), SENT)) for _ in range(6)]
    await server.until(lambda one: one.waiting == 2)
    # A cancelled one keeps its thread until the server replies, and then frees it.
    tasks[0].cancel()
    server.held.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [200] * 5
    assert server.waiting_max == 2
    await server.until(lambda one: len(one.mails) == 6)

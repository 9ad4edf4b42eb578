import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.message import Attribute
from penstock.wire.aws.sns import notification
from penstock.wire.aws.sns.notification import Confirmation, Notification, Signer

TOPIC = "arn:aws:sns:us-east-1:111111111111:orders"
SUBSCRIPTION = f"{TOPIC}:8a21d249-4329-4871-acc6-7be709c6ea7f"
BASE = "http://localhost:9324"
CERT = f"{BASE}/SimpleNotificationService-0123.pem"
AT_MS = 1_769_860_800_123
PLAIN = Notification(message_id="m1", topic_arn=TOPIC, message="hello", published_at_ms=AT_MS)
CONFIRMATION = Confirmation(
    message_id="m2", topic_arn=TOPIC, token="ab12", created_at_ms=AT_MS, base_url=BASE
)
KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
HASHES: dict[str, Callable[[], hashes.HashAlgorithm]] = {"1": hashes.SHA1, "2": hashes.SHA256}


def signer(version: str = "1") -> Signer:
    return Signer(version, CERT, lambda text: KEY.sign(text, padding.PKCS1v15(), HASHES[version]()))


FAKE = Signer("1", CERT, lambda text: b"signature of " + text[:7])


def received(made: Notification, signed_by: Signer | None = FAKE) -> dict[str, Any]:
    url = notification.unsubscribe_url(BASE, SUBSCRIPTION)
    document: dict[str, Any] = json.loads(notification.envelope(made, signed_by).body(url))
    return document


def verify(document: dict[str, Any], names: list[str]) -> None:
    """Check a signature as the documentation of SNS tells receivers to."""
    text = "".join(f"{name}\n{document[name]}\n" for name in names if name in document)
    KEY.public_key().verify(
        base64.b64decode(document["Signature"]),
        text.encode(),
        padding.PKCS1v15(),
        HASHES[document["SignatureVersion"]](),
    )


# ── Envelopes ────────────────────────────────────────────────────────────────────────────────

SIGNED = ["SignatureVersion", "Signature", "SigningCertURL"]


@pytest.mark.parametrize(
    ("made", "signed_by", "names"),
    [
        (PLAIN, FAKE,
         ["Type", "MessageId", "TopicArn", "Message", "Timestamp", *SIGNED, "UnsubscribeURL"]),
        (Notification("m", TOPIC, "x", 0, subject="s"), FAKE,
         ["Type", "MessageId", "TopicArn", "Subject", "Message", "Timestamp", *SIGNED,
          "UnsubscribeURL"]),
        (Notification("m", TOPIC, "x", 0, attributes={"a": Attribute("String", b"v")}), FAKE,
         ["Type", "MessageId", "TopicArn", "Message", "Timestamp", *SIGNED, "UnsubscribeURL",
          "MessageAttributes"]),
        (Notification("m", TOPIC, "x", 0, sequence_number="1" * 20), None,
         ["Type", "MessageId", "SequenceNumber", "TopicArn", "Message", "Timestamp",
          "UnsubscribeURL"]),
        (Notification("m", TOPIC, "x", 0, subject="s", sequence_number="1" * 20,
                      attributes={"a": Attribute("String", b"v")}, is_replayed=True), None,
         ["Type", "MessageId", "SequenceNumber", "TopicArn", "Subject", "Message", "Timestamp",
          "UnsubscribeURL", "MessageAttributes", "Replayed"]),
        (Notification("m", TOPIC, "x", 0, is_replayed=True), FAKE,
         ["Type", "MessageId", "TopicArn", "Message", "Timestamp", *SIGNED, "UnsubscribeURL",
          "Replayed"]),
        (Notification("m", TOPIC, "x", 0, attributes={}), FAKE,
         ["Type", "MessageId", "TopicArn", "Message", "Timestamp", *SIGNED, "UnsubscribeURL"]),
    ],
)  # fmt: skip
def test_the_members_of_an_envelope_have_the_order_of_sns(
    made: Notification, signed_by: Signer | None, names: list[str]
) -> None:
    assert list(received(made, signed_by)) == names


def test_an_envelope_has_these_values() -> None:
    attributes = {"s": Attribute("String", "é".encode()), "b": Attribute("Binary.x", b"\x00\x01")}
    made = Notification("m1", TOPIC, "hello", AT_MS, subject="s", attributes=attributes)
    assert received(made) == {
        "Type": "Notification",
        "MessageId": "m1",
        "TopicArn": TOPIC,
        "Subject": "s",
        "Message": "hello",
        "Timestamp": "2026-01-31T12:00:00.123Z",
        "SignatureVersion": "1",
        "Signature": base64.b64encode(b"signature of Message").decode(),
        "SigningCertURL": CERT,
        "UnsubscribeURL": f"{BASE}/?Action=Unsubscribe&SubscriptionArn={SUBSCRIPTION}",
        "MessageAttributes": {
            "s": {"Type": "String", "Value": "é"},
            "b": {"Type": "Binary.x", "Value": "AAE="},
        },
    }


def test_an_envelope_is_signed_once_for_all_subscriptions() -> None:
    texts: list[bytes] = []

    def sign(text: bytes) -> bytes:
        texts.append(text)
        return b"s"

    made = notification.envelope(PLAIN, Signer("2", CERT, sign))
    urls = [notification.unsubscribe_url(BASE, f"{TOPIC}:{number}") for number in range(3)]
    assert [json.loads(made.body(url))["UnsubscribeURL"] for url in urls] == urls
    assert texts == [
        f"Message\nhello\nMessageId\nm1\nTimestamp\n2026-01-31T12:00:00.123Z\n"
        f"TopicArn\n{TOPIC}\nType\nNotification\n".encode()
    ]


@given(
    text=st.text(max_size=50), subject=st.none() | st.text(max_size=20), raw=st.binary(max_size=9)
)
def test_any_text_arrives_as_it_was_published(text: str, subject: str | None, raw: bytes) -> None:
    attributes = {text: Attribute("Binary", raw), "s": Attribute("String", raw)}
    made = Notification("m", TOPIC, text, AT_MS, subject=subject, attributes=attributes)
    document = json.loads(notification.envelope(made, FAKE).body(text))
    assert (document["Message"], document.get("Subject")) == (text, subject)
    assert document["UnsubscribeURL"] == text
    if text != "s":
        shown = document["MessageAttributes"]
        assert base64.b64decode(shown[text]["Value"]) == raw
        assert shown["s"] == {"Type": "String", "Value": raw.decode(errors="replace")}


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", [None, "s", "Grüße"])
def test_notifications_are_signed(version: str, subject: str | None) -> None:
    made = Notification("m1", TOPIC, 'line\n"é"', AT_MS, subject=subject)
    document = received(made, signer(version))
    names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    verify(document, names)
    for name in names:
        if name in document:
            with pytest.raises(InvalidSignature):
                verify(document | {name: document[name] + "x"}, names)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("deleted", [None, SUBSCRIPTION])
def test_confirmations_are_signed(version: str, deleted: str | None) -> None:
    made = Confirmation("m2", TOPIC, "ab12", AT_MS, BASE, deleted)
    document = json.loads(notification.confirmation_body(made, signer(version)))
    names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    verify(document, names)
    for name in names:
        with pytest.raises(InvalidSignature):
            verify(document | {name: document[name] + "x"}, names)


def test_a_confirmation_has_these_members() -> None:
    document = json.loads(notification.confirmation_body(CONFIRMATION, FAKE))
    assert base64.b64decode(document.pop("Signature")) == b"signature of Message"
    assert list(document.items()) == [
        ("Type", "SubscriptionConfirmation"),
        ("MessageId", "m2"),
        ("Token", "ab12"),
        ("TopicArn", TOPIC),
        (
            "Message",
            (
                f"You have chosen to subscribe to the topic {TOPIC}.\n"
                "To confirm the subscription, visit the SubscribeURL included in this message."
            ),
        ),
        ("SubscribeURL", f"{BASE}/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=ab12"),
        ("Timestamp", "2026-01-31T12:00:00.123Z"),
        ("SignatureVersion", "1"),
        ("SigningCertURL", CERT),
    ]


def test_the_confirmation_of_a_deletion_names_the_subscription() -> None:
    made = Confirmation("m2", TOPIC, "ab12", AT_MS, BASE, SUBSCRIPTION)
    document = json.loads(notification.confirmation_body(made, FAKE))
    assert document["Type"] == "UnsubscribeConfirmation"
    assert document["Message"] == (
        f"You have chosen to deactivate subscription {SUBSCRIPTION}.\nTo cancel this operation "
        "and restore the subscription, visit the SubscribeURL included in this message."
    )


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (AT_MS, "2026-01-31T12:00:00.123Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
        (-1, "1970-01-01T00:00:00.000Z"),
        (2**63, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_have_milliseconds(at_ms: int, text: str) -> None:
    assert notification.timestamp(at_ms) == text


# ── Headers and raw messages ─────────────────────────────────────────────────────────────────

COMMON = {
    "Content-Type": "text/plain; charset=UTF-8",
    "User-Agent": "Amazon Simple Notification Service Agent",
    "x-amz-sns-message-id": "m1",
    "x-amz-sns-topic-arn": TOPIC,
}


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "Notification",
            {"subscription_arn": SUBSCRIPTION},
            {"x-amz-sns-subscription-arn": SUBSCRIPTION},
        ),
        (
            "Notification",
            {"subscription_arn": SUBSCRIPTION, "is_raw": True},
            {"x-amz-sns-subscription-arn": SUBSCRIPTION, "x-amz-sns-rawdelivery": "true"},
        ),
        (
            "Notification",
            {"subscription_arn": SUBSCRIPTION, "content_type": "application/json"},
            {"x-amz-sns-subscription-arn": SUBSCRIPTION, "Content-Type": "application/json"},
        ),
        (
            "SubscriptionConfirmation",
            {"content_type": "application/json", "is_raw": True},
            {},
        ),
        ("SubscriptionConfirmation", {"subscription_arn": SUBSCRIPTION}, {}),
        (
            "UnsubscribeConfirmation",
            {"subscription_arn": SUBSCRIPTION, "content_type": "application/json"},
            {"x-amz-sns-subscription-arn": SUBSCRIPTION},
        ),
    ],
)
def test_requests_have_the_headers_of_sns(
    kind: str, options: dict[str, Any], expected: dict[str, str]
) -> None:
    found = notification.headers(kind, message_id="m1", topic_arn=TOPIC, **options)
    assert dict(found) == COMMON | {"x-amz-sns-message-type": kind} | expected
    assert len(dict(found)) == len(found)


@pytest.mark.parametrize(("count", "fits"), [(0, True), (1, True), (10, True), (11, False)])
def test_a_raw_copy_has_at_most_ten_attributes(count: int, fits: bool) -> None:
    attributes = {f"a{number}": Attribute("String", b"v") for number in range(count)}
    assert notification.fits_queue_raw(attributes or None) is fits

"""What SNS sends to endpoints: JSON envelopes of notifications and confirmations, the text that is
signed, and the headers of an HTTP request.

A notification to many subscriptions differs only in its UnsubscribeURL, so its ``Envelope`` is made
and signed once, and ``Envelope.body`` joins three pieces."""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.model.limits import ATTRIBUTES_PER_MESSAGE_MAX
from penstock.model.message import Attribute
from penstock.wire.aws.sns.delivery_policy import CONTENT_TYPE

NOTIFICATION: Final = "Notification"
SUBSCRIBE: Final = "SubscriptionConfirmation"
UNSUBSCRIBE: Final = "UnsubscribeConfirmation"
CERTIFICATE_PATH: Final = "/SimpleNotificationService-"  # then the id and .pem, as in AWS
USER_AGENT: Final = "Amazon Simple Notification Service Agent"

_LATEST_MS = 253_402_300_799_999  # the end of the year 9999, which datetime can still represent
_SIGNED_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_SIGNED_CONFIRMATION = (
    "Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"
)  # fmt: skip

Headers = tuple[tuple[str, str], ...]
_encode = msgspec.json.Encoder().encode


class Signer(msgspec.Struct, frozen=True):
    version: str  # "1": RSA with SHA-1, "2": RSA with SHA-256
    cert_url: str
    sign: Callable[[bytes], bytes]


class Notification(msgspec.Struct, frozen=True):
    message_id: str
    topic_arn: str
    message: str
    published_at_ms: int
    subject: str | None = None
    attributes: Mapping[str, Attribute] | None = None
    sequence_number: str | None = None  # of a FIFO topic
    is_replayed: bool = False


class Envelope(msgspec.Struct, frozen=True):
    before_url: bytes
    after_url: bytes

    def body(self, unsubscribe_url: str) -> bytes:
        return b"%b%b%b" % (self.before_url, _encode(unsubscribe_url), self.after_url)


class Confirmation(msgspec.Struct, frozen=True):
    """A request to confirm a subscription, or to restore one that was deleted."""

    message_id: str
    topic_arn: str
    token: str
    created_at_ms: int
    base_url: str
    unsubscribed_arn: str | None = None  # the subscription that was deleted

    @property
    def kind(self) -> str:
        return SUBSCRIBE if self.unsubscribed_arn is None else UNSUBSCRIBE


def timestamp(at_ms: int) -> str:
    """Return a time like ``2026-01-31T12:00:00.123Z``. Producers may write any number as a time."""
    at_ms = min(max(at_ms, 0), _LATEST_MS)
    seconds, ms = divmod(at_ms, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def unsubscribe_url(base_url: str, subscription_arn: str) -> str:
    return f"{base_url}/?Action=Unsubscribe&SubscriptionArn={subscription_arn}"


def subscribe_url(base_url: str, *, topic_arn: str, token: str) -> str:
    return f"{base_url}/?Action=ConfirmSubscription&TopicArn={topic_arn}&Token={token}"


def envelope(notification: Notification, signer: Signer | None) -> Envelope:
    """Return the envelope of a notification. Those of FIFO topics have no signer: SNS does not sign
    them."""
    members: dict[str, Any] = {"Type": NOTIFICATION, "MessageId": notification.message_id}
    if notification.sequence_number is not None:
        members["SequenceNumber"] = notification.sequence_number
    members["TopicArn"] = notification.topic_arn
    if notification.subject is not None:
        members["Subject"] = notification.subject
    members["Message"] = notification.message
    members["Timestamp"] = timestamp(notification.published_at_ms)
    _add_signature(members, signer, _SIGNED_NOTIFICATION)
    last: dict[str, Any] = {}
    if notification.attributes:
        last["MessageAttributes"] = shown_attributes(notification.attributes)
    if notification.is_replayed:
        last["Replayed"] = True
    after = b"," + _encode(last)[1:] if last else b"}"
    return Envelope(_encode(members)[:-1] + b',"UnsubscribeURL":', after)


def confirmation_body(confirmation: Confirmation, signer: Signer) -> bytes:
    topic_arn, token = confirmation.topic_arn, confirmation.token
    members = {
        "Type": confirmation.kind,
        "MessageId": confirmation.message_id,
        "Token": token,
        "TopicArn": topic_arn,
        "Message": _confirmation_text(confirmation),
        "SubscribeURL": subscribe_url(confirmation.base_url, topic_arn=topic_arn, token=token),
        "Timestamp": timestamp(confirmation.created_at_ms),
    }
    _add_signature(members, signer, _SIGNED_CONFIRMATION)
    return _encode(members)


def signed_text(members: Mapping[str, str], names: tuple[str, ...]) -> bytes:
    """Return the text that is signed: the name and value of each member that is present, in lines
    of their own."""
    return "".join(f"{name}\n{members[name]}\n" for name in names if name in members).encode()


def headers(
    kind: str,
    *,
    message_id: str,
    topic_arn: str,
    subscription_arn: str | None = None,
    content_type: str = CONTENT_TYPE,
    is_raw: bool = False,
) -> Headers:
    """Return the headers of an HTTP request to an endpoint. A subscription confirmation has no
    ``subscription_arn``; the content type of the delivery policy is only for notifications."""
    found = [
        ("Content-Type", content_type if kind == NOTIFICATION else CONTENT_TYPE),
        ("User-Agent", USER_AGENT),
        ("x-amz-sns-message-type", kind),
        ("x-amz-sns-message-id", message_id),
        ("x-amz-sns-topic-arn", topic_arn),
    ]
    if subscription_arn is not None and kind != SUBSCRIBE:
        found.append(("x-amz-sns-subscription-arn", subscription_arn))
    if is_raw and kind == NOTIFICATION:
        found.append(("x-amz-sns-rawdelivery", "true"))
    return tuple(found)


def fits_queue_raw(attributes: Mapping[str, Attribute] | None) -> bool:
    """Return whether a queue accepts these attributes, which a raw copy has outside of its body."""
    return attributes is None or len(attributes) <= ATTRIBUTES_PER_MESSAGE_MAX


def _confirmation_text(confirmation: Confirmation) -> str:
    deleted = confirmation.unsubscribed_arn
    if deleted is None:
        what = f"You have chosen to subscribe to the topic {confirmation.topic_arn}.\n"
        return (
            f"{what}To confirm the subscription, visit the SubscribeURL included in this message."
        )
    return (
        f"You have chosen to deactivate subscription {deleted}.\nTo cancel this operation and "
        "restore the subscription, visit the SubscribeURL included in this message."
    )


def _add_signature(members: dict[str, Any], signer: Signer | None, names: tuple[str, ...]) -> None:
    if signer is None:
        return
    members["SignatureVersion"] = signer.version
    members["Signature"] = base64.b64encode(signer.sign(signed_text(members, names))).decode()
    members["SigningCertURL"] = signer.cert_url


def shown_attributes(attributes: Mapping[str, Attribute]) -> dict[str, dict[str, str]]:
    return {
        name: {"Type": attribute.data_type, "Value": _value(attribute)}
        for name, attribute in attributes.items()
    }


def _value(attribute: Attribute) -> str:
    if attribute.is_binary:
        return base64.b64encode(attribute.value).decode()
    return attribute.value.decode(errors="replace")  # Kafka producers may write any bytes

"""The form of an endpoint for each protocol of a subscription.

Queues and HTTP endpoints are served by every node. Other protocols need a gateway, a mail relay or
the outbox; a protocol that is not served is rejected like an unknown one."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from penstock.model.names import FIFO_SUFFIX, SHARE_MARK
from penstock.model.topic import Topic
from penstock.wire.aws.queue_urls import parse_arn
from penstock.wire.aws.sns.faults import cut, fault, invalid
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url

HTTP: Final = ("http", "https")
SQS: Final = "sqs"
HIDDEN: Final = "****"  # a password, as it is shown
_MAIL_CHARS_MAX: Final = 254  # of an address in SMTP

# Visible ASCII without characters that could end the address in a header or in SMTP.
_MAIL: Final = re.compile(r"[!#-'*+\--9=?A-Z^-~]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_PHONE: Final = re.compile(r"\+?[1-9](?:[./-]?[0-9]){1,14}\Z")  # E.164 with single separators
_FUNCTION: Final = re.compile(
    r"arn:aws[a-z-]*:lambda:[a-z0-9-]+:[0-9]{12}:function:[A-Za-z0-9_:$-]+\Z"
)
_STREAM: Final = re.compile(
    r"arn:aws[a-z-]*:firehose:[a-z0-9-]+:[0-9]{12}:deliverystream/[A-Za-z0-9_.-]+\Z"
)


class Endpoint(msgspec.Struct, frozen=True):
    text: str  # to store and show
    password: str = ""  # of a URL, with its percent escapes; HIDDEN takes its place in ``text``


def check_endpoint(
    topic: Topic,
    protocol: str,
    text: str,
    *,
    relayed: Mapping[str, bool],
    has_application: Callable[[str], bool],
) -> Endpoint:
    """Return the endpoint of a Subscribe request. ``relayed`` has the protocols besides queues and
    HTTP that are served. ``has_application`` returns whether an endpoint of a mobile app exists."""
    if protocol in HTTP:
        return _url(protocol, text)
    if protocol == SQS:
        _check_queue(topic, text)
        return Endpoint(text)
    check = _RELAYED.get(protocol) if protocol in relayed else None
    if check is None:
        raise invalid(f"Amazon SNS does not support this protocol string: {protocol}")
    check(text)
    if protocol == "application" and not has_application(text):
        raise invalid("Endpoint", f"Endpoint does not exist for endpoint arn{cut(text)}")
    return Endpoint(text)


def _check_queue(topic: Topic, arn: str) -> None:
    address = parse_arn(arn)
    if address is None or SHARE_MARK in address.name:  # a share is read-only
        raise invalid("SQS endpoint ARN")
    if arn.endswith(FIFO_SUFFIX) and not topic.is_fifo:
        text = "FIFO SQS Queues can not be subscribed to standard SNS topics"
        raise invalid("Invalid parameter: Endpoint", text)  # SNS repeats the first words


def _url(protocol: str, text: str) -> Endpoint:
    scheme, mark, rest = text.partition("://")
    if not mark or scheme.lower() != protocol:
        raise invalid("Endpoint must match the specified protocol")
    try:
        parse_endpoint_url(text)
    except UrlInvalid as error:
        raise invalid("Endpoint", str(error)) from None
    login, at, after = rest.partition("@")
    user, _, password = login.partition(":")
    if not (at and password) or "/" in login or "?" in login:
        return Endpoint(text)
    return Endpoint(f"{scheme}://{user}:{HIDDEN}@{after}", password)


def _mail(text: str) -> None:
    if len(text) > _MAIL_CHARS_MAX or _MAIL.match(text) is None:
        raise invalid("Email address")


def _phone(text: str) -> None:
    if _PHONE.match(text) is None:
        raise fault("InvalidParameter", f"Invalid SMS endpoint: {cut(text)}")


def _function(text: str) -> None:
    if _FUNCTION.match(text) is None:
        raise invalid("Lambda endpoint ARN")


def _stream(text: str) -> None:
    if _STREAM.match(text) is None:
        raise invalid("Firehose endpoint ARN")


def _application(_text: str) -> None:
    """Accept any text: an endpoint that exists has a valid ARN."""


_RELAYED: Final[Mapping[str, Callable[[str], None]]] = {
    "application": _application,
    "email": _mail,
    "email-json": _mail,
    "firehose": _stream,
    "lambda": _function,
    "sms": _phone,
}

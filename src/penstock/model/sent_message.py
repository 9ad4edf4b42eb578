"""A message on its way to an endpoint that is neither a queue nor a webhook: a phone, a mobile app,
a mailbox, a function or a stream."""

from collections.abc import Mapping

import msgspec

from penstock.model.message import Attribute


class SentMessage(msgspec.Struct, frozen=True):
    message_id: str  # a UUID, the same at each attempt
    endpoint: str  # phone number, mail address or ARN
    body: bytes  # as it is delivered: of a text for each protocol, that of this endpoint
    sent_at_ms: int
    subject: str | None = None
    topic_arn: str = ""  # empty: published to the endpoint itself
    attributes: Mapping[str, Attribute] = {}
    notification: bytes = b""  # the body in the JSON document of SNS; empty without a topic

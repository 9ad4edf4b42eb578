"""The HTTP request that delivers one or several records to a webhook, in each format.

    format                    one record                          batch
    raw                       the body of the message             NDJSON, one line per message
    sns                       the SNS notification                JSON array of notifications
    standard                  type, timestamp, data               JSON array, each with an id
    cloudevents-binary        the body; attributes as headers     –
    cloudevents-structured    the event                           application/cloudevents-batch+json

In NDJSON, a body that is JSON is written as it is, other text as a string, and other bytes as
``{"data_base64": …}``. A reply to a batch may name the messages that failed, as Lambda functions
do: ``{"batchItemFailures": [{"itemIdentifier": …}]}``. The identifier is the id of the message
or event in the body; NDJSON has no ids, so there it is the number of the line, from 0.

Every request is signed as in ``standard``. The id of a batch depends on all its messages: an
endpoint that ignores known ids must not ignore a repeated batch to which a message was added."""

from collections.abc import Sequence
from hashlib import blake2b
from hmac import HMAC
from typing import Final

import msgspec

from penstock.model.message import Record
from penstock.model.names import uuid_text
from penstock.wire.webhooks import cloudevents, standard
from penstock.wire.webhooks.content import (
    JSON_TYPE,
    TEXT_TYPE,
    json_of,
    plain_type_of,
    text_of,
    timestamp,
)
from penstock.wire.webhooks.settings import (
    CLOUDEVENTS_BINARY,
    CLOUDEVENTS_STRUCTURED,
    RAW,
    SNS,
    STANDARD,
    Secrets,
    WebhookSettings,
    authorization,
)

NDJSON_TYPE: Final = "application/x-ndjson"

Headers = tuple[tuple[str, str], ...]


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to deliver. Its message is decrypted and has the body for this subscription."""

    record: Record
    partition: int
    subject: str | None = None
    notification: bytes = b""  # the SNS notification as JSON; only for the format sns


class DeliveryRequest(msgspec.Struct, frozen=True, gc=False):
    """A request without the headers that depend on the connection, Host and Content-Length."""

    method: str
    headers: Headers
    body: bytes
    count: int  # number of records in the request: the first ones of those given
    identifiers: tuple[str, ...] = ()  # of the records in a batch, as a reply names them


class RequestMaker:
    """Makes the requests of one subscription. A change of the settings needs a new one."""

    def __init__(
        self,
        settings: WebhookSettings,
        secrets: Secrets,
        *,
        topic_arn: str,
        subscription_arn: str,
        origin: str,
    ) -> None:
        """Create a maker. ``origin`` is the DNS name of this cluster in the CloudEvents handshake,
        which requests repeat."""
        self._format = settings.format
        self._method = settings.method
        self._batch_max = settings.batch_max
        self._batch_bytes_max = settings.batch_bytes_max
        self._topic_arn = topic_arn
        self._content_type = settings.headers.get("content-type")
        self._secrets = secrets
        self._signers: tuple[HMAC, ...] = ()
        self._signers_until_ms = 0
        fixed = {"user-agent": "Penstock", **settings.headers}
        fixed.pop("content-type", None)
        if header := authorization(settings.auth, secrets.auth):
            fixed[header[0]] = header[1]
        self.handshake: Headers = ()  # of the request that asks the endpoint for permission
        if settings.verify == "cloudevents":
            origin_header, *rate = cloudevents.handshake_headers(
                origin, rate_per_s=settings.rate_per_s
            )
            fixed |= (origin_header,)
            self.handshake = (*fixed.items(), *rate)
        if settings.format == SNS:
            fixed["x-amz-sns-message-type"] = "Notification"
            fixed["x-amz-sns-topic-arn"] = topic_arn
            fixed["x-amz-sns-subscription-arn"] = subscription_arn
        self._fixed = tuple(fixed.items())

    def make(
        self, records: Sequence[Outgoing], *, now_ms: int, is_test: bool = False
    ) -> DeliveryRequest:
        """Return the request of the first records: as many as the settings and their size allow,
        and at least one. Raises ``cloudevents.HeadersTooLong`` if the record cannot be sent."""
        assert records, "a request has at least one record"
        identifiers: tuple[str, ...] = ()
        if self._batch_max > 1:
            headers, body, identifiers = self._batch(records)
            ids = [one.record.message.message_id for one in records[: len(identifiers)]]
            request_id = uuid_text(blake2b(b"".join(ids), digest_size=16).digest())
        else:
            headers, body = self._single(records[0])
            request_id = uuid_text(records[0].record.message.message_id)
        if is_test:
            # An endpoint that ignores known ids must not ignore the message itself after a test.
            request_id = f"test_{request_id}"
        if now_ms >= self._signers_until_ms:
            self._start_signing(now_ms)
        signature = standard.signed_headers(
            self._signers, request_id=request_id, at_s=now_ms // 1_000, body=body
        )
        headers = self._fixed + headers + signature
        if is_test:
            headers += (("x-penstock-test", "1"),)
        return DeliveryRequest(self._method, headers, body, len(identifiers) or 1, identifiers)

    def _start_signing(self, now_ms: int) -> None:
        secrets = self._secrets
        self._signers = tuple(map(standard.signer, secrets.signing_at(now_ms)))
        is_rotating = len(self._signers) > 1
        self._signers_until_ms = secrets.rotated_until_ms if is_rotating else 2**63

    def _single(self, outgoing: Outgoing) -> tuple[Headers, bytes]:
        message, format_ = outgoing.record.message, self._format
        body = message.body
        if format_ == RAW:
            return (("content-type", self._content_type or plain_type_of(body)),), body
        if format_ == CLOUDEVENTS_BINARY:
            return cloudevents.binary(self._attributes(outgoing), body), body
        if format_ == SNS:
            content_type = self._content_type or TEXT_TYPE
            message_id = ("x-amz-sns-message-id", uuid_text(message.message_id))
            return (("content-type", content_type), message_id), outgoing.notification
        if format_ == STANDARD:
            return (("content-type", JSON_TYPE),), _standard(outgoing, None)
        attributes = self._attributes(outgoing)
        content_type = cloudevents.STRUCTURED_TYPE
        return (("content-type", content_type),), cloudevents.structured(attributes, body)

    def _batch(self, records: Sequence[Outgoing]) -> tuple[Headers, bytes, tuple[str, ...]]:
        is_lines = self._format == RAW
        room = self._batch_bytes_max - (0 if is_lines else 1)  # brackets, and a comma less
        parts: list[bytes] = []
        identifiers: list[str] = []
        for place, outgoing in enumerate(records[: self._batch_max]):
            if parts and len(outgoing.record.message.body) > room:
                break
            identifier, part = self._part(outgoing, place)
            room -= len(part) + 1  # the comma or the line break
            if parts and room < 0:
                break
            parts.append(part)
            identifiers.append(identifier)
        body = b"\n".join((*parts, b"")) if is_lines else b"[%b]" % b",".join(parts)
        return (("content-type", _BATCH_TYPES[self._format]),), body, tuple(identifiers)

    def _part(self, outgoing: Outgoing, place: int) -> tuple[str, bytes]:
        """Return a record as a part of a batch, and how a reply identifies it."""
        message, format_ = outgoing.record.message, self._format
        if format_ == RAW:
            return str(place), _line(message.body)
        if format_ == CLOUDEVENTS_STRUCTURED:
            attributes = self._attributes(outgoing)
            return attributes["id"], cloudevents.structured(attributes, message.body)
        identifier = uuid_text(message.message_id)
        if format_ == SNS:
            return identifier, outgoing.notification
        return identifier, _standard(outgoing, identifier)

    def _attributes(self, outgoing: Outgoing) -> dict[str, str]:
        return cloudevents.attributes_of(
            outgoing.record,
            source=self._topic_arn,
            partition=outgoing.partition,
            subject=outgoing.subject,
        )


_BATCH_TYPES: Final = {
    RAW: NDJSON_TYPE,
    SNS: JSON_TYPE,
    STANDARD: JSON_TYPE,
    CLOUDEVENTS_STRUCTURED: cloudevents.BATCH_TYPE,
}
_NO_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_encode = msgspec.json.Encoder().encode


def _standard(outgoing: Outgoing, identifier: str | None) -> bytes:
    record = outgoing.record
    return standard.document(
        cloudevents.type_of(record),
        timestamp=timestamp(record.sent_at_ms),
        body=record.message.body,
        id_=identifier,
    )


def _line(body: bytes) -> bytes:
    """Return a body as one line of NDJSON."""
    if json_of(body) is not None:
        # Strings in JSON have no raw line breaks, so all of them are space between tokens.
        return body.translate(_NO_LINE_BREAKS)
    text = text_of(body)
    return _encode({"data_base64": body} if text is None else text)


# ── Replies to batches ───────────────────────────────────────────────────────────────────────────


class _Failure(msgspec.Struct, gc=False):
    identifier: str | int = msgspec.field(name="itemIdentifier")


class _Failures(msgspec.Struct):
    items: list[_Failure] | None = msgspec.field(name="batchItemFailures", default=None)


_read_failures = msgspec.json.Decoder(_Failures).decode


def failed_items(request: DeliveryRequest, reply: bytes) -> tuple[int, ...]:
    """Return the places of the records that a successful reply to a batch names as failed. If the
    reply names failures but cannot be understood, all records count as failed."""
    if not request.identifiers or b'"batchItemFailures"' not in reply:
        return ()
    places = range(request.count)
    try:
        named = {str(item.identifier) for item in _read_failures(reply).items or ()}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return tuple(places)
    if not named.issubset(request.identifiers):
        return tuple(places)
    return tuple(place for place in places if request.identifiers[place] in named)

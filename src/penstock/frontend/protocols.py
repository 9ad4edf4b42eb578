"""How answers are written: one codec for each request style, chosen before anything can fail, so
that every fault reaches the client in the form it reads."""

from typing import Any, Protocol

import msgspec

from penstock.net.exchange import HttpReply, HttpRequest
from penstock.wire.aws import json10, query_json, query_xml, sts
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import OPERATIONS, Reply
from penstock.wire.aws.xml_text import escape

REQUEST_ID = "x-amzn-RequestId"


class Codec(Protocol):
    @property
    def name(self) -> str:
        """As metrics show it."""
        ...

    @property
    def around_messages(self) -> tuple[bytes, bytes, bytes]:
        """What stands before the messages of a receive, behind them, and between two."""
        ...

    def text(self, text: str) -> bytes:
        """A text as it stands in a reply, without what is around it."""
        ...

    def reply(self, api: str, reply: Any, request_id: str) -> HttpReply:
        """``reply`` is what the service's actions return."""
        ...

    def refusal(self, refusal: Fault, request_id: str) -> HttpReply: ...


class _Json:
    """AWS JSON 1.0."""

    name = "json"
    around_messages = (b'{"Messages":[', b"]}", b",")

    def text(self, text: str) -> bytes:
        return msgspec.json.encode(text)[1:-1]

    def reply(self, api: str, reply: Reply | None, request_id: str) -> HttpReply:  # noqa: ARG002
        headers = ((REQUEST_ID, request_id),)
        return HttpReply(200, json10.encode_reply(reply), json10.CONTENT_TYPE, headers)

    def refusal(self, refusal: Fault, request_id: str) -> HttpReply:
        body, headers = json10.encode_fault(refusal)
        headers = ((REQUEST_ID, request_id), *headers)
        return HttpReply(refusal.status, body, json10.CONTENT_TYPE, headers)


class _Query:
    """Forms in, XML out. The services differ in the namespace of their XML."""

    name = "query"
    around_messages = (b"<ReceiveMessageResult>", b"</ReceiveMessageResult>", b"")
    namespace = query_xml.NAMESPACE

    def text(self, text: str) -> bytes:
        return escape(text).encode()

    def reply(self, api: str, reply: Any, request_id: str) -> HttpReply:
        body = query_xml.encode_reply(OPERATIONS[api], reply, request_id=request_id)
        return HttpReply(200, body, query_xml.CONTENT_TYPE, ((REQUEST_ID, request_id),))

    def refusal(self, refusal: Fault, request_id: str) -> HttpReply:
        body, headers = query_xml.encode_fault(
            refusal, request_id=request_id, namespace=self.namespace
        )
        headers = ((REQUEST_ID, request_id), *headers)
        return HttpReply(refusal.status, body, query_xml.CONTENT_TYPE, headers)


class _QueryJson:
    """Forms in, JSON out: the query protocol for clients that accept JSON."""

    name = "query"
    around_messages = (b'{"messages":[', b"]}", b",")

    def text(self, text: str) -> bytes:
        return msgspec.json.encode(text)[1:-1]

    def reply(self, api: str, reply: Any, request_id: str) -> HttpReply:
        body = query_json.encode_reply(OPERATIONS[api], reply, request_id=request_id)
        return HttpReply(200, body, query_json.CONTENT_TYPE, ((REQUEST_ID, request_id),))

    def refusal(self, refusal: Fault, request_id: str) -> HttpReply:
        body, headers = query_json.encode_fault(refusal, request_id=request_id)
        headers = ((REQUEST_ID, request_id), *headers)
        return HttpReply(refusal.status, body, query_json.CONTENT_TYPE, headers)


class _StsQuery(_Query):
    namespace = sts.NAMESPACE

    def reply(self, api: str, reply: sts.CallerIdentity, request_id: str) -> HttpReply:  # noqa: ARG002
        body = sts.encode_xml(reply, request_id=request_id)
        return HttpReply(200, body, query_xml.CONTENT_TYPE, ((REQUEST_ID, request_id),))


class _StsJson(_Json):
    def reply(self, api: str, reply: Any, request_id: str) -> HttpReply:  # noqa: ARG002
        headers = ((REQUEST_ID, request_id),)
        return HttpReply(200, sts.encode_json(reply), json10.CONTENT_TYPE, headers)


JSON: Codec = _Json()
QUERY: Codec = _Query()
QUERY_JSON: Codec = _QueryJson()
STS_QUERY: Codec = _StsQuery()
STS_JSON: Codec = _StsJson()


def codec_of(request: HttpRequest) -> Codec:
    """From the headers alone: a body that cannot be read must still be answered rightly."""
    headers = request.headers
    if "x-amz-target" in headers:
        return JSON
    if headers.get("content-type", "").startswith("application/x-amz-json"):
        return JSON
    return QUERY_JSON if query_json.wants_json(headers.get("accept", "")) else QUERY

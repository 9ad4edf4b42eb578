"""Encoders of replies for each protocol of SQS, SNS and STS. The encoder is chosen before the
request is parsed, so that every error has the format that the client expects."""

from typing import Any

import msgspec

from penstock.model.errors import PenstockError
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.wire.aws import faults, json10, query_replies
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import faults as sns_faults
from penstock.wire.aws.sns import protocol as sns

REQUEST_ID = "x-amzn-RequestId"
Headers = tuple[tuple[str, str], ...]


class Codec:
    """An encoder of replies in AWS JSON 1.0, and the base class of all encoders."""

    name = "json"  # in metrics
    content_type = json10.CONTENT_TYPE
    # The text before the messages of a ReceiveMessage reply, after them, and between two of them.
    around_messages = (b'{"Messages":[', b"]}", b",")

    def fault_of(self, error: PenstockError) -> Fault:
        return faults.fault_of(error)

    def unexpected(self, text: str) -> Fault:
        return faults.fault("InternalFailure", text)

    def text(self, text: str) -> bytes:
        return msgspec.json.encode(text)[1:-1]

    def reply(self, _api: str, reply: Any, request_id: str) -> HttpReply:
        body = json10.encode_reply(reply)
        return HttpReply(200, body, json10.CONTENT_TYPE, ((REQUEST_ID, request_id),))

    def refusal(self, error: Fault, request_id: str) -> HttpReply:
        body, headers = self._encode_fault(error, request_id)
        headers = ((REQUEST_ID, request_id), *headers)
        return HttpReply(error.status, body, self.content_type, headers)

    def _encode_fault(self, error: Fault, _request_id: str) -> tuple[bytes, Headers]:
        return json10.encode_fault(error)

    def _ok(self, body: bytes, request_id: str) -> HttpReply:
        return HttpReply(200, body, self.content_type, ((REQUEST_ID, request_id),))


class _Query(Codec):
    """An encoder of the query protocol with XML replies."""

    name = "query"
    content_type = query_replies.XML
    around_messages = (b"<ReceiveMessageResult>", b"</ReceiveMessageResult>", b"")
    namespace = query_replies.NAMESPACE

    def text(self, text: str) -> bytes:
        return query_replies.escape(text).encode()

    def reply(self, api: str, reply: Any, request_id: str) -> HttpReply:
        body = query_replies.encode_reply(
            api, reply, request_id=request_id, namespace=self.namespace
        )
        return self._ok(body, request_id)

    def _encode_fault(self, error: Fault, request_id: str) -> tuple[bytes, Headers]:
        return query_replies.encode_fault(error, request_id=request_id, namespace=self.namespace)


class _QueryJson(Codec):
    """An encoder of the query protocol with JSON replies, for clients that accept JSON."""

    name = "query"
    content_type = query_replies.JSON
    around_messages = (b'{"messages":[', b"]}", b",")

    def reply(self, api: str, reply: Any, request_id: str) -> HttpReply:
        body = query_replies.encode_json_reply(api, reply, request_id=request_id)
        return self._ok(body, request_id)

    def _encode_fault(self, error: Fault, request_id: str) -> tuple[bytes, Headers]:
        return query_replies.encode_json_fault(error, request_id=request_id)


class _StsQuery(_Query):
    namespace = query_replies.STS_NAMESPACE


class _SnsFaults(Codec):
    def fault_of(self, error: PenstockError) -> Fault:
        return sns_faults.fault_of(error)

    def unexpected(self, text: str) -> Fault:
        return sns_faults.fault("InternalError", text)


class _SnsQuery(_SnsFaults, _Query):
    namespace = sns.NAMESPACE

    def _encode_fault(self, error: Fault, request_id: str) -> tuple[bytes, Headers]:
        return sns.encode_fault(error, request_id=request_id)


class _SnsJson(_SnsFaults, _QueryJson): ...


class _StsJson(Codec):
    def reply(self, _api: str, reply: Any, request_id: str) -> HttpReply:
        return self._ok(msgspec.json.encode(reply), request_id)


JSON = Codec()
QUERY = _Query()
QUERY_JSON = _QueryJson()
STS_QUERY = _StsQuery()
STS_JSON = _StsJson()
SNS_QUERY = _SnsQuery()
SNS_JSON = _SnsJson()
SNS = (SNS_QUERY, SNS_JSON)


def codec_of(http: HttpRequest) -> Codec:
    headers = http.headers
    if "x-amz-target" in headers:
        return JSON
    if headers.get("content-type", "").startswith("application/x-amz-json"):
        return JSON
    return QUERY_JSON if query_replies.JSON in headers.get("accept", "") else QUERY


def sns_codec_of(http: HttpRequest) -> Codec:
    accept = http.headers.get("accept", "")
    return SNS_JSON if sns.wants_json(http.query, http.body, accept) else SNS_QUERY

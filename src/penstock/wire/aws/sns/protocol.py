"""The query protocol of SNS: which requests are for SNS, and their decoding and encoding.

``wire/aws/query.py`` and ``wire/aws/query_replies.py`` do the work for SQS and SNS. SNS has its own
operations, namespace and spelling of lists and maps."""

from collections.abc import Mapping
from typing import Final

from penstock.wire.aws import query, query_replies
from penstock.wire.aws import shapes as sqs_shapes
from penstock.wire.aws.faults import Fault, Headers
from penstock.wire.aws.query import decode
from penstock.wire.aws.query_replies import encode_json_fault, encode_json_reply
from penstock.wire.aws.shapes import Operation, Shape
from penstock.wire.aws.sns import book_shapes, shapes

__all__ = [
    "decode",
    "encode_fault",
    "encode_json_fault",
    "encode_json_reply",
    "encode_reply",
    "is_for_sns",
    "operation_of",
    "wants_json",
]

NAMESPACE: Final = "http://sns.amazonaws.com/doc/2010-03-31/"
_VERSION: Final = "2010-03-31"
VERSION_FIELD: Final = f"Version={_VERSION}"
_OTHER_SERVICES: Final = ("sqs", "sts")

OPERATIONS: Final[Mapping[str, Operation]] = {**shapes.OPERATIONS, **book_shapes.OPERATIONS}

query.prepare(OPERATIONS)
query_replies.prepare(OPERATIONS)


def is_for_sns(fields: Mapping[str, str], *, service: str = "") -> bool:
    """Return whether a form is a request to SNS and not to SQS. ``service`` is the service in the
    signature, empty in an unsigned request."""
    if service == "sns":
        return True
    if service in _OTHER_SERVICES:
        return False
    if "Version" in fields:
        return fields["Version"] == _VERSION
    action = fields.get("Action", "")
    if action in sqs_shapes.OPERATIONS:  # AddPermission and RemovePermission belong to both
        return action in OPERATIONS and "TopicArn" in fields
    return action in OPERATIONS


def operation_of(fields: Mapping[str, str]) -> Operation:
    return query.operation_of(fields, OPERATIONS)


def wants_json(query_string: str, body: bytes, accept: str) -> bool:
    """Return whether a client expects JSON instead of XML. The fields need not be decoded, so that
    errors in them have the format that the client expects."""
    return (
        query_replies.JSON in accept
        or "&ContentType=JSON&" in f"&{query_string}&"
        or b"&ContentType=JSON&" in b"&%b&" % body
    )


def encode_reply(name: str, reply: Shape | None, *, request_id: str) -> bytes:
    return query_replies.encode_reply(name, reply, request_id=request_id, namespace=NAMESPACE)


def encode_fault(refusal: Fault, *, request_id: str) -> tuple[bytes, Headers]:
    return query_replies.encode_fault(
        refusal, request_id=request_id, namespace=NAMESPACE, detail=""
    )

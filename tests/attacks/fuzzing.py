"""Random requests that are well formed: every field has its type, and most values are ones that the
server has to think about (names in use, names of the server's own topics, the largest numbers, rows
as the server itself stores them). A seed gives the same requests again."""

from __future__ import annotations

import random
import re
import types
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock.frontend.aws.sns.actions import ACTIONS as SNS_ACTIONS
from penstock.frontend.aws.sqs.actions import ACTIONS
from penstock.model.names import INTERNAL_NAMES
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record
from penstock.wire.aws import shapes
from penstock.wire.aws.sns.protocol import OPERATIONS as SNS_OPERATIONS
from penstock.wire.kafka.apis import APIS, Api
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

NUMBERS: Final = (-1, 0, 1, 2, 3, 7, 100, 2**15 - 1, 2**31 - 1, 2**63 - 1, -(2**63))
_WIDTHS: Final = {"int8": 7, "int16": 15, "uint16": 15, "int32": 31, "int64": 63}
_SPAN: Final = re.compile(r"(\d+)(?:-(\d+)|(\+))?\Z")
# A request with one of these larger would only wait.
_WAITING: Final = re.compile(r"timeout|wait|min_bytes")
# What these fields hold in most requests, so that the server goes on to the rest of them.
_USUAL: Final[dict[str, Any]] = {
    "active_tasks": (),
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "group_instance_id": None,
    "member_epoch": 0,
    "member_id": "",
    "partition_index": 0,
    "producer_epoch": -1,
    "producer_id": -1,
    "rebalance_timeout_ms": 50,
    "session_timeout_ms": 10_000,
    "source_topic_regex": (),
    "standby_tasks": (),
    "task_end_offsets": None,
    "task_offsets": None,
    "transaction_timeout_ms": 10_000,
    "validate_only": False,
    "warmup_tasks": (),
}
_USUAL_SHARE: Final = 0.7
_SPARED_SHARE: Final = 0.95  # of the requests that would delete what the others fill
# Half of the Kafka requests are of these: they write rows.
_STORING: Final = frozenset(
    {
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "AlterShareGroupOffsets",
        "ConsumerGroupHeartbeat",
        "EndTxn",
        "IncrementalAlterConfigs",
        "InitProducerId",
        "JoinGroup",
        "OffsetCommit",
        "Produce",
        "ShareGroupHeartbeat",
        "StreamsGroupHeartbeat",
        "TxnOffsetCommit",
    }
)
# How the ARNs end that a field can have.
_SNS_ARNS: Final = {
    "TopicArn": r":queue[0-2]\Z",
    "ResourceArn": r":queue[0-2]\Z",
    "SubscriptionArn": r":queue[0-2]:[^:]+\Z",
    "PlatformApplicationArn": r":app/[^:]+\Z",
    "EndpointArn": r":endpoint/[^:]+\Z",
    "TargetArn": r":endpoint/[^:]+\Z",
}
_SNS_USUAL: Final[dict[str, Sequence[Any]]] = {
    "Message": ("{}", '{"default": "a"}', "\U0001f600"),
    "MessageStructure": ("json", None),
    "NextToken": (None,),
    "Platform": ("GCM",),
    "Subject": (None, "a"),
    "attributes": ({"DefaultSMSType": "Promotional"}, {"MonthlySpendLimit": "9"}),
    "phoneNumber": ("+15555550100",),
    "PhoneNumber": ("+15555550100",),
}
_SNS_STORING: Final = ("Publish", "SetSubscriptionAttributes", "SetTopicAttributes", "Subscribe")
_ENDPOINTS: Final = (
    ("sqs", "arn:aws:sqs:us-east-1:000000000000:"),
    ("http", "http://user:password@127.0.0.1:1024/"),
    ("https", "https://[::1]:1024/"),
    ("email", "a@example.com?"),
    ("lambda", "arn:aws:lambda:us-east-1:000000000000:function:"),
)
_SUBSCRIPTION_ATTRIBUTES: Final = (
    ("DeliveryPolicy", '{"healthyRetryPolicy":{"numRetries":100,"backoffFunction":"geometric"}}'),
    ("FilterPolicy", '{"a":[{"anything-but":["b"]},null,1e5]}'),
    ("FilterPolicyScope", "MessageBody"),
    ("RawMessageDelivery", "TRUE"),
    ("RedrivePolicy", '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:queue1"}'),
    ("ReplayPolicy", '{"PointType":"Timestamp","StartingPoint":"2020-01-01T00:00:00.000Z"}'),
)
_TOPIC_ATTRIBUTES: Final = (
    ("ArchivePolicy", '{"MessageRetentionPeriod":"365"}'),
    ("DisplayName", "\U0001f600 \n"),
    ("Policy", '{"Statement":[{"Effect":"Deny","Principal":"*","Action":"*","Resource":"*"}]}'),
    ("KmsMasterKeyId", "alias/aws/sns"),
    ("MaximumMessageSize", "1024"),
    ("SignatureVersion", "2"),
)


class Fuzz:
    def __init__(self, seed: int, names: Sequence[str]) -> None:
        self.random = random.Random(seed)
        self.names = (*names, *sorted(INTERNAL_NAMES), "__plans")
        self.topic_ids: Sequence[bytes] = (bytes(16),)
        self.arns: Sequence[str] = ()  # that SNS has replied

    # ── Values ───────────────────────────────────────────────────────────────────────────────

    def text(self) -> str:
        pick = self.random
        kind = pick.randrange(10)
        if kind < 7:
            return pick.choice(self.names)
        if kind == 7:
            return "".join(chr(pick.choice((0, 9, 10, 32, 58, 127, 233, 0x4E00, 0x1F600)))
                           for _ in range(pick.randrange(8)))  # fmt: skip
        if kind == 8:
            return "x" * pick.choice((81, 249, 250, 1_000))
        return pick.choice(("", ".", "..", "*", "a:b", "000000000000", "{}", "[1]", "-1", "true"))

    def octets(self) -> bytes:
        pick = self.random
        kind = pick.randrange(5)
        if kind == 0:
            return pick.randbytes(pick.randrange(40))
        if kind == 1:
            return self.system_header()
        if kind == 2:
            key, value = self.row()
            return pick.choice((key, value or b""))
        if kind == 3:
            return msgspec.msgpack.encode([self.text(), pick.choice(NUMBERS[:-1]), None])
        return self.text().encode()

    def number(self, wire_type: str = "int64") -> int:
        limit = 2 ** _WIDTHS.get(wire_type, 31)
        least = 0 if wire_type.startswith("uint") else -limit
        value = self.random.choice(NUMBERS)
        return value if least <= value < limit else self.random.randrange(max(least, -3), 100)

    def system_header(self) -> bytes:
        pick = self.random
        fields: list[Any] = [
            pick.randbytes(pick.choice((16, 16, 16, 3))),
            self.text(),
            pick.choice((None, self.text())),
            pick.choice((None, 0, 900_000, 2**63 - 1)),
            None,
            pick.choice((0, 1, -1, 2**31, 2**64 - 1)),
            f"arn:aws:sqs:us-east-1:000000000000:{self.text()}",
            pick.choice((None, 0, 2**62)),
            pick.choice((False, True)),
        ]
        return msgspec.msgpack.encode(fields[: pick.randrange(1, 10)])

    def row(self) -> tuple[bytes, bytes | None]:
        """A row as the group coordinator stores it: right, or nearly."""
        pick = self.random
        kind = pick.choice((*range(1, 18), 0, 77, 255))
        fields = [self.text(), self.text(), pick.choice(NUMBERS[:-1])][: pick.randrange(4)]
        value = bytes((pick.choice((0, 0, 0, 9)),)) + msgspec.msgpack.encode(fields)
        return bytes((kind,)) + msgspec.msgpack.encode(fields), pick.choice((value, value, None))

    def batch(self) -> bytes:
        pick = self.random
        records = []
        for delta in range(pick.randrange(1, 4)):
            key, value = self.row() if pick.random() < 0.5 else (self.octets(), self.octets())
            names = [pick.choice((b"penstock", b"penstock.sealed", b"penstock.type.a", b"a"))
                     for _ in range(pick.randrange(3))]  # fmt: skip
            records.append(
                encode_record(
                    offset_delta=delta,
                    timestamp_delta=pick.choice((0, 5, -5)),
                    key=pick.choice((key, None)),
                    value=value,
                    headers=[(name, pick.choice((self.octets(), None))) for name in names],
                )
            )
        now_ms = 1_800_000_000_000 if pick.random() < 0.1 else 1_700_000_000_000
        return encode_batch(
            records,
            base_offset=pick.choice((0, 7)),
            leader_epoch=-1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=pick.choice((0, 0, 0, 0, 1, 4, 0x08, 0x20, 0x2000, 0x4000)),
        )

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    def kafka(self) -> tuple[Api, int, bytes]:
        """An API, one of its versions, and the body of a request. Without Fetch: it stores nothing,
        and its codec is written by hand."""
        names = _STORING if self.random.random() < 0.5 else _BY_NAME
        api = _BY_NAME[self.random.choice(sorted(names))]
        if api.name == "DeleteTopics" and self.random.random() < _SPARED_SHARE:
            api = _BY_NAME["Produce"]
        version = self.random.randint(api.version_min, api.version_max)
        if api.name == "Produce":
            return api, version, api.codec().encode_request(self.produce(), version)
        module = import_module(f"penstock.wire.kafka.generated.{api.snake}")
        request = self._struct(getattr(module, f"{api.name}Request"), version)
        return api, version, api.codec().encode_request(request, version)

    def produce(self) -> ProduceRequest:
        pick = self.random
        topics = [
            ProduceTopic(
                pick.choice(self.names),
                pick.choice(self.topic_ids),
                [ProducePartition(pick.choice((0, 0, 1, 99)), self.batch())],
            )
            for _ in range(pick.randrange(1, 3))
        ]
        return ProduceRequest(pick.choice((None, self.text())), -1, 1_000, topics)

    def sqs(self) -> tuple[str, dict[str, Any]]:
        """The name of an action and the JSON of a request."""
        name = self.random.choice(sorted(ACTIONS))
        if name == "DeleteQueue" and self.random.random() < _SPARED_SHARE:
            name = "SendMessage"
        request = self._struct(getattr(shapes, f"{name}Request"), None)
        body: dict[str, Any] = msgspec.to_builtins(request, str_keys=True)
        if "QueueUrl" in body:
            body["QueueUrl"] = f"/000000000000/{self.random.choice(self.names)}"
        for field in ("SourceArn", "DestinationArn"):
            if field in body:
                body[field] = f"arn:aws:sqs:us-east-1:000000000000:{self.random.choice(self.names)}"
        if "WaitTimeSeconds" in body:
            body["WaitTimeSeconds"] = 0
        return name, body

    def sns(self) -> tuple[str, dict[str, Any]]:
        """The name of an SNS action and the fields of a request."""
        pick = self.random
        name = pick.choice(sorted(SNS_ACTIONS))
        if name == "DeleteTopic" and pick.random() < _SPARED_SHARE:
            name = "Publish"
        elif pick.random() < 0.4:
            name = pick.choice(_SNS_STORING)
        shape = SNS_OPERATIONS[name].request
        body: dict[str, Any] = msgspec.to_builtins(self._struct(shape, None), str_keys=True)
        is_usual = pick.random() < _USUAL_SHARE
        for field in shape.__struct_encode_fields__:
            if field in _SNS_ARNS and pick.random() < _USUAL_SHARE:
                known = [arn for arn in self.arns if re.search(_SNS_ARNS[field], arn)]
                topic = f"arn:aws:sns:us-east-1:000000000000:{pick.choice(self.names[:3])}"
                body[field] = pick.choice(known or [topic])
            elif is_usual and field in _SNS_USUAL:
                body[field] = pick.choice(_SNS_USUAL[field])
        if is_usual:
            for field in ("MessageAttributes", "MessageDeduplicationId"):
                body.pop(field, None)
        if name == "Subscribe" and is_usual:
            protocol, endpoint = pick.choice(_ENDPOINTS)
            body |= {"Protocol": protocol, "Endpoint": f"{endpoint}{pick.choice(self.names)}"}
            body["Attributes"] = dict([pick.choice(_SUBSCRIPTION_ATTRIBUTES)])
        if "AttributeName" in body and is_usual:
            of_topic = "TopicArn" in shape.__struct_encode_fields__
            attribute = pick.choice(_TOPIC_ATTRIBUTES if of_topic else _SUBSCRIPTION_ATTRIBUTES)
            body["AttributeName"], body["AttributeValue"] = attribute
        return name, body

    def _struct(self, kind: type[msgspec.Struct], version: int | None) -> Any:
        """A struct with random fields: in Kafka those that the version carries."""
        values: dict[str, Any] = {}
        for name, hint, notes in _fields(kind):
            if version is None:
                if self.random.random() < 0.3:
                    continue
            elif len(notes) < 2 or not _is_in(version, notes[1]):
                continue
            if name in _USUAL and self.random.random() < _USUAL_SHARE:
                value = _USUAL[name]
            else:
                value = self._value(name, hint, notes[0] if notes else "", version)
            may_be_null = value is not None or _is_null_in(version, notes)
            if may_be_null:
                values[name] = value
        return kind(**values)

    def _value(self, name: str, hint: Any, wire_type: str, version: int | None) -> Any:
        origin, parts = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._value(name, parts[0], wire_type, version)
        if origin in (Union, types.UnionType):
            if self.random.random() < 0.15:
                return None
            return self._value(
                name, next(each for each in parts if each is not types.NoneType), wire_type, version
            )
        if origin in (Sequence, list, tuple):
            inner = wire_type.removeprefix("[]")
            return [
                self._value(name, parts[0], inner, version) for _ in range(self.random.randrange(3))
            ]
        if origin is dict:
            return {self.text(): self._value(name, parts[1], "", version) for _ in range(2)}
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self._struct(hint, version)
        return self._plain(name, hint, wire_type)

    def _plain(self, name: str, hint: Any, wire_type: str) -> Any:
        if hint is bool:
            return self.random.random() < 0.5
        if hint is int:
            if _WAITING.search(name):
                return self.random.choice((0, 1, 50))
            return self.number(wire_type)
        if hint is float:
            return self.random.choice((0.0, 1.5, -1.0, 1e300))
        if hint is str:
            return self.text()
        if wire_type == "uuid":
            return self.random.choice((*self.topic_ids, self.random.randbytes(16)))
        assert hint is bytes or bytes in get_args(hint), f"{name}: {hint}"
        return self.batch() if wire_type == "records" else self.octets()


_BY_NAME: Final = {api.name: api for api in APIS.values() if api.name != "Fetch"}


@cache
def _fields(kind: type[msgspec.Struct]) -> Sequence[tuple[str, Any, Sequence[Any]]]:
    """Name, type and notes of each field."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if get_origin(hint) is ClassVar:
            continue
        is_noted = get_origin(hint) is Annotated
        plain, *notes = get_args(hint) if is_noted else (hint,)
        found.append((name, plain, notes))
    return found


def _is_in(version: int, span: str) -> bool:
    found = _SPAN.match(span)
    assert found is not None, span
    first = int(found[1])
    last = 99 if found[3] else int(found[2] or first)
    return first <= version <= last


def _is_null_in(version: int | None, notes: Sequence[Any]) -> bool:
    if version is None:
        return True
    spans = [note.removeprefix("null ") for note in notes[2:] if note.startswith("null ")]
    return any(_is_in(version, span) for span in spans)

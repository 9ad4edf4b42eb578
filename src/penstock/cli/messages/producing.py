"""Produces records to a topic, and formats records as text or JSON.

The JSON that ``message tail`` prints can be sent again unchanged. Bytes that are not UTF-8 are
base64 in another field, such as ``value_base64``. In a compacted topic, a null value deletes a key.
Every batch has a sequence number, so a batch that is retried after a lost reply is stored once."""

import base64
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from penstock.cli.clients.kafka import failing, failure_of
from penstock.cli.command import Session
from penstock.cli.messages.sending import Lines, Sender, parse_object
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse
from penstock.cli.terminal.output import one_line
from penstock.net.kafka_client.client import KafkaRefused, Place
from penstock.record.batch import NO_PRODUCER, encode_batch
from penstock.record.record import Header, RawRecord, encode_record
from penstock.wire.kafka.faults import ErrorCode

# The header in which a queue stores message fields; it is not shown in text.
SYSTEM_HEADER = b"penstock"
_FIELD_NAMES = "key key_base64 headers value value_base64 partition topic offset timestamp_ms"
_FIELDS = frozenset(_FIELD_NAMES.split())
_KEY_MAX = 24  # characters of a key in a line of text
_BATCH_BYTES_MAX = 262_144
_BATCH_RECORDS_MAX = 1_000
_SEQUENCES = 2**31

Batch = tuple[bytes, Sequence["OutgoingRecord"]]  # encoded, and its records


class OutgoingRecord(NamedTuple):
    place: int = 0  # number of the line or argument, from one
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None


def from_text(place: int, value: str, defaults: OutgoingRecord) -> OutgoingRecord:
    return defaults._replace(place=place, value=value.encode())


def from_json(place: int, line: str, defaults: OutgoingRecord) -> OutgoingRecord:
    try:
        given = parse_object(line, _FIELDS)
        if "value" not in given and "value_base64" not in given:
            raise ValueError("'value' is missing; write null for a record without a value")
        partition = given.get("partition")
        if isinstance(partition, bool) or not isinstance(partition, int | None):
            raise ValueError("'partition' must be a whole number")
        has_key = "key" in given or "key_base64" in given
        return OutgoingRecord(
            place,
            _bytes_of(given, "key") if has_key else defaults.key,
            _bytes_of(given, "value"),
            (*defaults.headers, *_headers_of(given.get("headers"))),
            defaults.partition if partition is None else partition,
        )
    except ValueError as error:
        raise Misuse(
            f"line {place} is not a record",
            str(error),
            'with --ndjson each line is an object like {"key": "a", "value": "hello"}',
        ) from None


def _bytes_of(given: Mapping[str, Any], name: str) -> bytes | None:
    encoded = given.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError):
            raise ValueError(f"'{name}_base64' is not base64") from None
    text = given.get(name)
    if not isinstance(text, str | None):
        raise ValueError(f"'{name}' is not a string; write JSON values as a quoted string")
    return None if text is None else text.encode()


def _headers_of(given: Any) -> list[Header]:
    """Parse headers given as ``{"name": "value"}``, or as a list of objects with name and value."""
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    given = [] if given is None else given
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError("'headers' must be an object or a list of objects with name and value")
    for each in given:
        if not isinstance(each.get("name"), str) or each.keys() - {"name", "value", "value_base64"}:
            raise ValueError("a header needs a name, and a value or a value_base64")
    return [(each["name"].encode(), _bytes_of(each, "value")) for each in given]


def header_from_flag(text: str) -> Header:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise Misuse(f"'{text}' is not a valid header", fix="write --header NAME=VALUE")
    return name.encode(), value.encode()


def as_item(topic: str, partition: int, record: RawRecord) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        **_field("key", record.key),
        "headers": [
            {"name": name.decode("utf-8", "replace"), **_field("value", value)}
            for name, value in record.headers
        ],
        **_field("value", record.value),
    }


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def value_text(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    found = _field("value", data)
    return str(found["value"]) if "value" in found else f"base64:{found['value_base64']}"


def as_text(partition: int, record: RawRecord) -> str:
    try:
        at = datetime.fromtimestamp(record.timestamp / 1_000, UTC)
        moment = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a producer's timestamp may be any number
        moment = str(record.timestamp)
    key = "-" if record.key is None else one_line(value_text(record.key), _KEY_MAX)
    parts = [f"{partition}:{record.offset}", moment, key]
    headers = [
        f"{name.decode('utf-8', 'replace')}={value_text(value)}"
        for name, value in record.headers
        if name != SYSTEM_HEADER
    ]
    if headers:
        parts.append(" ".join(headers))
    return "  ".join([*parts, value_text(record.value)])


class RecordSender(Sender):
    def __init__(self, session: Session, topic: str) -> None:
        super().__init__(session, "record", topic)
        self._kafka = session.kafka
        self._what = f"cannot send to topic '{topic}'"
        with failing(self._what):
            self._partition_count = len(self._kafka.places(topic))
            try:
                self._producer = self._kafka.producer_id()  # id and epoch
            except KafkaRefused:
                self._producer = NO_PRODUCER, -1  # without producer ids, delivery is at least once
        # Records without a key go to one partition for a while, as in Kafka's producers.
        self._turn = secrets.randbelow(self._partition_count)
        self._sequences: dict[int, int] = {}
        self.last: dict[str, Any] | None = None  # place of the last accepted record

    def send_lines(
        self, source: Iterable[Lines], make: Callable[[int, str], OutgoingRecord]
    ) -> None:
        def records() -> Iterator[Sequence[OutgoingRecord]]:
            for chunk in source:
                made: list[OutgoingRecord] = []
                try:
                    for place, line in chunk:
                        made.append(make(place, line))
                except Failure:
                    if made:  # records before the bad line are still sent
                        yield made
                    raise
                yield made

        self.run(records(), self.send)

    def send(self, chunk: Sequence[OutgoingRecord]) -> None:
        waiting: dict[int, list[OutgoingRecord]] = {}
        for record in chunk:
            partition = record.partition
            if partition is None:
                partition = self._turn
                if record.key is not None:
                    partition = partition_of_key(record.key, self._partition_count)
            if 0 <= partition < self._partition_count:
                waiting.setdefault(partition, []).append(record)
            else:
                self.reject(record.place, f"partition {partition} does not exist")
        self._turn = (self._turn + 1) % self._partition_count
        while waiting:
            # One batch per partition at a time keeps the order of the input in each partition.
            batches = {number: self._cut(number, records) for number, records in waiting.items()}
            self._produce(dict(batches))
            for number, (_, records) in batches.items():
                del waiting[number][: len(records)]
            waiting = {number: records for number, records in waiting.items() if records}

    def _cut(self, partition: int, records: Sequence[OutgoingRecord]) -> Batch:
        encoded: list[bytes] = []
        size = 0
        for each in records[:_BATCH_RECORDS_MAX]:
            data = encode_record(
                offset_delta=len(encoded),
                timestamp_delta=0,
                key=each.key,
                value=each.value,
                headers=each.headers,
            )
            size += len(data)
            if encoded and size > _BATCH_BYTES_MAX:
                break
            encoded.append(data)
        now_ms = int(time.time() * 1_000)
        producer_id, producer_epoch = self._producer
        data = encode_batch(
            encoded,
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1 if producer_id == NO_PRODUCER else self._sequences.get(partition, 0),
        )
        return data, records[: len(encoded)]

    def _produce(self, left: dict[int, Batch]) -> None:
        # A batch may be stored although the reply is lost: retry only with a sequence number.
        is_repeatable = self._producer[0] != NO_PRODUCER
        with failing(self._what):
            self._kafka.retried(partial(self._try, left), is_repeatable=is_repeatable)

    def _try(self, left: dict[int, Batch]) -> None:
        """Send each batch in ``left`` once. Batches that the server accepts or finally rejects are
        removed from ``left``. Raises KafkaRefused if a batch must be sent again."""
        passing: KafkaRefused | None = None
        batches = {Place(self._target, number): data for number, (data, _) in left.items()}
        for part in self._kafka.try_produce(batches).values():
            _, records = left[part.index]
            error = KafkaRefused(part.error_code, part.error_message or "")
            if part.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                count, base = len(records), part.base_offset
                sequence = self._sequences.get(part.index, 0)
                self._sequences[part.index] = (sequence + count) % _SEQUENCES
                self.accepted += count
                self.last = {"topic": self._target, "partition": part.index}
                self.last["offset"] = base + count - 1 if base >= 0 else -1
            elif error.is_passing:
                passing = error
                continue
            elif failure_of(error).exit_code is ExitCode.DENIED:
                raise error  # all other records would be denied as well
            else:
                for record in records:
                    self.reject(record.place, str(error))
            del left[part.index]
        if passing is not None:
            raise passing


# ── The partition of a key ───────────────────────────────────────────────────────────────────
# Chosen as by Kafka's own producers, so that all records of a key are in one partition: murmur2
# of the key's bytes with Kafka's seed, its sign bit cleared, modulo the number of partitions.

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    size = len(data)
    whole = size & ~3
    state = _SEED ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        state = state * _MIX & _WORD ^ word
    if whole < size:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return state ^ state >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(data=key) & 0x7FFF_FFFF) % partition_count

"""Parses the options of ``format("penstock")``, and caches Kafka clients.

The driver parses options once into a frozen value that is sent to the workers. An unknown name is
rejected, because a misspelt limit that is silently ignored would only be noticed in production.
Options that begin with ``kafka.`` are settings of Kafka clients. Security settings are checked;
settings for the consumers of Spark's Kafka connector (buffers, polls) have no effect.

Each thread of a worker caches its clients. Spark reuses its Python workers for later micro-batches;
reusing their connections too saves time in small batches."""

import difflib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.net.kafka_client.client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    Place,
    Security,
    SecurityInvalid,
    parse_addresses,
    security_from,
)
from penstock.pipeline.client.option_values import OptionInvalid, Options
from penstock.pipeline.decoding import decoder as made
from penstock.pipeline.decoding.decoder import OnCorrupt
from penstock.record.compression import Codec

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TRIGGER_DELAY_MS: Final = 15 * 60_000
FETCH_BYTES: Final = 16 * 1_048_576
TRANSACTION_MS: Final = 10 * 60_000
TRANSACTION_MS_MAX: Final = 15 * 60_000  # the server's maximum
BATCH_BYTES: Final = 900 * 1_024  # records of one batch; the default limit of topics is 1 MiB
_PASSWORD_FILE: Final = "kafka.sasl.password.file"  # noqa: S105
_PASSWORD_ENV: Final = "kafka.sasl.password.env"  # noqa: S105

_POSITIONS: Final = (
    "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp",
    "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp",
)  # fmt: skip
_KNOWN: Final = (
    "subscribe", "subscribePattern", "assign", *_POSITIONS, "startingOffsetsByTimestampStrategy",
    "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "includeHeaders", "groupIdPrefix",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs",
    "columns", "decode", "commitGroup", "maxBytesPerTrigger", "onDataLoss", "onCorrupt",
    "mode", "pushdown", "fetchBytes",
)  # fmt: skip
_KNOWN_WRITING: Final = ("topic", "delivery", "transactionTimeout", "batchBytes", "includeHeaders")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {  # of the columns to write
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
# Options that Spark itself adds to those of a source or sink.
SPARKS_OWN: Final = (
    "path", "checkpointLocation", "queryName", "outputMode", "__default__", "sourceName",
)  # fmt: skip
# Consumer settings that contradict the source, with the reason or an alternative.
_NOT_YOURS: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": "set startingOffsets instead",
    "kafka.enable.auto.commit": "set commitGroup to have offsets committed",
    "kafka.key.deserializer": "keys are always binary",
    "kafka.value.deserializer": "values are always binary",
    "kafka.interceptor.classes": "interceptors are not supported",
}


class Mode(StrEnum):
    LOG = "log"
    CONSUME = "consume"


class OnDataLoss(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class TimestampStrategy(StrEnum):
    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Connection:
    addresses: str
    security: Security = field(default_factory=Security)
    client_id: str = "penstock-spark"
    timeout_s: float = 30.0


class Subscription(NamedTuple):
    """The topics or partitions to read. Exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """The offset or time at which a read begins or ends: one for all partitions or one for each."""

    everywhere: int | None = None  # EARLIEST, LATEST, or a time
    by_place: Mapping[Place, int] | None = None
    is_time: bool = False
    option: str = ""  # name of the option that set the position
    timestamp_strategy: TimestampStrategy = TimestampStrategy.LATEST


@dataclass(frozen=True, slots=True)
class ReadOptions:
    connection: Connection
    subscription: Subscription
    starting: Position
    ending: Position
    columns: tuple[str, ...] = made.PLAIN
    decode: str = ""
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    is_committed_only: bool = True
    is_pushdown: bool = False
    commit_group: str = ""
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    bytes_per_trigger_max: int | None = None
    trigger_delay_ms_max: int = TRIGGER_DELAY_MS
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    fetch_bytes: int = FETCH_BYTES


def check_names(given: Options, known: Iterable[str]) -> None:
    """Raise OptionInvalid for an unknown name, with a suggestion of the nearest known name."""
    names = {name.lower(): name for name in (*known, *SPARKS_OWN)}
    for name in given.names():
        if name in _NOT_YOURS:
            raise OptionInvalid(f"option {name} cannot be set: {_NOT_YOURS[name]}")
        if name in names or name.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
            continue
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {names[near[0]]}?" if near else ""
        raise OptionInvalid(f"unknown option {name}{hint}")


def parse_connection(given: Options) -> Connection:
    addresses = given.text("kafka.bootstrap.servers")
    if not addresses:
        raise OptionInvalid("option kafka.bootstrap.servers is missing: set it to HOST:PORT")
    properties = {
        name.removeprefix("kafka."): given.text(name)
        for name in given.names()
        if name.startswith("kafka.") and name not in (_PASSWORD_FILE, _PASSWORD_ENV)
    }
    if _PASSWORD_FILE in given or _PASSWORD_ENV in given:
        properties["sasl.password"] = _password(given)
    try:
        parse_addresses(addresses)
        security = security_from(properties)
    except SecurityInvalid as error:
        raise OptionInvalid(f"invalid option kafka.security.* or kafka.sasl.*: {error}") from None
    except ValueError as error:
        raise OptionInvalid(f"option kafka.bootstrap.servers: {error}") from None
    timeout_ms = given.number("kafka.request.timeout.ms") or 30_000
    client_id = given.text("kafka.client.id", "penstock-spark")
    return Connection(addresses, security, client_id, timeout_ms / 1_000)


def _password(given: Options) -> str:
    """Read the password from an environment variable or a file, because logs show option values."""
    if _PASSWORD_ENV in given:
        name = given.text(_PASSWORD_ENV)
        if name not in os.environ:
            raise OptionInvalid(f"option {_PASSWORD_ENV}: environment variable {name} is not set")
        return os.environ[name]
    try:
        return Path(given.text(_PASSWORD_FILE)).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise OptionInvalid(f"cannot read the file of option {_PASSWORD_FILE}: {error}") from None


def parse_read_options(options: Mapping[str, str], *, is_streaming: bool) -> ReadOptions:
    given = Options(options)
    check_names(given, _KNOWN)
    may_fail = given.flag("failOnDataLoss", default=True)
    on_data_loss = OnDataLoss.FAIL if may_fail else OnDataLoss.SKIP
    isolation = given.text("kafka.isolation.level", "read_committed").lower()
    if isolation not in ("read_committed", "read_uncommitted"):
        raise OptionInvalid(
            f"option kafka.isolation.level is '{isolation}': use read_committed or read_uncommitted"
        )
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
        given.number(name, least=0)
    given.number("kafkaConsumer.pollTimeoutMs")
    given.choice("mode", Mode, Mode.LOG)
    found = ReadOptions(
        connection=parse_connection(given),
        subscription=_subscription(given),
        starting=_starting(given, is_streaming=is_streaming),
        ending=_ending(given, is_streaming=is_streaming),
        columns=_columns(given),
        decode=given.text("decode"),
        on_data_loss=given.choice("onDataLoss", OnDataLoss, on_data_loss),
        on_corrupt=given.choice("onCorrupt", OnCorrupt, OnCorrupt.FAIL),
        is_committed_only=isolation == "read_committed",
        is_pushdown=given.flag("pushdown", default=False),
        commit_group=given.text("commitGroup"),
        offsets_per_trigger_max=given.number("maxOffsetsPerTrigger"),
        offsets_per_trigger_min=given.number("minOffsetsPerTrigger"),
        bytes_per_trigger_max=given.size("maxBytesPerTrigger"),
        trigger_delay_ms_max=given.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
        partitions_min=given.number("minPartitions"),
        records_per_partition_max=given.number("maxRecordsPerPartition"),
        fetch_bytes=given.size("fetchBytes") or FETCH_BYTES,
    )
    least, most = found.offsets_per_trigger_min, found.offsets_per_trigger_max
    if least is not None and most is not None and least > most:
        raise OptionInvalid(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    if most is not None and found.bytes_per_trigger_max is not None:
        raise OptionInvalid("maxOffsetsPerTrigger and maxBytesPerTrigger cannot be combined")
    if not 65_536 <= found.fetch_bytes <= 1 << 30:
        raise OptionInvalid(f"option fetchBytes must be from 64k to 1g, not {found.fetch_bytes}")
    return found


def _subscription(given: Options) -> Subscription:
    chosen_by = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen_by) != 1:
        found = f"{' and '.join(chosen_by)} are set" if chosen_by else "none is set"
        raise OptionInvalid(
            f"set exactly one of the options subscribe, subscribePattern and assign; {found}"
        )
    if chosen_by == ["subscribe"]:
        return Subscription(topics=tuple(dict.fromkeys(given.names_list("subscribe"))))
    if chosen_by == ["assign"]:
        return Subscription(places=tuple(given.places("assign")))
    pattern = given.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionInvalid(f"invalid option subscribePattern '{pattern}': {error}") from None
    if not pattern:
        raise OptionInvalid("option subscribePattern is empty")
    return Subscription(pattern=pattern)


def _columns(given: Options) -> tuple[str, ...]:
    with_headers = given.flag("includeHeaders", default=False)
    if "columns" not in given:
        return (*made.PLAIN, "headers") if with_headers else made.PLAIN
    known = {name.lower(): name for name in made.TYPES}
    chosen = []
    for name in given.names_list("columns"):
        if name.lower() not in known:
            raise OptionInvalid(
                f"option columns has the unknown column {name}; use {', '.join(made.TYPES)}"
            )
        chosen.append(known[name.lower()])
    if len(set(chosen)) != len(chosen):
        raise OptionInvalid("option columns names a column twice")
    return tuple(chosen)


def _starting(given: Options, *, is_streaming: bool) -> Position:
    strategy = given.choice(
        "startingOffsetsByTimestampStrategy", TimestampStrategy, TimestampStrategy.ERROR
    )
    default = "latest" if is_streaming else "earliest"
    found = replace(_position(given, "starting", default), timestamp_strategy=strategy)
    if not is_streaming and not found.is_time and _has(found, LATEST):
        raise OptionInvalid(f"option {found.option}: a batch read cannot begin at latest (-1)")
    return found


def _ending(given: Options, *, is_streaming: bool) -> Position:
    if is_streaming:
        for name in _POSITIONS:
            if name.startswith("ending") and name in given:
                raise OptionInvalid(f"option {name} is only for batch reads: a stream has no end")
    found = _position(given, "ending", "latest")
    if not found.is_time and _has(found, EARLIEST):
        raise OptionInvalid(f"option {found.option}: a read cannot end at earliest (-2)")
    return found


def _has(position: Position, sentinel: int) -> bool:
    return position.everywhere == sentinel or sentinel in (position.by_place or {}).values()


def _position(given: Options, end: str, default: str) -> Position:
    """Parse one of three options, in order of precedence: a time, times by partition, offsets."""
    one, several = f"{end}Timestamp", f"{end}OffsetsByTimestamp"
    if one in given:
        return Position(given.number(one, least=0), is_time=True, option=one)
    if several in given:
        return Position(None, given.by_place(several, least=0), is_time=True, option=several)
    name = f"{end}Offsets"
    text = given.text(name, default)
    if text.startswith("{"):
        return Position(None, given.by_place(name, least=EARLIEST), option=name)
    known = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() not in known:
        raise OptionInvalid(f"option {name} must be earliest, latest or JSON, not '{text}'")
    return Position(known[text.lower()], option=name)


class Delivery(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: Connection
    topic: str = ""  # empty: each row has a topic
    delivery: Delivery = Delivery.EXACTLY_ONCE
    codec: int = Codec.NONE
    transaction_ms_max: int = TRANSACTION_MS
    batch_bytes: int = BATCH_BYTES


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    given = Options(options)
    check_names(given, _KNOWN_WRITING)
    codec = given.text("kafka.compression.type", "none").upper()
    if codec not in Codec.__members__:
        known = ", ".join(name.lower() for name in Codec.__members__)
        raise OptionInvalid(
            f"option kafka.compression.type must be one of {known}, not '{codec.lower()}'"
        )
    timeout_ms = given.duration_ms("transactionTimeout", TRANSACTION_MS)
    if not 1_000 <= timeout_ms <= TRANSACTION_MS_MAX:
        raise OptionInvalid("option transactionTimeout must be from 1s to 15m")
    return WriteOptions(
        parse_connection(given),
        topic=given.text("topic"),
        delivery=given.choice("delivery", Delivery, Delivery.EXACTLY_ONCE),
        codec=Codec[codec],
        transaction_ms_max=timeout_ms,
        batch_bytes=given.size("batchBytes") or BATCH_BYTES,
    )


def check_columns(schema: "StructType", options: WriteOptions) -> None:
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name not in _TYPES:
            known = ", ".join(_TYPES)
            raise OptionInvalid(f"the rows have an unknown column {name}; allowed are {known}")
        if kind not in _TYPES[name]:
            raise OptionInvalid(f"column {name} must be {' or '.join(_TYPES[name])}, not {kind}")
    if "value" not in found:
        raise OptionInvalid("the rows have no column named value")
    if "topic" not in found and not options.topic:
        raise OptionInvalid("option topic is missing, and the rows have no column named topic")


_CLIENTS_MAX: Final = 8  # of one thread, each for another cluster or login

_local = threading.local()


def new_client(connection: Connection) -> KafkaClient:
    """Return a new Kafka client, which the caller must close."""
    return KafkaClient(
        connection.addresses,
        security=connection.security,
        timeout_s=connection.timeout_s,
        client_id=connection.client_id,
    )


def client_for(connection: Connection) -> KafkaClient:
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.clients = os.getpid(), OrderedDict()
    clients: OrderedDict[Connection, KafkaClient] = _local.clients
    client = clients.pop(connection) if connection in clients else new_client(connection)
    clients[connection] = client  # as the last, because the first is closed if there are too many
    while len(clients) > _CLIENTS_MAX:
        clients.popitem(last=False)[1].close()
    return client

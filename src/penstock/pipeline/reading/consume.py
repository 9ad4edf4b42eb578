"""Implements ``mode=consume``: reads a queue as a stream, and deletes messages after their batch.

The reader leases messages when Spark requests the latest offset, passes them to the tasks in the
plan, extends the leases while the batch runs, and deletes the messages when Spark requests the next
offset: by then the batch is in the checkpoint. Delivery is at least once: if the process dies
before deleting, the messages are delivered again when their leases expire. Spark then repeats the
old batch without messages; a sink that wrote the batch keeps its rows. An offset looks like this:

    {"v": 1, "run": "5f0c…", "batch": 17}"""

# ruff: noqa: N802 - Spark names these methods

import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.pipeline.client.option_values import OptionInvalid, Options
from penstock.pipeline.client.options import check_names
from penstock.pipeline.client.sqs_client import Endpoint, Sqs, SqsRefused, SqsUnreachable

VERSION: Final = 1
MESSAGES_PER_TRIGGER: Final = 10_000
_MESSAGES_MAX: Final = 100_000  # of one batch: all are in the memory of one process
_LEASE_S: Final = 120
_WAIT_S: Final = 1  # for a first message, each time Spark requests the latest offset
_THREADS: Final = 4
_ROWS: Final = 1_000  # minimum of one task: starting a task costs more than reading fewer rows
_KNOWN: Final = (
    "mode", "queue", "subscribe", "endpoint", "region", "accessKeyId", "secretKeyFile",
    "leaseSeconds", "maxMessagesPerTrigger", "minPartitions",
)  # fmt: skip

SCHEMA: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("body", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("group_id", pa.string()),
        ("sent_at", pa.timestamp("us", tz="UTC")),
        ("receive_count", pa.int32()),
        ("receipt", pa.string()),
    ]
)


class ConsumeOptions(NamedTuple):
    endpoint: Endpoint
    queue: str
    lease_s: int = _LEASE_S
    messages_max: int = MESSAGES_PER_TRIGGER
    partitions_min: int = 1


def is_consuming(options: Mapping[str, str]) -> bool:
    return Options(options).text("mode").lower() == "consume"


def parse_consume_options(options: Mapping[str, str]) -> ConsumeOptions:
    given = Options(options)
    check_names(given, _KNOWN)
    url = given.text("endpoint")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise OptionInvalid(f"option endpoint must be the URL of the SQS listener, not '{url}'")
    queue = given.text("queue") or given.text("subscribe")
    if not queue:
        raise OptionInvalid("option queue is missing: set the name of the queue to consume")
    lease_s = given.number("leaseSeconds", least=10) or _LEASE_S
    most = given.number("maxMessagesPerTrigger") or MESSAGES_PER_TRIGGER
    parts_min = given.number("minPartitions") or 1
    if lease_s > 43_200:
        raise OptionInvalid("option leaseSeconds must be at most 43200")
    if most > _MESSAGES_MAX:
        raise OptionInvalid(f"option maxMessagesPerTrigger must be at most {_MESSAGES_MAX}")
    key, secret = _credentials(given)
    region = given.text("region", "us-east-1")
    return ConsumeOptions(Endpoint(url, region, key, secret), queue, lease_s, most, parts_min)


def _credentials(given: Options) -> tuple[str, str]:
    """Return key id and secret from the options, or from AWS's environment variables."""
    key = given.text("accessKeyId")
    if not key:
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY", "")
        return (os.environ.get("AWS_ACCESS_KEY_ID", ""), secret) if secret else ("", "")
    file = given.text("secretKeyFile")
    if not file:
        raise OptionInvalid("option accessKeyId needs secretKeyFile, a file with the secret key")
    try:
        return key, Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise OptionInvalid(f"cannot read the file of option secretKeyFile: {error}") from None


class MessagePartition(InputPartition):
    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(len(messages))
        self.messages = list(messages)


class ConsumingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a queue. A thread extends the leases of messages until they are deleted."""

    def __init__(self, options: ConsumeOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex
        self._batch = 0
        self._left: int | None = None  # messages to read before an availableNow query ends
        # The leased messages, by batch. Replaced and never changed, because two threads read it.
        self._leased: dict[int, list[dict[str, Any]]] = {}
        self._ended = threading.Event()
        self._extender: threading.Thread | None = None
        self._sqs = Sqs(options.endpoint)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConsumingReader, (self._options,)  # only the planner has leases, a task has none

    @cached_property
    def _queue_url(self) -> str:
        return self._sqs.queue_url(self._options.queue)

    def initialOffset(self) -> dict[str, Any]:
        _ = self._queue_url  # raises at once if the queue does not exist
        return self._offset(0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Delete the messages of finished batches, up to ``start``, and lease new messages."""
        self.commit(start)
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.messages_max
        count = min(count, _MESSAGES_MAX)
        if self._left is not None:
            count = min(count, self._left)
        taken = self._take(count) if count else []
        if self._left is not None:
            self._left = self._left - len(taken) if taken else 0
        if not taken:
            return start
        self._batch += 1
        self._leased = {**self._leased, self._batch: taken}
        if self._extender is None:
            self._extender = threading.Thread(target=self._extend, name="extend", daemon=True)
            self._extender.start()
        return self._offset(self._batch)

    def _take(self, count: int) -> list[dict[str, Any]]:
        lease_s = self._options.lease_s
        found = self._sqs.receive(self._queue_url, count=count, lease_s=lease_s, wait_s=_WAIT_S)
        if found and len(found) < count:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="lease") as pool:
                share = -(-(count - len(found)) // _THREADS)
                for more in pool.map(self._drain, [share] * _THREADS):
                    found += more
        return found

    def _drain(self, count: int) -> list[dict[str, Any]]:
        lease_s = self._options.lease_s
        found: list[dict[str, Any]] = []
        with closing(Sqs(self._options.endpoint)) as sqs:
            while (left := count - len(found)) > 0:
                some = sqs.receive(self._queue_url, count=left, lease_s=lease_s, wait_s=0)
                if not some:
                    break
                found += some
        return found

    def _extend(self) -> None:
        """Extend all leases three times per lease duration, so that two attempts may fail."""
        lease_s = self._options.lease_s
        with closing(Sqs(self._options.endpoint)) as sqs:
            while not self._ended.wait(lease_s / 3):
                try:
                    sqs.extend(self._queue_url, _receipts(self._leased), lease_s=lease_s)
                except (SqsRefused, SqsUnreachable):
                    continue  # the next call of the planner reports the error

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._left = self._sqs.waiting_count(self._queue_url)

    def partitions(
        self,
        start: dict[str, Any],  # noqa: ARG002 - the end identifies a batch
        end: dict[str, Any],
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch, or [] for a batch of an earlier run: its leases are lost."""
        if end.get("v") != VERSION:
            raise OptionInvalid(f"another source wrote the checkpoint: {end!s:.200}")
        if end.get("run") != self._run:
            return []
        messages = self._leased.get(int(end["batch"]), [])
        count = max(self._options.partitions_min, min(_THREADS, len(messages) // _ROWS), 1)
        size = max(1, -(-len(messages) // count))
        return [MessagePartition(messages[at : at + size]) for at in range(0, len(messages), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MessagePartition)
        yield rows_of(partition.messages)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the messages of all batches up to this one."""
        if end.get("run") == self._run:
            last, leased = int(end["batch"]), self._leased.items()
            self._sqs.delete(self._queue_url, _receipts({n: m for n, m in leased if n <= last}))
            self._leased = {number: messages for number, messages in leased if number > last}

    def stop(self) -> None:
        self._ended.set()
        self._sqs.close()

    def _offset(self, batch: int) -> dict[str, Any]:
        return {"v": VERSION, "run": self._run, "batch": batch}


def _receipts(leased: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[str]:
    return [str(each["ReceiptHandle"]) for messages in leased.values() for each in messages]


def rows_of(messages: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    rows = []
    for each in messages:
        system = each.get("Attributes") or {}
        rows.append(
            {
                "message_id": each["MessageId"],
                "body": each["Body"],
                "attributes": list(_attributes(each.get("MessageAttributes") or {})),
                "group_id": system.get("MessageGroupId"),
                "sent_at": int(system.get("SentTimestamp") or 0) * 1_000,
                "receive_count": int(system.get("ApproximateReceiveCount") or 1),
                "receipt": each["ReceiptHandle"],
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _attributes(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of attributes. Binary values stay in base64, as in the reply."""
    for name, attribute in found.items():
        text = attribute.get("StringValue")
        raw = attribute.get("BinaryValue", "")
        yield name, str(raw if text is None else text)

"""Handles Produce: appends batches to partitions, and replies when they are committed.

Batches are not decoded unless the topic has rules about single records. Headers and checksums are
checked (``wire/kafka/batches.py``), and the log gets a slice of the frame. Each partition succeeds
or fails on its own. First all batches are appended, and the next request of the connection may
begin. Then the handler waits for the commits, so that partitions and requests share fsync calls.

Queues also accept records, and use the key of a record as its message group. FIFO queues reject
records, because their messages need a deduplication id.

With acks=0 there is no reply. After an error the connection is closed, so that the client requests
metadata and starts again."""

from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, cast

from penstock.frontend.kafka.checks import (
    has_partition,
    is_internal_topic,
    is_topic_name,
    locate_id,
    locate_name,
)
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request, partition_code
from penstock.frontend.kafka.permissions import Operation, on_transaction
from penstock.frontend.kafka.transactions.producers import check_transaction
from penstock.model.calls import AppendBatches, Ends, IsInTransaction
from penstock.model.errors import PenstockError, client_text
from penstock.model.limits import (
    BATCH_BYTES_MAX,
    OPENED_BATCH_BYTES_MAX,
    OPENED_RECORD_BYTES_MAX,
    RECORD_ERRORS_MAX,
)
from penstock.model.stream import LONG_MAX, StreamSettings, settings_of
from penstock.model.topic import Topic
from penstock.net.kafka.listener import EagerCoroutine, HangUp
from penstock.net.slices import in_slices, unpacked
from penstock.record.batch import ATTR_TRANSACTIONAL, NO_PRODUCER, BatchHeader
from penstock.record.compression import Codec, TooLarge
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_batch
from penstock.record.opened import PIECE_BYTES, PIECE_RECORDS, BadRecord, OpenedBatch, bad_records
from penstock.wire.kafka.batches import (
    BatchRefused,
    check_batches,
    check_opened_count,
    too_large,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    RecordError,
)

_SHOWN = 3  # number of errors in the message, as in Kafka
_BY_ID_FROM = 13
Place: TypeAlias = tuple[str, int]  # topic id, partition
OPENED_MAX = 1_024  # open partitions that a connection remembers
_OPENED = "opened partitions"
Batches: TypeAlias = list[tuple[memoryview, BatchHeader]]
API_ERRORS = (ApiError, BatchRefused, PenstockError)  # reported per partition
ACKS = (-1, 0, 1)
NO_REPLY = 0
STEP: Final = 64  # partitions between two checks of the time slice


class RecordsRefused(ApiError):
    def __init__(self, code: ErrorCode, message: str, errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.errors = errors


class RecordRules:
    """The rules of a topic for single records: in compacted topics they need keys, and timestamps
    may have to be near the current time. Batches are decompressed only if a record may break a
    rule. One bad record rejects its batch, and the reply names all bad records (KIP-467)."""

    __slots__ = ("_is_compacted", "earliest_ms", "latest_ms", "opens_all")

    def __init__(self, settings: StreamSettings, now_ms: int) -> None:
        is_free = settings.is_append_time  # the leader sets the time
        before_ms = LONG_MAX if is_free else settings.timestamp_before_ms_max
        self._is_compacted = settings.is_compacted
        self.opens_all = settings.is_compacted or before_ms != LONG_MAX
        self.earliest_ms = now_ms - before_ms
        self.latest_ms = LONG_MAX if is_free else now_ms + settings.timestamp_after_ms_max

    async def check(self, topic: Topic, index: int, batch: memoryview, header: BatchHeader) -> None:
        """Decompress a batch and raise RecordsRefused if any record breaks a rule."""
        try:
            check_opened_count(header)
            blob = await unpacked(
                bytes(batch), header, tenant=topic.account, bytes_max=OPENED_BATCH_BYTES_MAX
            )
            bad = await in_slices(
                bad_records(
                    blob,
                    header,
                    needs_key=self._is_compacted,
                    earliest_ms=self.earliest_ms,
                    latest_ms=self.latest_ms,
                )
            )
        except TooLarge as error:
            raise too_large(str(error)) from None
        except MalformedBatch as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
        if bad:
            raise self._refusal(bad, f"{topic.name}-{index}", header.base_offset)

    def _refusal(self, bad: list[BadRecord], place: str, base_offset: int) -> RecordsRefused:
        keyless = f"Compacted topic cannot accept message without key in topic partition {place}"
        within = f"The timestamp should be within [{self.earliest_ms}, {self.latest_ms}]"
        errors = [
            RecordError(
                number,
                keyless
                if at_ms is None
                else f"Timestamp {at_ms} of message with offset {base_offset + delta} is out of "
                f"range. {within}",
            )
            for number, delta, at_ms in bad
        ]
        if any(at_ms is not None for _, _, at_ms in bad):
            text = "One or more records have been rejected due to invalid timestamp"
            return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, text, errors)
        shown = ", ".join(
            f"RecordError(batchIndex={error.batch_index}, message='{error.message}')"
            for error in errors[:_SHOWN]
        )
        text = (
            f"One or more records have been rejected due to {len(errors)} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]"
        )
        return RecordsRefused(ErrorCode.INVALID_RECORD, text, errors)


async def produce(call: KafkaCall, request: ProduceRequest) -> ProduceResponse | None:
    rejected, transactional_id = None, request.transactional_id
    if request.acks not in ACKS:
        rejected = ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
    elif transactional_id is not None and not on_transaction(
        call, Operation.WRITE, transactional_id
    ):
        rejected = ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    opened = cast(set[Place], call.connection.session.setdefault(_OPENED, set()))
    under_way: list[ProducePartitionResponse | EagerCoroutine[ProducePartitionResponse]] = []
    errors_left = RECORD_ERRORS_MAX
    for number, each in enumerate(request.topics):
        if number % STEP == STEP - 1 and call.slices.is_over:
            await call.slices.next()
        target = _target(call, each.name, each.topic_id, rejected)
        for partition in each.partitions:
            if len(under_way) % STEP == STEP - 1 and call.slices.is_over:
                await call.slices.next()
            if isinstance(target, ApiError):
                under_way.append(_refused(partition.index, target))
                continue
            try:
                batches = await _ready(
                    call.context, call.version, request, target, partition, opened
                )
            except RecordsRefused as error:
                refused = await _records_refused(
                    call.context, target, partition.index, error, errors_left
                )
                errors_left -= len(refused.record_errors)
                under_way.append(refused)
            except API_ERRORS as error:
                under_way.append(_refused(partition.index, error))
            else:
                under_way.append(
                    EagerCoroutine(
                        _appended(call.context, target, partition.index, batches, request.acks)
                    )
                )
    # All batches have their offsets: the next request of the connection may begin.
    call.connection.written()
    results: list[ProducePartitionResponse] = []
    for one in under_way:
        if len(results) % STEP == STEP - 1 and call.slices.is_over:
            await call.slices.next()
        results.append(one if isinstance(one, ProducePartitionResponse) else await one)
    if len(results) >= STEP and call.slices.is_over:
        await call.slices.next()
    if request.acks == NO_REPLY:
        for result in results:
            if result.error_code:
                raise HangUp(f"a request with acks=0 failed: {ErrorCode(result.error_code).name}")
        return None
    replies = iter(results)
    return ProduceResponse(
        [
            ProduceTopicResponse(each.name, each.topic_id, [next(replies) for _ in each.partitions])
            for each in request.topics
        ]
    )


def _target(
    call: KafkaCall, name: str, topic_id: bytes, rejected: ApiError | None
) -> Topic | ApiError:
    """Return the topic to append to, or the error to report for each of its partitions."""
    if rejected is not None:
        return rejected
    if call.version >= _BY_ID_FROM:
        found = locate_id(call, Operation.WRITE, topic_id)
    else:
        found = locate_name(call, Operation.WRITE, name)
        if found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_topic_name(name):
            return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if isinstance(found, ErrorCode):
        return ApiError(found)
    if is_internal_topic(found):
        text = f"{found.name} is internal: only nodes may write to it."
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    if found.is_fifo:
        kind, action = ("queue", "SendMessage") if found.is_queue else ("topic", "Publish")
        return invalid_request(f"A FIFO {kind} does not accept Kafka records; use {action}.")
    return found


async def _ready(
    context: KafkaContext,
    version: int,
    request: ProduceRequest,
    target: Topic,
    partition: ProducePartition,
    opened: set[Place],
) -> Batches:
    """Check the batches of a partition and open the partition. If the caller appends before its
    next await, the append reaches the log at once. ``opened`` has the partitions that were opened
    for this connection; a partition stays open as long as its topic exists."""
    index = partition.index
    if not has_partition(target, index):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    settings = settings_of(target, context.defaults)
    bytes_max = min(settings.message_bytes_max, BATCH_BYTES_MAX)
    batches = check_batches(partition.records, version=version, bytes_max=bytes_max)
    rules = RecordRules(settings, context.clock.wall_ms())
    for batch, header in batches:
        if target.is_queue:
            await _check_records(target, batch, header)
        elif rules.opens_all or header.max_timestamp > rules.latest_ms:
            await rules.check(target, index, batch, header)
    if context.sealing is not None and context.sealing.is_on(target):
        batches = await context.sealing.seal_batches(target, batches)
    place = (target.topic_id, index)
    if place not in opened:
        await context.broker.call(IsInTransaction(target, index, NO_PRODUCER, 0))  # opens it
        if len(opened) < OPENED_MAX:
            opened.add(place)
    for _, header in batches:
        if header.attributes & ATTR_TRANSACTIONAL:
            await check_transaction(
                context, version, request.transactional_id, target, index, header
            )
    return batches


async def _appended(
    context: KafkaContext, topic: Topic, index: int, batches: Batches, acks: int
) -> ProducePartitionResponse:
    try:
        appended = await context.broker.call(
            AppendBatches(topic, index, acks=acks, batches=[batch for batch, _ in batches])
        )
    except API_ERRORS as error:
        return _refused(index, error)
    if not appended.is_duplicate:
        for batch, header in batches:
            context.meter.sent(header.count, len(batch))
            if context.usage is not None:
                context.usage.produced(topic, header.count, len(batch))
    return ProducePartitionResponse(
        index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.appended_at_ms,
        log_start_offset=appended.start_offset,
    )


async def _check_records(topic: Topic, batch: memoryview, header: BatchHeader) -> None:
    """Check that a batch for a queue can be decoded. Consumers of queues get single messages, so a
    batch that cannot be decoded would block all messages after it."""
    data = bytes(batch)
    try:
        if header.codec == Codec.NONE and header.count <= PIECE_RECORDS and len(data) < PIECE_BYTES:
            decode_batch(data, origin=b"")
            return
        check_opened_count(header)
        blob = await unpacked(data, header, tenant=topic.account, bytes_max=OPENED_BATCH_BYTES_MAX)
        await in_slices(_open_all(OpenedBatch(header, blob, origin=b"")))
    except TooLarge as error:
        raise too_large(str(error)) from None
    except MalformedBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None


def _open_all(opened: OpenedBatch) -> Generator[None, None, None]:
    yield from opened.index()
    if opened.largest > OPENED_RECORD_BYTES_MAX:
        raise too_large(
            f"a record has {opened.largest} bytes; a queue allows at most {OPENED_RECORD_BYTES_MAX}"
        )
    for _ in opened.pieces(0):
        yield None


async def _records_refused(
    context: KafkaContext, topic: Topic, index: int, error: RecordsRefused, errors_max: int
) -> ProducePartitionResponse:
    """Return the reply that names the bad records. It also has the start offset of the log."""
    try:
        ends = await context.broker.call(Ends(topic, index))
    except PenstockError as failed:
        return _refused(index, failed)
    return ProducePartitionResponse(
        index,
        error.code,
        log_start_offset=ends.start_offset,
        record_errors=error.errors[:errors_max],
        error_message=error.message,
    )


def _refused(index: int, error: Exception) -> ProducePartitionResponse:
    if isinstance(error, ApiError):
        return ProducePartitionResponse(index, error.code, error_message=error.message)
    if isinstance(error, BatchRefused):
        return ProducePartitionResponse(index, error.code, error_message=str(error))
    error = cast(PenstockError, error)
    return ProducePartitionResponse(index, partition_code(error), error_message=client_text(error))

"""Produce: whole batches into partitions, answered once they are committed.

Records stay closed unless the topic has rules about them (``record_rules.py``): a batch is judged
by its header and its checksum (``wire.kafka.batches``) and handed on as the slice of the frame that
it is. Each partition succeeds or fails for itself. First all of them are appended, and the
connection told that its next request may follow; only then are their commits waited for, so that
partitions and requests share their syncs.

A queue takes Kafka's records as well; the key of a record is its group. Not a FIFO queue: there
every message needs a group and a deduplication id, which only opening the records could tell.

With acks=0 the client reads no answer. All that can be done about an error is to hang up, which
makes it ask for metadata and begin again."""

from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, cast

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.new_topic import is_topic_name
from penstock.frontend.kafka.permissions import Operation, on_transaction
from penstock.frontend.kafka.record_rules import RecordRules, RecordsRefused
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.topics import (
    code_for,
    has_partition,
    is_of_node,
    locate_id,
    locate_name,
)
from penstock.frontend.kafka.transaction_guard import check_transaction
from penstock.model.errors import PenstockError, client_text
from penstock.model.limits import (
    BATCH_BYTES_MAX,
    OPENED_BATCH_BYTES_MAX,
    OPENED_RECORD_BYTES_MAX,
    RECORD_ERRORS_MAX,
)
from penstock.model.stream import settings_of
from penstock.model.topic import Topic
from penstock.net.begun import Begun
from penstock.net.kafka import HangUp
from penstock.net.turns import in_turns
from penstock.net.unpacking import unpacked
from penstock.record.batch import ATTR_TRANSACTIONAL, NO_PRODUCER, BatchHeader
from penstock.record.compression import Codec, TooLarge
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_batch
from penstock.record.opened import PIECE_BYTES, PIECE_RECORDS, OpenedBatch
from penstock.wire.kafka.apis import PRODUCE
from penstock.wire.kafka.batches import (
    BatchRefused,
    BatchTooLarge,
    check_batches,
    check_opened_count,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)

_BY_ID_FROM = 13
Place: TypeAlias = tuple[str, int]  # topic id, partition
OPENED_MAX = 1_024  # remembered of one connection
_OPENED = "opened partitions"
Batches: TypeAlias = list[tuple[memoryview, BatchHeader]]
REFUSALS = (Refusal, BatchRefused, PenstockError)  # those that a partition's answer can tell
ACKS = (-1, 0, 1)
NO_ANSWER = 0

STEP: Final = 64  # partitions between two looks at the clock


async def run(
    context: KafkaContext, call: KafkaCall, asked: ProduceRequest
) -> ProduceResponse | None:
    refusal = _refusal_of_all(context, call, asked)
    opened = cast(set[Place], call.connection.session.setdefault(_OPENED, set()))
    under_way: list[ProducePartitionResponse | Begun[ProducePartitionResponse]] = []
    errors_left = RECORD_ERRORS_MAX
    for number, each in enumerate(asked.topics):
        if number % STEP == STEP - 1 and call.slices.is_over:
            await call.slices.next()
        target = _target(context, call, each.name, each.topic_id, refusal)
        for partition in each.partitions:
            if len(under_way) % STEP == STEP - 1 and call.slices.is_over:
                await call.slices.next()
            if isinstance(target, Refusal):
                under_way.append(_refused(partition.index, target))
                continue
            try:
                topic, batches = await _ready(
                    context, call.version, asked, target, partition, opened
                )
            except RecordsRefused as error:
                refused = await _records_refused(
                    context, target, partition.index, error, errors_left
                )
                errors_left -= len(refused.record_errors)
                under_way.append(refused)
            except REFUSALS as error:
                under_way.append(_refused(partition.index, error))
            else:
                appending = _appended(context, topic, partition.index, batches, acks=asked.acks)
                under_way.append(Begun(appending))
    # All of it has its place in the logs: the connection's next request may begin behind it.
    call.connection.written()
    results: list[ProducePartitionResponse] = []
    for one in under_way:
        if len(results) % STEP == STEP - 1 and call.slices.is_over:
            await call.slices.next()
        results.append(one if isinstance(one, ProducePartitionResponse) else await one)
    if len(results) >= STEP and call.slices.is_over:
        await call.slices.next()
    if asked.acks == NO_ANSWER:
        _hang_up_on_error(results)
        return None
    answers = iter(results)
    return ProduceResponse(
        [
            ProduceTopicResponse(each.name, each.topic_id, [next(answers) for _ in each.partitions])
            for each in asked.topics
        ]
    )


def _refusal_of_all(
    context: KafkaContext, call: KafkaCall, asked: ProduceRequest
) -> Refusal | None:
    if asked.acks not in ACKS:
        return Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
    transactional_id = asked.transactional_id
    if transactional_id is not None and not on_transaction(
        context, call, Operation.WRITE, transactional_id
    ):
        return Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def _target(
    context: KafkaContext, call: KafkaCall, name: str, topic_id: bytes, refusal: Refusal | None
) -> Topic | Refusal:
    """Where a topic's batches go, or why none of them goes anywhere."""
    if refusal is not None:
        return refusal
    if call.version >= _BY_ID_FROM:
        found = locate_id(context, call, Operation.WRITE, topic_id)
    else:
        found = locate_name(context, call, Operation.WRITE, name)
        if found is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_topic_name(name):
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if isinstance(found, ErrorCode):
        return Refusal(found)
    if is_of_node(found):
        return Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only the node itself writes to {found.name}."
        )
    if found.is_fifo:
        return Refusal(
            ErrorCode.INVALID_REQUEST, "Messages for a FIFO queue are sent through its own API."
        )
    return found


async def _ready(
    context: KafkaContext,
    version: int,
    asked: ProduceRequest,
    target: Topic,
    partition: ProducePartition,
    opened: set[Place],
) -> tuple[Topic, Batches]:
    """The batches of a partition, checked. It is open by then: an append that is begun before the
    caller's next await goes into the log without one. ``opened`` are those that this connection
    has seen open; they stay so for as long as their topic is there."""
    index = partition.index
    if not has_partition(target, index):
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
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
        await context.streams.is_in_transaction(target, index, NO_PRODUCER, 0)  # opens it
        if len(opened) < OPENED_MAX:
            opened.add(place)
    for _, header in batches:
        if header.attributes & ATTR_TRANSACTIONAL:
            await check_transaction(context, version, asked.transactional_id, target, index, header)
    return target, batches


async def _appended(
    context: KafkaContext, topic: Topic, index: int, batches: Batches, *, acks: int
) -> ProducePartitionResponse:
    try:
        appended = await context.streams.append_batches(
            topic, index, [batch for batch, _ in batches], acks=acks
        )
    except REFUSALS as error:
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
    """Consumers of a queue get messages one by one, so every batch is opened on its way in: one
    that cannot be would stand in the way of everything behind it."""
    data = bytes(batch)
    try:
        if header.codec == Codec.NONE and header.count <= PIECE_RECORDS and len(data) < PIECE_BYTES:
            decode_batch(data, origin=b"")
            return
        check_opened_count(header)
        blob = await unpacked(data, header, tenant=topic.account, bytes_max=OPENED_BATCH_BYTES_MAX)
        await in_turns(_open_all(OpenedBatch(header, blob, origin=b"")))
    except TooLarge as error:
        raise BatchTooLarge(f"{error} when decompressed") from None
    except MalformedBatch as error:
        raise Refusal(ErrorCode.INVALID_RECORD, str(error)) from None


def _open_all(opened: OpenedBatch) -> Generator[None, None, None]:
    yield from opened.index()
    if opened.largest > OPENED_RECORD_BYTES_MAX:
        raise BatchTooLarge(
            f"a record of {opened.largest} bytes; a queue takes at most {OPENED_RECORD_BYTES_MAX}"
        )
    for _ in opened.pieces(0):
        yield None


async def _records_refused(
    context: KafkaContext, topic: Topic, index: int, error: RecordsRefused, errors_max: int
) -> ProducePartitionResponse:
    """Return the reply that names the bad records. Only the leader knows where the log begins, so
    another node replies that it does not lead the partition."""
    try:
        ends = await context.streams.ends(topic, index)
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
    if isinstance(error, Refusal):
        return ProducePartitionResponse(index, error.code, error_message=error.message)
    if isinstance(error, BatchRefused):
        return ProducePartitionResponse(index, error.code, error_message=str(error))
    error = cast(PenstockError, error)
    return ProducePartitionResponse(index, code_for(error), error_message=client_text(error))


def _hang_up_on_error(results: Sequence[ProducePartitionResponse]) -> None:
    for result in results:
        if result.error_code:
            raise HangUp(f"acks=0 and {ErrorCode(result.error_code).name}")


ACTION = KafkaAction(PRODUCE, run)

"""Dead letters: records that were leased too often, and the messages written for them.

The cursor holds such a record under an internal lease that does not count as an attempt. The broker
appends a copy to the dead-letter queue, waits until it is durable, and acks the original. After a
crash in between, the copy is appended again, and its deduplication id marks it as a duplicate."""

import msgspec

from penstock.model.limits import ATTEMPTS_MAX, SECOND_MS
from penstock.model.message import Message, Record
from penstock.model.names import uuid_text

# Long enough to append to another partition under load, and no longer than an ordinary lease, in
# case of a crash.
HOLD_MS = 30 * SECOND_MS
# Bounds the work of one receive on a long run of dead records.
HELD_PER_LEASE_MAX = 100


def is_dead(attempts: int, attempts_max: int | None) -> bool:
    return attempts_max is not None and attempts >= attempts_max


def dead_letter(
    record: Record, *, attempts: int, source_arn: str, origin: str, is_fifo: bool
) -> Message:
    """Return the message to append to the dead-letter queue. It keeps its id, attributes, sending
    time and attempts, but not its delay. A standard queue deduplicates it by ``origin``, the topic,
    partition and offset of the record. A FIFO queue uses the message id, plus ``origin`` if the
    message was a dead letter before, because it may return to the same queue."""
    message = record.message
    dedup_id = origin
    if is_fifo:
        dedup_id = uuid_text(message.message_id)
        if message.source_arn is not None:
            dedup_id += f":{origin}"
    return msgspec.structs.replace(
        message,
        attempts=min(message.attempts + attempts, ATTEMPTS_MAX),
        source_arn=source_arn,
        sent_at_ms=record.sent_at_ms,
        dedup_id=dedup_id,
        delay_ms=None,
    )

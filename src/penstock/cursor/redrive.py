"""Dead letters: which records have been leased too often, and what is written for them.

The cursor never delivers such a record. It holds it under an internal lease that is no attempt;
the shell appends the dead letter to its queue, waits until that is durable, and acks the original
as dead. A crash in between repeats the copy, and the deduplication key below makes the second
copy the first one.
"""

import msgspec

from penstock.model.limits import ATTEMPTS_MAX, SECOND_MS
from penstock.model.message import Message, Record
from penstock.model.names import uuid_text

# Long enough to append to another partition under load, short enough that a crash in the middle
# delays the record by no more than an ordinary lease would.
HOLD_MS = 30 * SECOND_MS
# One receive may have to clear away a whole run of bad records, but not for ever.
HELD_PER_LEASE_MAX = 100


def is_dead(attempts: int, attempts_max: int | None) -> bool:
    """Whether the next lease would be one too many."""
    return attempts_max is not None and attempts >= attempts_max


def dead_letter(
    record: Record, *, attempts: int, source_arn: str, origin: str, is_fifo: bool
) -> Message:
    """The message to append to the dead-letter queue. It keeps its id, attributes and sending
    time; its attempts go on counting there. On FIFO the original id becomes the deduplication id,
    so that messages which once shared one do not swallow each other; on a standard queue
    ``origin``, the place it came from, serves. One that died before, and may come back to a queue
    that has seen it, is told apart by its origin as well. Its delay is over."""
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

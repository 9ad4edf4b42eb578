"""Rules about single records of a produced batch: compacted topics need keys, and timestamps must
be near the present if the topic requires it.

Batches are opened only where a record may break a rule: in a compacted topic, in a topic with
``message.timestamp.before.max.ms``, and if the header's own maximum timestamp is too late. One bad
record rejects its whole batch; the reply names every bad record (KIP-467).
"""

from collections.abc import Sequence

from penstock.frontend.kafka.errors import ApiError
from penstock.model.limits import OPENED_BATCH_BYTES_MAX
from penstock.model.stream import LONG_MAX, StreamSettings
from penstock.model.topic import Topic
from penstock.net.slices import in_slices
from penstock.net.unpacking import unpacked
from penstock.record.batch import BatchHeader
from penstock.record.compression import TooLarge
from penstock.record.malformed import MalformedBatch
from penstock.record.opened import BadRecord, bad_records
from penstock.wire.kafka.batches import BatchTooLarge, check_opened_count
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.produce import RecordError

_SHOWN = 3  # errors in the message


class RecordsRefused(ApiError):
    def __init__(self, code: ErrorCode, message: str, errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.errors = errors


class RecordRules:
    """The rules of one topic at one time. Made once per partition of a request."""

    __slots__ = ("_is_compacted", "earliest_ms", "latest_ms", "opens_all")

    def __init__(self, settings: StreamSettings, now_ms: int) -> None:
        is_free = settings.is_append_time  # the leader sets the time
        before_ms = LONG_MAX if is_free else settings.timestamp_before_ms_max
        self._is_compacted = settings.is_compacted
        self.opens_all = settings.is_compacted or before_ms != LONG_MAX
        self.earliest_ms = now_ms - before_ms
        self.latest_ms = LONG_MAX if is_free else now_ms + settings.timestamp_after_ms_max

    async def check(self, topic: Topic, index: int, batch: memoryview, header: BatchHeader) -> None:
        """Open a batch and raise RecordsRefused if any record breaks a rule."""
        data = bytes(batch)
        try:
            check_opened_count(header)
            blob = await unpacked(
                data, header, tenant=topic.account, bytes_max=OPENED_BATCH_BYTES_MAX
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
            raise BatchTooLarge(f"{error} when decompressed") from None
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

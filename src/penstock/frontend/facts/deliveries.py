"""Deliveries: ``DeliveryWriter`` writes each attempt to push a message as a row to the topic
``__deliveries``, and ``recent_deliveries`` reads the newest rows of a subscription.

Copies to queues that succeed have no row: a message to 1,000 queues would need 1,000 rows. Their
failures have one, as all attempts to call an endpoint have."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import msgspec

from penstock.frontend.facts.fact_log import PARTITION, FactWriter, read_records
from penstock.model.calls import BrokerPort, Ends
from penstock.model.limits import KIB, MIB
from penstock.model.topic import Topic
from penstock.wire.facts import deliveries as wire
from penstock.wire.facts.deliveries import DeliveryRow

TOPIC: Final = "__deliveries"
FLUSH_MS_DEFAULT: Final = 1_000
# Rows that wait to be written: some 12 seconds of one busy node, and about 20 MB.
WAITING_MAX: Final = 50_000
ROWS_MAX: Final = 2_000  # of one record: a few milliseconds to encode and compress
REASON_CHARS_MAX: Final = 200  # of ASCII, so that a row is small and Spark reads it fast


@dataclass(eq=False)
class DeliveryWriter(FactWriter):
    """Writes rows to the topic ``__deliveries`` about once a second, each exactly once. While the
    topic cannot be written, the newest rows are kept; the number of dropped rows is in the next
    record. If the process is killed, the rows of the last second are lost."""

    noun = "delivery"
    table: deque[DeliveryRow] = field(init=False)
    _: KW_ONLY
    flush_ms: int = FLUSH_MS_DEFAULT

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table = deque(maxlen=WAITING_MAX)
        self._left_out = 0

    def note(self, row: DeliveryRow) -> None:
        """Add a row, which is written later. Call this once for each attempt."""
        reason, rows = row.reason, self.table
        if len(reason) > REASON_CHARS_MAX or not reason.isascii():
            ascii_only = reason.encode("ascii", "backslashreplace")[:REASON_CHARS_MAX]
            row = msgspec.structs.replace(row, reason=ascii_only.decode())
        self._left_out += len(rows) == WAITING_MAX
        rows.append(row)

    async def flush(self) -> None:
        await self.log.settle()
        count = len(self.table)  # rows that are added meanwhile wait for the next flush
        while count:
            size = min(count, ROWS_MAX)
            columns = wire.columns_of([self.table.popleft() for _ in range(size)])
            left_out, self._left_out = self._left_out, 0
            count -= size
            fields = {"written_at_ms": self.clock.wall_ms(), "left_out": left_out}
            await self._append(wire, wire.DeliveryFacts, **fields, columns=columns)

    def _wait_s(self) -> float:
        return self.flush_ms / 1_000


# ── Reading ──────────────────────────────────────────────────────────────────────────────────

READ_BYTES_MAX: Final = 16 * MIB  # of the log, which is compressed
READ_SECONDS_MAX: Final = 2.0
# Reading backwards: records of the first step and of the longest. Steps grow while they are small.
STEP_RECORDS: Final = 8
STEP_RECORDS_MAX: Final = 256
STEP_BYTES: Final = 256 * KIB


async def recent_deliveries(
    broker: BrokerPort,
    topic: Topic,
    *,
    subscription_id: str,
    count: int,
    bytes_max: int = READ_BYTES_MAX,
    seconds_max: float = READ_SECONDS_MAX,
) -> list[DeliveryRow]:
    """Return the last ``count`` rows of a subscription, the newest first.

    ``topic`` is ``__deliveries``. The log is read backwards until ``bytes_max`` of it are read, and
    for at most ``seconds_max``, so the result can be shorter than ``count`` although there are
    older rows. Rows of the last second may not be written yet. Raises PenstockError if the topic
    cannot be read now."""
    found: list[DeliveryRow] = []  # oldest first
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            ends = await broker.call(Ends(topic, PARTITION))
            end, step = ends.high_watermark, STEP_RECORDS
            while end > ends.start_offset and len(found) < count and bytes_max > 0:
                start = max(ends.start_offset, end - step)
                rows: list[DeliveryRow] = []
                step_bytes = 0
                async for size, records in read_records(broker, topic, start, end):
                    step_bytes += size
                    for record in records:
                        rows += _rows_of(record.value or b"", subscription_id)
                        del rows[:-count]
                        await asyncio.sleep(0)  # other tasks may run
                found = rows + found
                end, bytes_max = start, bytes_max - step_bytes
                is_large = step_bytes > STEP_BYTES
                step = max(1, step // 2) if is_large else min(2 * step, STEP_RECORDS_MAX)
    # The rows of several nodes are in the order in which they were written.
    found.sort(key=lambda row: row.at_ms)
    return found[-count:][::-1]


def _rows_of(value: bytes, subscription_id: str) -> Sequence[DeliveryRow]:
    if subscription_id.encode() not in value:  # saves decoding most records of a busy node
        return ()
    try:
        columns = wire.decode(value).columns
    except wire.DeliveriesUnreadable:  # of a newer version
        return ()
    return [row for row in columns.rows() if row.subscription == subscription_id]

"""Writes the counts of ``usage.py`` to ``__usage``: every few seconds, and at the end of every
minute, the counts since the last time as one record, exactly once (``fact_log.py``).

If the process is killed, the counts of at most ``flush_ms`` and of a write under way are lost. A
stop writes everything first. While the log takes nothing, counting continues in the same bounded
table: minutes are merged then, totals stay.

Once a minute the size of each queue and topic is recorded, from the partitions that this node
leads, so that all nodes together record each partition once. The sizes are in memory. A record is
written every minute even if it is empty: it shows readers that the node has reported everything."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.frontend.facts.fact_log import FactLog
from penstock.frontend.facts.fact_writer import FactWriter, Leads, leads_all
from penstock.frontend.facts.usage import UsageTable
from penstock.model.calls import BrokerPort, LogBytes
from penstock.model.errors import PenstockError
from penstock.model.limits import MINUTE_MS
from penstock.model.names import is_internal
from penstock.model.ports import Catalog, Clock
from penstock.model.topic import Topic
from penstock.wire.facts.usage import SCHEMA_HEADER, VERSION, UsageFacts, encode

TOPIC: Final = "__usage"
FLUSH_MS_DEFAULT: Final = 5_000
SAMPLED_AT_ONCE: Final = 100  # topics, then other tasks may run


class UsageWriter(FactWriter):
    noun = "usage"

    def __init__(
        self,
        table: UsageTable,
        log: FactLog,
        *,
        node: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
        flush_ms: int = FLUSH_MS_DEFAULT,
        stored_in: tuple[Catalog, BrokerPort] | None = None,
        leads: Leads = leads_all,
    ) -> None:
        """``stored_in``: the topics whose size this node records."""
        super().__init__(
            table, log, node=node, clock=clock, entropy=entropy, flush_ms=flush_ms, leads=leads
        )
        self._stored_in = stored_in
        self._sampled_ms = table.minute_ms

    async def flush(self) -> None:
        """Write the counts; return once they are committed."""
        await self._log.settle()
        now_ms = self._clock.wall_ms()
        minute_ms, columns = self._table.take(now_ms=now_ms)
        is_over = self._table.minute_ms != minute_ms
        if not len(columns) and not is_over:
            return
        self._flush += 1
        facts = UsageFacts(
            v=VERSION,
            node=self._node,
            incarnation=self._incarnation,
            flush=self._flush,
            minute_ms=minute_ms,
            written_at_ms=now_ms,
            columns=columns,
        )
        await self._append(encode(facts), SCHEMA_HEADER)

    async def sample(self) -> None:
        """Record the size of each topic, for the current minute."""
        if self._stored_in is None:
            return
        catalog, broker = self._stored_in
        for number, topic in enumerate(tuple(catalog.all_topics()), 1):
            if number % SAMPLED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if topic.is_share or (is_internal(topic.name) and not topic.is_queue):
                continue
            size_bytes = await self._size_bytes(broker, topic)
            if size_bytes:
                self._table.store(topic.account, topic.region, topic.name, size_bytes)

    async def _size_bytes(self, broker: BrokerPort, topic: Topic) -> int:
        size_bytes = 0
        for partition in range(topic.partition_count):
            if self._leads(topic, partition):
                with suppress(PenstockError):  # deleted, or led by another node, since
                    size_bytes += await broker.call(LogBytes(topic, partition))
        return size_bytes

    async def _turn(self, *, is_last: bool) -> None:
        await self.flush()
        if not is_last and self._table.minute_ms != self._sampled_ms:
            self._sampled_ms = self._table.minute_ms
            await self.sample()

    def _wait_s(self) -> float:
        """Return the time until the next flush, at the latest the end of the minute."""
        left_ms = MINUTE_MS - self._clock.wall_ms() % MINUTE_MS
        return min(self._flush_ms, left_ms) / 1_000

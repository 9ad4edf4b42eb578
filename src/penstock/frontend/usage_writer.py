"""Writes what ``usage.py`` has counted to ``__usage``: every few seconds, and at the end of every
minute, what was added since the last time, as one record. Exactly once, see ``fact_log.py``.

What was counted and not yet written when the process is killed is lost: at most ``flush_ms`` of
counts, and the time of the write under way. A stop writes everything first. While the log takes
nothing, counting goes on in the same bounded table: minutes run together then, totals stay.

Once a minute each queue and topic is asked how many bytes it holds, in those partitions that this
node leads: of every partition one node tells, and all together tell of each once. That is a number
its log has at hand; nothing is opened or read for it. A record is written every minute even when
there is nothing to say: whoever adds up an hour learns from it that this node has told everything.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.frontend.fact_log import Fact, FactLog
from penstock.frontend.fact_writer import FactWriter, Leads, leads_all
from penstock.frontend.usage import UsageTable
from penstock.model.errors import PenstockError
from penstock.model.limits import MINUTE_MS
from penstock.model.names import is_internal
from penstock.model.ports import Catalog, Clock, Streams
from penstock.model.topic import Topic
from penstock.wire.facts.usage import SCHEMA_HEADER, VERSION, UsageFacts, encode

TOPIC: Final = "__usage"
FLUSH_MS_DEFAULT: Final = 5_000
INCARNATION_BYTES: Final = 8
SAMPLED_AT_ONCE: Final = 100  # topics asked before others get their turn


class UsageWriter(FactWriter):
    def __init__(
        self,
        table: UsageTable,
        log: FactLog,
        *,
        node: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
        flush_ms: int = FLUSH_MS_DEFAULT,
        stored_in: tuple[Catalog, Streams] | None = None,
        leads: Leads = leads_all,
    ) -> None:
        """``stored_in``: the topics whose size this node tells, of what it leads."""
        super().__init__(log, noun="usage")
        self._table = table
        self._node = node
        self._clock = clock
        self._flush_ms = flush_ms
        self._stored_in = stored_in
        self._leads = leads
        self._incarnation = entropy(INCARNATION_BYTES).hex()
        self._flush = 0
        self._sampled_ms = table.minute_ms

    async def flush(self) -> None:
        """Write what was counted; returns once it is committed."""
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
        self._log.offer((Fact(self._node.encode(), encode(facts), (SCHEMA_HEADER,)),))
        await self._log.settle()

    async def sample(self) -> None:
        """Note what each topic holds, for the minute that is counted now."""
        if self._stored_in is None:
            return
        catalog, streams = self._stored_in
        for number, topic in enumerate(tuple(catalog.all_topics())):
            if number % SAMPLED_AT_ONCE == SAMPLED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if topic.is_share or (is_internal(topic.name) and not topic.is_queue):
                continue
            size_bytes = await self._held(streams, topic)
            if size_bytes:
                self._table.store(topic.account, topic.region, topic.name, size_bytes)

    async def _held(self, streams: Streams, topic: Topic) -> int:
        size_bytes = 0
        for partition in range(topic.partition_count):
            if self._leads(topic, partition):
                with suppress(PenstockError):  # deleted a moment ago, or led by another
                    size_bytes += await streams.log_bytes(topic, partition)
        return size_bytes

    async def _turn(self, *, is_last: bool) -> None:
        await self.flush()
        if not is_last and self._table.minute_ms != self._sampled_ms:
            self._sampled_ms = self._table.minute_ms
            await self.sample()

    def _wait_s(self) -> float:
        """Until the next flush; the end of a minute is always one."""
        left_ms = MINUTE_MS - self._clock.wall_ms() % MINUTE_MS
        return min(self._flush_ms, left_ms) / 1_000

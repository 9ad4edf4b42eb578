"""Writes how the node is doing to ``__telemetry``: every ten seconds one record, with what requests
did meanwhile (``telemetry.py``) and the levels of queues, partitions, groups and the process.

Levels are asked for and not kept: each is a number that its owner has at hand, nothing is opened or
read for it, and other tasks get their turn in between. Rows of each sort have a bound; how many
levels had no room is written beside them. Each record is in the log exactly once (``fact_log.py``);
while the log takes nothing no levels are taken, and counts go on in their bounded table.

Of each partition the node tells that leads it, of a queue as a whole the one that leads its first
partition, and of a group its coordinator: what all nodes write together has every level once.

A record ends on a multiple of the interval, so that records of a minute are those of one minute.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from penstock.cursor.group.assignors import TopicPartition
from penstock.cursor.group.codes import Code
from penstock.cursor.group.describe import Listing
from penstock.cursor.group.offsets import FetchReply
from penstock.frontend.fact_log import Fact, FactLog
from penstock.frontend.fact_writer import FactWriter, Leads, leads_all
from penstock.frontend.telemetry import CallSums
from penstock.frontend.usage import UsageTable
from penstock.model.errors import PenstockError
from penstock.model.names import is_bookkeeping_group, is_internal
from penstock.model.ports import Backend, Catalog, Clock, Streams
from penstock.model.tenancy import split_scoped
from penstock.model.topic import Topic
from penstock.wire.facts.telemetry import (
    APPEND,
    LAG,
    NODE,
    PARTITION,
    QUEUE,
    SCHEMA_HEADER,
    VERSION,
    TelemetryColumns,
    TelemetryFacts,
    encode,
)

TOPIC: Final = "__telemetry"
FLUSH_MS_DEFAULT: Final = 10_000
INCARNATION_BYTES: Final = 8
PARTITION_ROWS_MAX: Final = 10_000  # of each sort; all in one batch of the log, within its bound
QUEUE_ROWS_MAX: Final = 5_000
LAG_ROWS_MAX: Final = 5_000
ASKED_AT_ONCE: Final = 100  # before others get their turn


class Vitals(NamedTuple):
    """Of the process and its disk."""

    cpu_ms: int  # since it was started
    rss_bytes: int
    disk_free_bytes: int


class GroupOffsets(Protocol):
    """What is asked of the coordinators; ids have the account inside."""

    async def list_groups(
        self, *, states: Collection[str], kinds: Collection[str]
    ) -> tuple[Code, Sequence[Listing]]: ...

    async def fetch(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        *,
        requires_stable: bool,
        member_id: str | None,
        member_epoch: int,
    ) -> FetchReply: ...


class Broker(Backend, Streams, Protocol):
    """Both views of the topics."""


class _Seen(NamedTuple):
    log_end: int
    size_bytes: int


class TelemetryWriter(FactWriter):
    def __init__(
        self,
        table: UsageTable,
        log: FactLog,
        *,
        node: str,
        account: str,
        catalog: Catalog,
        broker: Broker,
        clock: Clock,
        entropy: Callable[[int], bytes],
        vitals: Callable[[], Vitals],
        groups: GroupOffsets | None = None,
        leads: Leads = leads_all,
        flush_ms: int = FLUSH_MS_DEFAULT,
        is_only_reader: bool = False,
    ) -> None:
        """``account``: the node's own. ``broker``: all partitions, wherever they are led, and
        ``leads``: which are led here. ``groups``: those that are coordinated here.
        ``is_only_reader``: nobody else takes from the table."""
        super().__init__(log, noun="telemetry")
        self._table = table
        self._node = node
        self._account = account
        self._catalog = catalog
        self._broker = broker
        self._clock = clock
        self._vitals = vitals
        self._groups = groups
        self._leads = leads
        self._flush_ms = flush_ms
        self._is_only_reader = is_only_reader
        self._calls = CallSums(own_account=account)
        table.on_taken = self._calls.absorb
        self._incarnation = entropy(INCARNATION_BYTES).hex()
        self._flush = 0
        self._from_ms = clock.wall_ms()
        self._cpu_ms = vitals().cpu_ms
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._left_out = 0
        # Another node was asked in vain: each more would be waited for as long, and is left out.
        self._are_others_silent = False
        self._asked = 0

    async def flush(self) -> None:
        """One record; returns once it is committed."""
        await self._log.settle()
        columns = TelemetryColumns()
        self._left_out = 0
        self._are_others_silent = False
        now_ms = self._clock.wall_ms()
        if self._is_only_reader:
            self._table.take(now_ms=now_ms)
        self._calls.take(columns)
        await self._add_topics(columns)
        await self._add_lags(columns)
        self._add_vitals(columns)
        self._flush += 1
        facts = TelemetryFacts(
            v=VERSION,
            node=self._node,
            incarnation=self._incarnation,
            flush=self._flush,
            from_ms=self._from_ms,
            written_at_ms=now_ms,
            columns=columns,
            left_out=self._left_out,
        )
        self._from_ms = now_ms
        self._log.offer((Fact(self._node.encode(), encode(facts), (SCHEMA_HEADER,)),))
        await self._log.settle()

    async def _turn(self, *, is_last: bool) -> None:  # noqa: ARG002
        await self.flush()

    def _wait_s(self) -> float:
        return (self._flush_ms - self._clock.wall_ms() % self._flush_ms) / 1_000

    # ── Levels ───────────────────────────────────────────────────────────────────────────────

    async def _give_way(self) -> None:
        self._asked += 1
        if self._asked % ASKED_AT_ONCE == 0:
            await asyncio.sleep(0)

    async def _add_topics(self, to: TelemetryColumns) -> None:
        before, self._seen = self._seen, {}
        queue_rows = 0
        for topic in tuple(self._catalog.all_topics()):
            if _is_own(topic):
                continue
            with suppress(PenstockError):  # deleted a moment ago, say
                if not topic.is_share:
                    await self._add_partitions(to, topic, before)
            if (topic.is_queue or topic.is_share) and self._leads(topic, 0):
                await self._give_way()
                if queue_rows < QUEUE_ROWS_MAX and await self._add_queue(to, topic):
                    queue_rows += 1
                else:
                    self._left_out += 1

    async def _add_partitions(
        self, to: TelemetryColumns, topic: Topic, before: dict[tuple[str, int], _Seen]
    ) -> None:
        for partition in range(topic.partition_count):
            await self._give_way()
            if not self._leads(topic, partition):
                continue
            place = topic.topic_id, partition
            if len(self._seen) >= PARTITION_ROWS_MAX:
                self._left_out += 1
                continue
            ends = await self._broker.ends(topic, partition)
            size_bytes = await self._broker.log_bytes(topic, partition)
            last = before.get(place)
            appended, appended_bytes = _appended(last, ends.high_watermark, size_bytes)
            self._seen[place] = _Seen(ends.high_watermark, size_bytes)
            to.add(
                PARTITION,
                account=topic.account,
                region=topic.region,
                resource=topic.name,
                partition=partition,
                op=APPEND,
                messages=appended,
                bytes_in=appended_bytes,
                log_start=ends.start_offset,
                log_end=ends.high_watermark,
                size_bytes=size_bytes,
            )

    async def _add_queue(self, to: TelemetryColumns, topic: Topic) -> bool:
        """False: it cannot be told now."""
        is_here = all(self._leads(topic, each) for each in range(1, topic.partition_count))
        if self._are_others_silent and not is_here:
            return False
        try:
            stats = await self._broker.stats(topic)
        except PenstockError:  # deleted a moment ago, say
            self._are_others_silent |= not is_here
            return False
        oldest_ms = stats.oldest_sent_at_ms
        now_ms = self._clock.wall_ms()
        to.add(
            QUEUE,
            account=topic.account,
            region=topic.region,
            resource=topic.name,
            depth=stats.visible + stats.delayed,
            in_flight=stats.in_flight,
            oldest_age_ms=0 if oldest_ms is None else max(0, now_ms - oldest_ms),
            size_bytes=stats.log_bytes,
        )
        return True

    async def _add_lags(self, to: TelemetryColumns) -> None:
        if self._groups is None:
            return
        code, listings = await self._groups.list_groups(states=(), kinds=())
        rows = 0
        for listing in () if code else listings:
            account, group = split_scoped(listing.group_id, own_account=self._account)
            if is_bookkeeping_group(group):
                continue
            await self._give_way()
            reply = await self._groups.fetch(
                listing.group_id, None, requires_stable=False, member_id=None, member_epoch=-1
            )
            for each in reply.partitions:
                topic = self._catalog.find_id(each.topic_id)
                if topic is None or _is_own(topic) or each.code or each.offset < 0:
                    continue
                if rows >= LAG_ROWS_MAX:
                    self._left_out += 1
                    continue
                log_end = await self._log_end(topic, each.partition)
                if log_end is None:
                    self._left_out += 1
                    continue
                rows += 1
                to.add(
                    LAG,
                    account=account,
                    region=topic.region,
                    resource=topic.name,
                    partition=each.partition,
                    group=group,
                    committed=each.offset,
                    log_end=log_end,
                    depth=max(0, log_end - each.offset),
                )

    async def _log_end(self, topic: Topic, partition: int) -> int | None:
        """Of a partition that may be led elsewhere; None: it cannot be told now."""
        seen = self._seen.get((topic.topic_id, partition))
        if seen is not None:
            return seen.log_end
        if self._are_others_silent or self._leads(topic, partition):
            return None
        try:
            return (await self._broker.ends(topic, partition)).high_watermark
        except PenstockError:
            self._are_others_silent = True
            return None

    def _add_vitals(self, to: TelemetryColumns) -> None:
        now = self._vitals()
        to.add(
            NODE,
            cpu_ms=now.cpu_ms - self._cpu_ms,
            rss_bytes=now.rss_bytes,
            disk_free_bytes=now.disk_free_bytes,
        )
        self._cpu_ms = now.cpu_ms


def _is_own(topic: Topic) -> bool:
    return is_internal(topic.name) and not topic.is_queue


def _appended(last: _Seen | None, log_end: int, size_bytes: int) -> tuple[int, int]:
    """Records and bytes since the last look. A log that was cut at its front in between has fewer
    bytes than before: then as many are counted as its records have on average."""
    if last is None or log_end <= last.log_end:
        return 0, 0
    records = log_end - last.log_end
    grown = size_bytes - last.size_bytes
    if grown > 0:
        return records, grown
    return records, size_bytes * records // max(log_end, 1)

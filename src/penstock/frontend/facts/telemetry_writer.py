"""Writes the state of the node to the topic ``__telemetry``. Every ten seconds, one record sums up
the requests since the last record and describes queues, partitions, consumer groups and the
process. The number of rows is bounded, and a record has the number of rows that were left out.

A partition is reported by its leader, a queue by the leader of its first partition, and a consumer
group by its coordinator, so all nodes together report everything once. A record ends on a multiple
of the interval, so no record covers parts of two minutes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from penstock.cursor.coordinator_calls import Coordinators, FetchOffsets, ListGroups
from penstock.frontend.facts.fact_log import FactWriter
from penstock.frontend.facts.usage import Counts, Key, UsageTable
from penstock.model.calls import BrokerPort, Ends, LogBytes, Stats
from penstock.model.errors import PenstockError
from penstock.model.limits import TENANT_FACTS_PERCENT
from penstock.model.names import is_bookkeeping_group, is_internal, split_scoped
from penstock.model.ports import Catalog
from penstock.model.quotas import SharedLimit
from penstock.model.topic import Topic
from penstock.wire.facts import telemetry as wire

TOPIC: Final = "__telemetry"
FLUSH_MS_DEFAULT: Final = 10_000
CALL_ROWS_MAX: Final = 5_000
PARTITION_ROWS_MAX: Final = 10_000  # rows of all kinds fit into one batch of the log
QUEUE_ROWS_MAX: Final = 5_000
LAG_ROWS_MAX: Final = 5_000
READ_AT_ONCE: Final = 100  # partitions, queues or groups read before other tasks may run
_SUMMED: Final = ("requests", "messages", "bytes_in", "bytes_out")


class ProcessStats(NamedTuple):
    cpu_ms: int  # since the start of the process
    rss_bytes: int
    disk_free_bytes: int


Seen = dict[tuple[str, int], tuple[int, int]]  # end and size of each partition


class CallSums:
    """Sums of the requests between two telemetry records. The number of rows is bounded, and
    requests without a row of their own are summed up as in ``UsageTable``."""

    def __init__(self, *, rows_max: int = CALL_ROWS_MAX, own_account: str | None = None) -> None:
        self._rows = SharedLimit(rows_max, TENANT_FACTS_PERCENT, own_account=own_account)
        self._sums: dict[Key, Counts] = {}

    def add(self, key: Key, counts: Counts) -> None:
        if not (counts.requests or counts.messages):
            return
        sums = self._sums.get(key)
        if sums is None:
            if self._rows.is_used_up(key[0]):
                key = (key[0], "", wire.FOLDED, wire.FOLDED)
            if key not in self._sums:
                if self._rows.is_full():
                    key = ("", "", wire.FOLDED, wire.FOLDED)
                self._rows.add(key[0])
            sums = self._sums.setdefault(key, Counts(is_timed=True))
        for name in _SUMMED:
            setattr(sums, name, getattr(sums, name) + getattr(counts, name))
        sums.failed += counts.throttled + counts.denied + counts.failed
        durations = sums.durations
        assert durations is not None, "sums are timed"
        for bucket, count in (counts.durations or {}).items():
            durations[bucket] = durations.get(bucket, 0) + count

    def take(self, to: wire.TelemetryColumns) -> None:
        taken, self._sums = self._sums, {}
        self._rows.clear()
        for key, sums in taken.items():
            to.add(
                wire.CALLS,
                **dict(zip(("account", "region", "resource", "op"), key, strict=True)),
                **{name: getattr(sums, name) for name in _SUMMED},
                errors=sums.failed,
                hist=wire.packed(sums.durations or {}),
            )


@dataclass(eq=False)
class TelemetryWriter(FactWriter):
    noun = "telemetry"
    table: UsageTable
    _: KW_ONLY
    account: str  # the node's own tenant
    catalog: Catalog
    broker: BrokerPort  # reaches the partitions of all nodes
    vitals: Callable[[], ProcessStats]
    groups: Coordinators | None = None  # of consumer groups, on this node
    flush_ms: int = FLUSH_MS_DEFAULT
    is_only_reader: bool = False  # True: no ``UsageWriter`` takes counts from the table

    def __post_init__(self) -> None:
        super().__post_init__()
        self._calls = CallSums(own_account=self.account)
        self.table.on_taken = self._calls.add
        self._from_ms = self.clock.wall_ms()
        self._cpu_ms = self.vitals().cpu_ms
        self._seen: Seen = {}
        self._left_out = 0
        # True after a call to another node failed: further calls would wait as long.
        self._are_others_silent = False
        self._read = 0

    async def flush(self) -> None:
        await self.log.settle()
        columns = wire.TelemetryColumns()
        self._left_out = 0
        self._are_others_silent = False
        now_ms = self.clock.wall_ms()
        if self.is_only_reader:
            self.table.take(now_ms=now_ms)
        self._calls.take(columns)
        await self._add_topics(columns)
        await self._add_lags(columns)
        before_ms, now = self._cpu_ms, self.vitals()
        self._cpu_ms = now.cpu_ms
        columns.add(wire.NODE, **now._replace(cpu_ms=now.cpu_ms - before_ms)._asdict())
        from_ms, self._from_ms = self._from_ms, now_ms
        fields = {"from_ms": from_ms, "written_at_ms": now_ms, "left_out": self._left_out}
        await self._append(wire, wire.TelemetryFacts, columns=columns, **fields)

    def _wait_s(self) -> float:
        return (self.flush_ms - self.clock.wall_ms() % self.flush_ms) / 1_000

    async def _pause(self) -> None:
        self._read += 1
        if self._read % READ_AT_ONCE == 0:
            await asyncio.sleep(0)

    async def _add_topics(self, to: wire.TelemetryColumns) -> None:
        before, self._seen = self._seen, {}
        queue_rows = 0
        for topic in tuple(self.catalog.all_topics()):
            if _is_own(topic):
                continue
            with suppress(PenstockError):  # deleted since, for example
                if not topic.is_share:
                    await self._add_partitions(to, topic, before)
            if (topic.is_queue or topic.is_share) and self.leads(topic, 0):
                await self._pause()
                if queue_rows < QUEUE_ROWS_MAX and await self._add_queue(to, topic):
                    queue_rows += 1
                else:
                    self._left_out += 1

    async def _add_partitions(self, to: wire.TelemetryColumns, topic: Topic, before: Seen) -> None:
        for partition in range(topic.partition_count):
            await self._pause()
            if not self.leads(topic, partition):
                continue
            if len(self._seen) >= PARTITION_ROWS_MAX:
                self._left_out += 1
                continue
            key = topic.topic_id, partition
            ends = await self.broker.call(Ends(topic, partition))
            size_bytes = await self.broker.call(LogBytes(topic, partition))
            seen = self._seen[key] = ends.high_watermark, size_bytes
            appended, appended_bytes = _appended(before.get(key), seen)
            grown = {"messages": appended, "bytes_in": appended_bytes, "size_bytes": size_bytes}
            range_ = {"log_start": ends.start_offset, "log_end": ends.high_watermark}
            place = {**_named(topic), "op": wire.APPEND}
            to.add(wire.PARTITION, **place, partition=partition, **grown, **range_)

    async def _add_queue(self, to: wire.TelemetryColumns, topic: Topic) -> bool:
        """Add the row of a queue. Returns False if the queue's numbers cannot be read now."""
        is_here = all(self.leads(topic, each) for each in range(1, topic.partition_count))
        if self._are_others_silent and not is_here:
            return False
        try:
            stats = await self.broker.call(Stats(topic))
        except PenstockError:  # deleted since, for example
            self._are_others_silent |= not is_here
            return False
        oldest_ms, now_ms = stats.oldest_sent_at_ms, self.clock.wall_ms()
        age_ms = 0 if oldest_ms is None else max(0, now_ms - oldest_ms)
        counts = {"depth": stats.visible + stats.delayed, "in_flight": stats.in_flight}
        counts |= {"oldest_age_ms": age_ms, "size_bytes": stats.log_bytes}
        to.add(wire.QUEUE, **_named(topic), **counts)
        return True

    async def _add_lags(self, to: wire.TelemetryColumns) -> None:
        if self.groups is None:
            return
        code, listings = await self.groups.call(ListGroups(states=(), kinds=()))
        rows = 0
        for listing in () if code else listings:
            account, group = split_scoped(listing.group_id, own_account=self.account)
            if is_bookkeeping_group(group):
                continue
            await self._pause()
            key = listing.group_id
            fetch = FetchOffsets(key, None, requires_stable=False, member_id=None, member_epoch=-1)
            for each in (await self.groups.call(fetch)).partitions:
                topic = self.catalog.find_id(each.topic_id)
                if topic is None or _is_own(topic) or each.code or each.offset < 0:
                    continue
                log_end = None
                if rows < LAG_ROWS_MAX:
                    log_end = await self._log_end(topic, each.partition)
                if log_end is None:
                    self._left_out += 1
                    continue
                rows += 1
                place = _named(topic) | {"account": account, "group": group}
                counts = {"committed": each.offset, "log_end": log_end}
                counts |= {"depth": max(0, log_end - each.offset), "partition": each.partition}
                to.add(wire.LAG, **place, **counts)

    async def _log_end(self, topic: Topic, partition: int) -> int | None:
        seen = self._seen.get((topic.topic_id, partition))
        if seen is not None:
            return seen[0]
        if not (self._are_others_silent or self.leads(topic, partition)):
            try:
                return (await self.broker.call(Ends(topic, partition))).high_watermark
            except PenstockError:
                self._are_others_silent = True
        return None


def _named(topic: Topic) -> dict[str, str]:
    return {"account": topic.account, "region": topic.region, "resource": topic.name}


def _is_own(topic: Topic) -> bool:
    return is_internal(topic.name) and not topic.is_queue


def _appended(last: tuple[int, int] | None, seen: tuple[int, int]) -> tuple[int, int]:
    log_end, size_bytes = seen
    if last is None or log_end <= last[0]:
        return 0, 0
    records, grown = log_end - last[0], size_bytes - last[1]
    return records, grown if grown > 0 else size_bytes * records // max(log_end, 1)

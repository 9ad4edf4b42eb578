"""Usage of tenants: ``UsageTable`` counts requests, messages and bytes of the current minute by
tenant, region, queue or topic, and operation; ``UsageWriter`` writes the counts to a topic.

The number of rows is bounded, and each tenant may use only a part of them. The further requests of
a tenant with too many rows are counted in one row whose resource and operation are ``*``. If there
are too many tenants, further tenants are counted together in one row. Totals stay exact."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from itertools import chain
from typing import Final, Protocol

from penstock.frontend.facts.fact_log import FactWriter
from penstock.model.calls import BrokerPort, LogBytes
from penstock.model.errors import PenstockError
from penstock.model.limits import KIB, MIB, MINUTE_MS, TENANT_FACTS_PERCENT
from penstock.model.names import is_internal
from penstock.model.ports import Catalog
from penstock.model.quotas import SharedLimit
from penstock.wire.facts import usage as wire
from penstock.wire.facts.telemetry import BOUNDS_SECONDS

Key = tuple[str, str, str, str]  # tenant, region, resource, operation; "" if there is none

TOPIC: Final = "__usage"
FLUSH_MS_DEFAULT: Final = 5_000
SAMPLED_AT_ONCE: Final = 100  # topics read before other tasks may run
KEYS_MAX: Final = 10_000  # rows of a minute: a few MB, and ten milliseconds to write
KEY_CHARS_MAX: Final = 2 * MIB  # of all keys together, which are written as one batch
UNIT_BYTES: Final = 64 * KIB  # a request of more bytes counts as several units
FOLDED: Final = "*"  # stands for all names that have no row of their own
STORED: Final = "storage"


class Meter(Protocol):
    """Metrics of a frontend. Methods are called once per request, not once per message."""

    def request(self, api: str, protocol: str, code: str, seconds: float) -> None:
        """Count a request; ``code`` is OK or the error code of the reply."""

    def sent(self, count: int, size_bytes: int) -> None: ...

    def received(self, count: int, size_bytes: int) -> None: ...

    def deleted(self, count: int) -> None: ...


class Refusal(Enum):
    """The reasons for rejecting a request. Each value is the name of a field of ``Counts``."""

    THROTTLED = "throttled"
    DENIED = "denied"
    FAILED = "failed"


_NUMBERS: Final = wire.NUMBERS[:-1]  # without the stored bytes


class Counts:
    __slots__ = ("durations", *_NUMBERS)

    def __init__(self, *, is_timed: bool = False) -> None:
        self.durations: dict[int, int] | None = {} if is_timed else None  # by bucket
        self.clear()

    def add(self, messages: int, bytes_in: int, bytes_out: int) -> None:
        self.requests += 1
        self.messages += messages
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        size = bytes_in + bytes_out
        self.units64k += 1 if size <= UNIT_BYTES else -(-size // UNIT_BYTES)

    def took(self, seconds: float) -> None:
        durations = self.durations
        if durations is not None:
            bucket = bisect_left(BOUNDS_SECONDS, seconds)
            durations[bucket] = durations.get(bucket, 0) + 1

    def clear(self) -> None:
        self.requests = 0  # including rejected ones
        self.messages = 0
        self.bytes_in = 0  # of messages
        self.bytes_out = 0
        self.units64k = 0
        self.throttled = 0
        self.denied = 0
        self.failed = 0
        if self.durations:
            self.durations.clear()


class UsageTable:
    def __init__(
        self,
        *,
        now_ms: int,
        keys_max: int = KEYS_MAX,
        is_timed: bool = False,
        own_account: str | None = None,
    ) -> None:
        percent = TENANT_FACTS_PERCENT
        self._rows = SharedLimit(keys_max, percent, own_account=own_account)
        self._chars = SharedLimit(KEY_CHARS_MAX, percent, own_account=own_account)
        self._stored_rows = SharedLimit(keys_max, percent, own_account=own_account)
        self._is_timed = is_timed
        # Called with each row that is taken, before its counts are cleared.
        self.on_taken: Callable[[Key, Counts], None] | None = None
        self._keys_max = keys_max
        self.minute_ms = _minute_of(now_ms)  # start of the current minute
        self._counts: dict[Key, Counts] = {}
        self._folded: dict[str, Counts] = {}  # by tenant
        # A cache for callers, who choose the keys; see ``remember``.
        self.found: dict[tuple[str | None, ...], Counts] = {}
        self._stored: dict[tuple[str, str, str], int] = {}
        self._stored_folded: dict[str, int] = {}

    def find(self, key: Key) -> Counts:
        return self._counts.get(key) or self._open(key)

    def move(self, key: Key, messages: int, bytes_in: int, bytes_out: int) -> None:
        """Count the messages and bytes of a request in one topic. Call this once per topic."""
        counts = self.find(key)
        counts.messages += messages
        counts.bytes_in += bytes_in
        counts.bytes_out += bytes_out
        counts.units64k += -(-(bytes_in + bytes_out) // UNIT_BYTES)

    def request(self, key: Key, seconds: float) -> None:
        """Count a request without its messages and bytes, which ``move`` counts by topic."""
        counts = self.find(key)
        counts.requests += 1
        counts.took(seconds)

    def push(self, key: Key, attempts: int, delivered: int, bytes_out: int) -> None:
        """Count attempts to push messages of a topic. Attempts that delivered none have failed."""
        counts = self.find(key)
        counts.requests += attempts
        counts.messages += delivered
        counts.bytes_out += bytes_out
        counts.units64k += max(attempts, -(-bytes_out // UNIT_BYTES))
        counts.failed += attempts - delivered

    def reject(self, key: Key, refusal: Refusal) -> None:
        counts = self.find(key)
        counts.requests += 1
        counts.units64k += 1
        field = refusal.value
        setattr(counts, field, getattr(counts, field) + 1)

    def remember(self, key: tuple[str | None, ...], counts: Counts) -> None:
        if len(self.found) < self._keys_max:
            self.found[key] = counts

    def store(self, tenant: str, region: str, resource: str, size_bytes: int) -> None:
        rows = self._stored_rows
        if not (rows.is_full() or rows.is_used_up(tenant)):
            if (tenant, region, resource) not in self._stored:
                rows.add(tenant)
            self._stored[tenant, region, resource] = size_bytes
            return
        if tenant not in self._stored_folded and len(self._stored_folded) >= self._keys_max:
            tenant = FOLDED
        self._stored_folded[tenant] = self._stored_folded.get(tenant, 0) + size_bytes

    def take(self, *, now_ms: int) -> tuple[int, wire.UsageColumns]:
        """Return the current minute and the counts since the last call. May start a new minute."""
        minute_ms = self.minute_ms
        rows: list[tuple[str | int, ...]] = []
        folded = (((each, "", FOLDED, FOLDED), counts) for each, counts in self._folded.items())
        for key, counts in chain(self._counts.items(), folded):
            if self.on_taken is not None:
                self.on_taken(key, counts)
            if counts.requests or counts.messages or counts.units64k:
                numbers = (getattr(counts, name) for name in _NUMBERS)
                rows.append((*key[:3], wire.CALLS, key[3], *numbers, 0))
                counts.clear()
        nothing = (0,) * (len(wire.NUMBERS) - 1)
        rows += [(*key, wire.STORAGE, STORED, *nothing, size) for key, size in self._stored.items()]
        for tenant, size in self._stored_folded.items():
            rows.append((tenant, "", FOLDED, wire.STORAGE, STORED, *nothing, size))
        self._stored.clear()
        self._stored_rows.clear()
        self._stored_folded.clear()
        if _minute_of(now_ms) != minute_ms:
            self.minute_ms = _minute_of(now_ms)
            self._counts.clear()
            self._folded.clear()
            self.found.clear()
            self._rows.clear()
            self._chars.clear()
        return minute_ms, wire.UsageColumns(*map(list, zip(*rows, strict=True)))

    def _open(self, key: Key) -> Counts:
        size, tenant, rows, chars = sum(map(len, key)), key[0], self._rows, self._chars
        if not (
            rows.is_full()
            or rows.is_used_up(tenant)
            or chars.is_full(size)
            or chars.is_used_up(tenant, size)
        ):
            rows.add(tenant)
            chars.add(tenant, size)
            counts = self._counts[key] = Counts(is_timed=self._is_timed)
            return counts
        if tenant not in self._folded and len(self._folded) >= self._keys_max:
            tenant = FOLDED
        return self._folded.setdefault(tenant, Counts(is_timed=self._is_timed))


def _minute_of(now_ms: int) -> int:
    return now_ms - now_ms % MINUTE_MS


@dataclass(eq=False)
class UsageWriter(FactWriter):
    """Writes the counts of a ``UsageTable`` to the topic ``__usage``, one record every few seconds
    and at the end of every minute, each exactly once. Even a minute without requests gets a record,
    which shows readers that the node has reported everything. Once a minute, the sizes of the
    partitions that this node leads are also written. If the process is killed, the counts of the
    last ``flush_ms`` and of an unfinished write are lost."""

    noun = "usage"
    table: UsageTable
    _: KW_ONLY
    flush_ms: int = FLUSH_MS_DEFAULT
    stored_in: tuple[Catalog, BrokerPort] | None = None  # the topics whose size is recorded

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sampled_ms = self.table.minute_ms

    async def flush(self) -> None:
        await self.log.settle()
        now_ms = self.clock.wall_ms()
        minute_ms, columns = self.table.take(now_ms=now_ms)
        if len(columns) or self.table.minute_ms != minute_ms:
            fields = {"minute_ms": minute_ms, "written_at_ms": now_ms, "columns": columns}
            await self._append(wire, wire.UsageFacts, **fields)
        if self.table.minute_ms != self._sampled_ms and not self._is_stopping.is_set():
            self._sampled_ms = self.table.minute_ms
            await self.sample()

    async def sample(self) -> None:
        if self.stored_in is None:
            return
        catalog, broker = self.stored_in
        for number, topic in enumerate(tuple(catalog.all_topics()), 1):
            if number % SAMPLED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if topic.is_share or (is_internal(topic.name) and not topic.is_queue):
                continue
            size_bytes = 0
            for partition in range(topic.partition_count):
                if self.leads(topic, partition):
                    with suppress(PenstockError):  # deleted, or led by another node, since
                        size_bytes += await broker.call(LogBytes(topic, partition))
            if size_bytes:
                self.table.store(topic.account, topic.region, topic.name, size_bytes)

    def _wait_s(self) -> float:
        left_ms = MINUTE_MS - self.clock.wall_ms() % MINUTE_MS
        return min(self.flush_ms, left_ms) / 1_000

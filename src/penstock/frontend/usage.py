"""What tenants use, counted in memory: for each tenant, region, queue or topic and operation the
requests, messages and bytes of the current minute. Pure: ``usage_writer.py`` owns the clock and the
log.

Counting is one look-up and some additions per request, whatever a batch holds. A row lives for a
minute; ``take`` hands out what was added since the last time, so that adding up all that was ever
taken gives all that was ever counted.

A minute has a bounded number of rows, and each tenant a share of them. What comes beyond is counted
in one row of its tenant, whose resource and operation are ``*``, and with too many tenants in one
of all: details are lost then, totals never.
"""

from bisect import bisect_left
from collections.abc import Callable
from enum import Enum
from typing import Final

from penstock.model.limits import KIB, MIB, MINUTE_MS, TENANT_FACTS_PERCENT
from penstock.model.quotas import Shares
from penstock.wire.facts.telemetry import BOUNDS_SECONDS
from penstock.wire.facts.usage import CALLS, STORAGE, UsageColumns

Key = tuple[str, str, str, str]  # tenant, region, resource, operation; "": none

KEYS_MAX: Final = 10_000  # rows of a minute; a few MB, and ten milliseconds of the loop to write
KEY_CHARS_MAX: Final = 2 * MIB  # of their names, which are all in one batch of the log
UNIT_BYTES: Final = 64 * KIB  # what a request may move for the price of one
FOLDED: Final = "*"  # stands in no name
STORED: Final = "storage"


class Refusal(Enum):
    """Why a request was not carried out."""

    THROTTLED = "throttled"
    DENIED = "denied"
    FAILED = "failed"


class Counts:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "denied",
        "durations",
        "failed",
        "messages",
        "requests",
        "throttled",
        "units64k",
    )

    def __init__(self, *, is_timed: bool = False) -> None:
        self.durations: dict[int, int] | None = {} if is_timed else None  # by bucket
        self.clear()

    def add(self, messages: int, bytes_in: int, bytes_out: int) -> None:
        """One request that was carried out, with what it moved."""
        self.requests += 1
        self.messages += messages
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        size = bytes_in + bytes_out
        self.units64k += 1 if size <= UNIT_BYTES else -(-size // UNIT_BYTES)

    def took(self, seconds: float) -> None:
        """How long that request was under way, where somebody wants to know."""
        durations = self.durations
        if durations is not None:
            bucket = bisect_left(BOUNDS_SECONDS, seconds)
            durations[bucket] = durations.get(bucket, 0) + 1

    def clear(self) -> None:
        self.requests = 0  # answered, those that were refused among them
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
        """``is_timed``: note also how long requests took. ``own_account``: of the node's own
        tenant; others have a share of the rows. None: all have all."""
        percent = TENANT_FACTS_PERCENT
        self._rows = Shares(keys_max, percent, own_account=own_account)
        self._chars = Shares(KEY_CHARS_MAX, percent, own_account=own_account)
        self._stored_rows = Shares(keys_max, percent, own_account=own_account)
        self._is_timed = is_timed
        # Told of each row that is taken, before it begins again from nothing.
        self.on_taken: Callable[[Key, Counts], None] | None = None
        self._keys_max = keys_max
        self.minute_ms = _minute_of(now_ms)  # when the minute began that is counted now
        self._counts: dict[Key, Counts] = {}
        self._folded: dict[str, Counts] = {}  # by tenant
        # By whatever a caller knows it by that is at hand sooner than a key; ``remember``.
        self.found: dict[tuple[str | None, ...], Counts] = {}
        self._stored: dict[tuple[str, str, str], int] = {}
        self._stored_folded: dict[str, int] = {}

    # ── Counting: the hot path ───────────────────────────────────────────────────────────────

    def find(self, key: Key) -> Counts:
        """Where to add what is counted for this key, until the minute is over."""
        return self._counts.get(key) or self._open(key)

    def move(self, key: Key, messages: int, bytes_in: int, bytes_out: int) -> None:
        """What a request moved that is counted elsewhere, because it names many topics."""
        counts = self.find(key)
        counts.messages += messages
        counts.bytes_in += bytes_in
        counts.bytes_out += bytes_out
        counts.units64k += -(-(bytes_in + bytes_out) // UNIT_BYTES)

    def request(self, key: Key, seconds: float) -> None:
        """A request whose messages are counted with their topics, and how long it took."""
        counts = self.find(key)
        counts.requests += 1
        counts.took(seconds)

    def refuse(self, key: Key, refusal: Refusal) -> None:
        counts = self.find(key)
        counts.requests += 1
        counts.units64k += 1
        if refusal is Refusal.THROTTLED:
            counts.throttled += 1
        elif refusal is Refusal.DENIED:
            counts.denied += 1
        else:
            counts.failed += 1

    def remember(self, place: tuple[str | None, ...], counts: Counts) -> None:
        """Until the minute is over ``found`` leads from there to here."""
        if len(self.found) < self._keys_max:
            self.found[place] = counts

    # ── Once a minute ────────────────────────────────────────────────────────────────────────

    def store(self, tenant: str, region: str, resource: str, size_bytes: int) -> None:
        """What a queue or topic holds now."""
        rows = self._stored_rows
        if not (rows.is_full() or rows.is_used_up(tenant)):
            if (tenant, region, resource) not in self._stored:
                rows.add(tenant)
            self._stored[tenant, region, resource] = size_bytes
            return
        if tenant not in self._stored_folded and len(self._stored_folded) >= self._keys_max:
            tenant = FOLDED
        self._stored_folded[tenant] = self._stored_folded.get(tenant, 0) + size_bytes

    # ── Taking ───────────────────────────────────────────────────────────────────────────────

    def take(self, *, now_ms: int) -> tuple[int, UsageColumns]:
        """The minute, and what was added in it since the last time. If another minute has begun
        since, what comes from now on is counted in that."""
        minute_ms = self.minute_ms
        columns = UsageColumns()
        if self.on_taken is not None:
            for key, counts in self._counts.items():
                self.on_taken(key, counts)
            for tenant, counts in self._folded.items():
                self.on_taken((tenant, "", FOLDED, FOLDED), counts)
        for (tenant, region, resource, op), counts in self._counts.items():
            _emit(columns, tenant, region, resource, op, counts)
        for tenant, counts in self._folded.items():
            _emit(columns, tenant, "", FOLDED, FOLDED, counts)
        for (tenant, region, resource), size_bytes in self._stored.items():
            _emit_stored(columns, tenant, region, resource, size_bytes)
        for tenant, size_bytes in self._stored_folded.items():
            _emit_stored(columns, tenant, "", FOLDED, size_bytes)
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
        return minute_ms, columns

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


def _emit(
    to: UsageColumns, tenant: str, region: str, resource: str, op: str, counts: Counts
) -> None:
    if not (counts.requests or counts.messages or counts.units64k):
        return  # nothing since the last time
    to.tenant.append(tenant)
    to.region.append(region)
    to.resource.append(resource)
    to.kind.append(CALLS)
    to.op.append(op)
    to.requests.append(counts.requests)
    to.messages.append(counts.messages)
    to.bytes_in.append(counts.bytes_in)
    to.bytes_out.append(counts.bytes_out)
    to.units64k.append(counts.units64k)
    to.throttled.append(counts.throttled)
    to.denied.append(counts.denied)
    to.failed.append(counts.failed)
    to.stored_bytes.append(0)
    counts.clear()


def _emit_stored(
    to: UsageColumns, tenant: str, region: str, resource: str, size_bytes: int
) -> None:
    to.tenant.append(tenant)
    to.region.append(region)
    to.resource.append(resource)
    to.kind.append(STORAGE)
    to.op.append(STORED)
    for column in (
        to.requests,
        to.messages,
        to.bytes_in,
        to.bytes_out,
        to.units64k,
        to.throttled,
        to.denied,
        to.failed,
    ):
        column.append(0)
    to.stored_bytes.append(size_bytes)

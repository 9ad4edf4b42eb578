"""The audit trail: records of who did what, in the topic ``__audit``. The records of each node form
a hash chain, so that changed or removed records can be detected (``wire/facts/audit.py``).

An entry is added after its action and written in the background. The queue of unwritten entries is
bounded: while it is full, callers wait in ``admit`` before the action, so no entry is dropped. If
the process is killed, unwritten entries are lost; readers can see this, because a ``Started`` entry
without a ``Stopped`` entry before it means a crash. Anyone can send millions of requests that are
denied, so only some of these are recorded (``Denials``)."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Any, Final

from penstock.frontend.facts.fact_log import STOP_SECONDS_MAX, Fact, FactLog, is_cut_off
from penstock.model.errors import Damaged, Draining, PenstockError
from penstock.model.identity import Caller
from penstock.model.limits import MIB, MINUTE_MS, TENANT_FACTS_PERCENT
from penstock.model.ports import Clock
from penstock.model.quotas import SharedLimit
from penstock.wire.facts import audit as wire

log_ = logging.getLogger(__name__)

TOPIC: Final = "__audit"
QUEUE_MAX: Final = 10_000  # entries not yet written; at worst a few kilobytes each
BATCH_MAX: Final = 100  # entries of one write: about 5 ms to hash, encode and compress
BATCH_BYTES_MAX: Final = 4 * MIB  # a batch ends after the entry that exceeds this
DENIED_PER_KIND_MAX: Final = 5  # per minute
DENIED_MAX: Final = 300  # per minute, of all kinds
LEFT_OUT_ROWS_MAX: Final = 100  # tenants whose unrecorded denials are counted separately
RETRY_SECONDS: Final = 1.0
# A node that writes nothing for longer than the retention time would lose the end of its chain.
QUIET_SECONDS_MAX: Final = 24 * 3_600.0

STARTED: Final = "penstock:Started"
STOPPED: Final = "penstock:Stopped"
RUNNING: Final = "penstock:Running"
CHAIN_RESTARTED: Final = "penstock:ChainBegunAnew"
DENIALS_LEFT_OUT: Final = "penstock:DenialsLeftOut"
CANCELLED: Final = "ClientGone"  # code of a request whose client disconnected before the reply


def make_entry(
    action: str,
    *,
    at_ms: int,
    caller: Caller | None,
    resource: str = "",
    code: str = "",
    denials: Collection[str] = (),
    source_ip: str = "",
    request_id: str = "",
    params: Mapping[str, object] | None = None,
) -> wire.AuditEntry:
    """Return an audit entry. ``action`` is named as in policies, ``code`` is the error code (empty
    for success), and ``denials`` are the error codes that mean that access was denied."""
    outcome = wire.OK if not code else wire.UNKNOWN if code == CANCELLED else wire.FAILED
    return wire.AuditEntry(
        at_ms=at_ms,
        principal=caller.arn if caller is not None and caller.account else "",
        tenant="" if caller is None else caller.account,
        source_ip=source_ip,
        action=action,
        resource=resource[: wire.NAME_MAX],
        outcome=wire.DENIED if code in denials else outcome,
        error_code=code,
        request_id=request_id[: wire.NAME_MAX],
        params=wire.redacted(params or {}),
    )


class Denials:
    """Selects the denied requests to record: per minute, a few of each kind and of each tenant."""

    def __init__(self, *, own_account: str | None = None) -> None:
        self._minute = -1
        self._recorded: dict[tuple[str, ...], int] = {}
        self._shares = SharedLimit(DENIED_MAX, TENANT_FACTS_PERCENT, own_account=own_account)
        self.left_out_counts: Counter[str] = Counter()  # by tenant; "" for unknown callers

    def is_recorded(self, entry: wire.AuditEntry, *, has_room: bool = True) -> bool:
        """Return whether to record a denial. Call ``left_out`` first, which resets the counts."""
        self._minute = entry.at_ms // MINUTE_MS
        kind = (entry.principal, entry.source_ip, entry.action, entry.error_code)
        tenant, count, shares = entry.tenant, self._recorded.get(kind, 0), self._shares
        holder = tenant or entry.source_ip
        is_full = shares.is_full() or shares.is_used_up(holder)
        if not has_room or count >= DENIED_PER_KIND_MAX or is_full:
            counts = self.left_out_counts
            counts[tenant if tenant in counts or len(counts) < LEFT_OUT_ROWS_MAX else ""] += 1
            return False
        self._recorded[kind] = count + 1
        shares.add(holder)
        return True

    def left_out(self, *, now_ms: int) -> Mapping[str, int]:
        """Return how many denials of the last full minute were not recorded, by tenant."""
        if now_ms // MINUTE_MS == self._minute:
            return {}
        counts, self.left_out_counts = self.left_out_counts, Counter()
        self._recorded.clear()
        self._shares.clear()
        return counts


@dataclass(eq=False)
class AuditTrail:
    log: FactLog
    _: KW_ONLY
    node: str
    clock: Clock
    own_account: str | None = None  # the node's own tenant, whose denials have no separate limit

    def __post_init__(self) -> None:
        self._queue: deque[wire.AuditEntry] = deque()
        self._link: wire.Link | None = None  # end of the hash chain; None: not read yet
        self._offered: tuple[int, wire.Link] | None = None  # number of entries, new end of chain
        self._denials = Denials(own_account=self.own_account)
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_stopping = False
        self._trouble: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        return self._trouble or self.log.trouble

    @property
    def _has_room(self) -> bool:
        return len(self._queue) < QUEUE_MAX

    async def admit(self) -> None:
        """Wait until the queue of entries has room. Raises Draining if the trail is stopping."""
        while not self._has_room and not self._is_stopping:
            self._room.clear()
            await self._room.wait()
        if self._is_stopping:
            raise Draining("The node is stopping and accepts no more requests.")

    def add(self, entry: wire.AuditEntry) -> None:
        self._queue.append(entry)
        self._wake.set()

    async def note(self, action: str, **facts: Any) -> None:
        """Wait until the queue has room, then add the entry ``make_entry(action, **facts)``."""
        await self.admit()
        self.add(make_entry(action, at_ms=self.clock.wall_ms(), **facts))

    def deny(self, entry: wire.AuditEntry) -> None:
        """Add the entry of a denied request, unless enough similar ones were added this minute."""
        self._add_left_out()
        if self._denials.is_recorded(entry, has_room=self._has_room):
            self.add(entry)
        else:
            self._wake.set()  # the task writes the count at the end of the minute

    def _add_left_out(self, *, is_end: bool = False) -> None:
        if not self._has_room:
            return  # a later call adds them
        now_ms = self.clock.wall_ms()
        counts = self._denials.left_out(now_ms=now_ms + MINUTE_MS if is_end else now_ms)
        for tenant, count in counts.items():
            named = {"tenant": tenant} if tenant else {}
            self.add(self._own(DENIALS_LEFT_OUT, count=count, **named))

    def _own(self, action: str, **params: object) -> wire.AuditEntry:
        at_ms, principal = self.clock.wall_ms(), f"node:{self.node}"
        return wire.AuditEntry(at_ms=at_ms, principal=principal, action=action, params=params)

    def start(self, *, version: str = "") -> None:
        self.add(self._own(STARTED, **({"version": version} if version else {})))
        self._task = asyncio.create_task(self._run(), name="audit writer")

    async def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> None:
        self._is_stopping = True
        self._room.set()
        if self._task is None:
            return
        self._add_left_out(is_end=True)
        self.add(self._own(STOPPED))
        if await is_cut_off(self._task, seconds_max):
            facts = {"entries": len(self._queue), "reason": self.trouble}
            log_.error("last audit records lost at shutdown", extra=facts)

    async def _run(self) -> None:
        while self._queue or not self._is_stopping:
            try:
                if self._link is None:
                    self._link = await self._find_link()
                if self._queue:
                    await self._write(self._link)
                else:
                    await self._wait()
            except Exception as error:  # a bug; recording and writing continue
                log_.error("writing the audit trail failed", exc_info=error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, link: wire.Link) -> None:
        if self._offered is None:
            facts: list[Fact] = []
            size = 0
            for entry in islice(self._queue, BATCH_MAX):
                value, link = wire.append(link, entry, node=self.node)
                facts.append(Fact(self.node.encode(), value, (wire.SCHEMA_HEADER,)))
                size += len(value)
                if size > BATCH_BYTES_MAX:
                    break
            self.log.offer(facts)
            self._offered = len(facts), link
        await self.log.settle()
        count, self._link = self._offered
        self._offered = None
        for _ in range(count):
            self._queue.popleft()
        self._room.set()

    async def _wait(self) -> None:
        self._wake.clear()
        wait_s = QUIET_SECONDS_MAX
        if self._denials.left_out_counts:
            wait_s = (MINUTE_MS - self.clock.wall_ms() % MINUTE_MS) / 1_000
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            if wait_s == QUIET_SECONDS_MAX:
                self.add(self._own(RUNNING))
        self._add_left_out()

    async def _find_link(self) -> wire.Link:
        """Return the hash at the end of this node's chain, read from its last record."""
        while True:
            try:
                last = await self.log.newest(self.node.encode())
                self._trouble = None
                return wire.Link() if last is None else wire.link_of(last.value or b"")
            except (Damaged, wire.AuditUnreadable) as error:
                log_.error("audit hash chain restarted", extra={"reason": str(error)})
                self._trouble = None
                self._queue.appendleft(self._own(CHAIN_RESTARTED, reason=str(error)))
                return wire.Link()
            except PenstockError as error:
                if self._trouble is None:
                    log_.warning("reading the audit trail failed", extra={"reason": str(error)})
                self._trouble = f"{TOPIC}: {error}"
            await asyncio.sleep(RETRY_SECONDS)

"""The audit trail: who did what, in the topic ``__audit``, in a hash chain that reveals tampering.

An entry is added after its action and written in the background, in the order of adding. The queue
between is bounded: callers wait in ``admit`` before the action while it is full, so no entry is
dropped for lack of room. If the process is killed, entries in the queue are lost; that some may be
missing is visible, because a start without a stop before it means a crash. A stop writes all.

Denied requests are the exception, because anyone can send millions of them: ``Denials``. Each node
has its own chain: nodes write to the same partition without waiting for one another.
``wire/facts/audit.py`` has the format of records and of the chain."""

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
LEFT_OUT_ROWS_MAX: Final = 100  # tenants with a number of left out denials
RETRY_SECONDS: Final = 1.0
# With no record younger than the retention, the end of the chain would be lost.
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
    """``action`` is named as in policies; ``params`` have no secret and no message; ``caller``
    None: unknown; ``code`` is that of the error; ``denials`` are codes of denied requests."""
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
    """Records a few denials of each kind per minute and of each tenant its share. Pure."""

    def __init__(self, *, own_account: str | None = None) -> None:
        """``own_account``: the node's own tenant, which has no share; None: no tenant has one."""
        self._minute = -1
        self._recorded: dict[tuple[str, ...], int] = {}
        self._shares = SharedLimit(DENIED_MAX, TENANT_FACTS_PERCENT, own_account=own_account)
        self.left_out_counts: Counter[str] = Counter()  # by tenant; "" for unknown callers

    def is_recorded(
        self,
        kind: tuple[str, ...],
        *,
        now_ms: int,
        has_room: bool = True,
        tenant: str = "",
        address: str = "",
    ) -> bool:
        """Call ``left_out`` first: it ends the minute. Unknown callers have a share by address."""
        self._minute = now_ms // MINUTE_MS
        count, holder, shares = self._recorded.get(kind, 0), tenant or address, self._shares
        is_full = shares.is_full() or shares.is_used_up(holder)
        if not has_room or count >= DENIED_PER_KIND_MAX or is_full:
            counts = self.left_out_counts
            counts[tenant if tenant in counts or len(counts) < LEFT_OUT_ROWS_MAX else ""] += 1
            return False
        self._recorded[kind] = count + 1
        self._shares.add(holder)
        return True

    def left_out(self, *, now_ms: int) -> Mapping[str, int]:
        """Return how many denials of the last minute were left out, by tenant, once."""
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
    own_account: str | None = None  # the node's own tenant; others have a share of the denials

    def __post_init__(self) -> None:
        self._queue: deque[wire.AuditEntry] = deque()
        self._link: wire.Link | None = None  # None: the end of the chain was not read yet
        self._offered: tuple[int, wire.Link] | None = None  # entries, and the link after them
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
        return self.waiting_count < QUEUE_MAX

    @property
    def waiting_count(self) -> int:
        return len(self._queue)

    async def admit(self) -> None:
        """Wait for room. Raises Draining after the stop: what cannot be recorded is not done."""
        while not self._has_room and not self._is_stopping:
            self._room.clear()
            await self._room.wait()
        if self._is_stopping:
            raise Draining("The node is stopping.")

    def add(self, entry: wire.AuditEntry) -> None:
        self._queue.append(entry)
        self._wake.set()

    async def note(self, action: str, **facts: Any) -> None:
        """Wait for room and add an entry; for ``facts`` see ``make_entry``."""
        await self.admit()
        self.add(make_entry(action, at_ms=self.clock.wall_ms(), **facts))

    def deny(self, entry: wire.AuditEntry) -> None:
        """Add the entry of a denied request, unless there were many of its kind."""
        self._add_left_out()
        kind = (entry.principal, entry.source_ip, entry.action, entry.error_code)
        if self._denials.is_recorded(
            kind,
            now_ms=entry.at_ms,
            has_room=self._has_room,
            tenant=entry.tenant,
            address=entry.source_ip,
        ):
            self.add(entry)
        else:
            self._wake.set()  # to write the number at the end of the minute

    def _add_left_out(self, *, is_end: bool = False) -> None:
        if not self._has_room:
            return  # later
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
        """Write the rest; no entries should be added any more. Gives up after ``seconds_max``."""
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
        """Return the end of the chain: that of the last record of this node in the log."""
        while True:
            try:
                last = await self.log.newest(self.node.encode())
                self._trouble = None
                return wire.Link() if last is None else wire.link_of(last.value or b"")
            except (Damaged, wire.AuditUnreadable) as error:
                log_.error("new audit chain started", extra={"reason": str(error)})
                self._trouble = None
                self._queue.appendleft(self._own(CHAIN_RESTARTED, reason=str(error)))
                return wire.Link()
            except PenstockError as error:
                if self._trouble is None:
                    log_.warning("reading the audit trail failed", extra={"reason": str(error)})
                self._trouble = f"{TOPIC}: {error}"
            await asyncio.sleep(RETRY_SECONDS)

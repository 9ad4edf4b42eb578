"""The audit trail: who did what to whom, in ``__audit``, in a chain that shows tampering.

An action is noted after it was carried out and written in the background, in the order of noting.
The queue in between is bounded: whoever is about to act calls ``admit`` first and waits there while
it is full, so nothing is ever left out for want of room, and what is noted after an action never
waits. What is still in the queue when the process is killed is missing afterwards; that there may
be something missing shows, because a start that follows no stop is a crash. A stop writes
everything first.

Denied requests are the exception: anybody can make millions of them. Of each sort a few in a
minute are noted, of each tenant no more than its share, and how many were not is noted at the end
of the minute, in one row per tenant.

The chain is the node's own: others write to the same partition, and neither waits for what they are
about to write. What a record looks like and how the chain is made is in ``wire/facts/audit.py``;
what of a request is noted in ``audited.py`` and its like.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from penstock.frontend.fact_log import Fact, FactLog
from penstock.frontend.fact_writer import STOP_SECONDS_MAX
from penstock.model.errors import Damaged, Draining, PenstockError
from penstock.model.identity import Caller
from penstock.model.limits import MIB, MINUTE_MS, TENANT_FACTS_PERCENT
from penstock.model.ports import Clock
from penstock.model.quotas import Shares
from penstock.wire.facts.audit import (
    NAME_MAX,
    OK,
    SCHEMA_HEADER,
    AuditEntry,
    AuditUnreadable,
    Link,
    append,
    link_of,
    redacted,
)

log_ = logging.getLogger(__name__)

TOPIC: Final = "__audit"
QUEUE_MAX: Final = 10_000  # entries not yet written; some kilobytes each at worst
BATCH_MAX: Final = 100  # entries of one write: about 5 ms to hash, encode and compress
BATCH_BYTES_MAX: Final = 4 * MIB  # closed behind the entry that exceeds this
DENIED_PER_SORT_MAX: Final = 5  # in a minute
DENIED_MAX: Final = 300  # in a minute, of all sorts
LEFT_OUT_ROWS_MAX: Final = 100  # tenants of which it is said how many were left out
RETRY_SECONDS: Final = 1.0
# A chain without a record younger than the retention would have lost its end.
QUIET_SECONDS_MAX: Final = 24 * 3_600.0

STARTED: Final = "penstock:Started"
STOPPED: Final = "penstock:Stopped"
RUNNING: Final = "penstock:Running"
CHAIN_BEGUN: Final = "penstock:ChainBegunAnew"
DENIALS_LEFT_OUT: Final = "penstock:DenialsLeftOut"


class Denials:
    """Which denied requests of a minute are noted. Pure."""

    def __init__(self, *, own_account: str | None = None) -> None:
        """``own_account``: of the node's own tenant; others have a share. None: all have all."""
        self._minute = -1
        self._noted: dict[tuple[str, ...], int] = {}
        self._shares = Shares(DENIED_MAX, TENANT_FACTS_PERCENT, own_account=own_account)
        self._left_out: dict[str, int] = {}  # by tenant; "" for callers that nobody knows

    @property
    def has_left_out(self) -> bool:
        return bool(self._left_out)

    def is_noted(
        self,
        sort: tuple[str, ...],
        *,
        now_ms: int,
        has_room: bool = True,
        tenant: str = "",
        address: str = "",
    ) -> bool:
        """Ask ``left_out`` first: it ends the minute. ``address`` has the share of a caller that
        nobody knows."""
        self._minute = now_ms // MINUTE_MS
        noted, holder = self._noted.get(sort, 0), tenant or address
        if (
            not has_room
            or noted >= DENIED_PER_SORT_MAX
            or self._shares.is_full()
            or self._shares.is_used_up(holder)
        ):
            if tenant not in self._left_out and len(self._left_out) >= LEFT_OUT_ROWS_MAX:
                tenant = ""
            self._left_out[tenant] = self._left_out.get(tenant, 0) + 1
            return False
        self._noted[sort] = noted + 1
        self._shares.add(holder)
        return True

    def left_out(self, *, now_ms: int) -> Mapping[str, int]:
        """How many were not noted in a minute that is over, by tenant; told once."""
        if now_ms // MINUTE_MS == self._minute:
            return {}
        counts, self._left_out = self._left_out, {}
        self._noted.clear()
        self._shares.clear()
        return counts


class AuditTrail:
    def __init__(
        self, log: FactLog, *, node: str, clock: Clock, own_account: str | None = None
    ) -> None:
        """``own_account``: of the node's own tenant; others have a share of the denials."""
        self._log = log
        self._node = node
        self._clock = clock
        self._queue: deque[AuditEntry] = deque()
        self._link: Link | None = None  # None: the end of the chain has not been read yet
        self._in_hand: tuple[int, Link] | None = None  # how many are offered, the link behind them
        self._denials = Denials(own_account=own_account)
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_stopping = False
        self._trouble: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written at the moment; for the health checks."""
        return self._trouble or self._log.trouble

    @property
    def _has_room(self) -> bool:
        return len(self._queue) < QUEUE_MAX

    @property
    def waiting_count(self) -> int:
        """Entries that are not written yet."""
        return len(self._queue)

    # ── Noting ───────────────────────────────────────────────────────────────────────────────

    async def admit(self) -> None:
        """Before an action that will be noted: wait until there is room. Raises Draining once the
        trail has ended: what cannot be noted is not done."""
        while not self._has_room and not self._is_stopping:
            self._room.clear()
            await self._room.wait()
        if self._is_stopping:
            raise Draining("The node is about to stop.")

    def add(self, entry: AuditEntry) -> None:
        """After an action that was admitted. Never waits."""
        self._queue.append(entry)
        self._wake.set()

    async def note(
        self,
        action: str,
        *,
        caller: Caller | None,
        resource: str = "",
        outcome: str = OK,
        error_code: str = "",
        source_ip: str = "",
        request_id: str = "",
        params: Mapping[str, object] | None = None,
    ) -> None:
        """All in one, for what is rare: waits for room, so call it where waiting does no harm.
        ``action`` is named as policies name it; ``params`` hold no secret and no message. None as
        the caller: nobody we know."""
        await self.admit()
        self.add(
            AuditEntry(
                at_ms=self._clock.wall_ms(),
                principal="" if caller is None else caller.arn,
                tenant="" if caller is None else caller.account,
                source_ip=source_ip,
                action=action,
                resource=resource[:NAME_MAX],
                outcome=outcome,
                error_code=error_code,
                request_id=request_id[:NAME_MAX],
                params=redacted(params or {}),
            )
        )

    def deny(self, entry: AuditEntry) -> None:
        """A request that was refused before it did anything: noted if few like it were."""
        self._tell_left_out()
        sort = (entry.principal, entry.source_ip, entry.action, entry.error_code)
        if self._denials.is_noted(
            sort,
            now_ms=entry.at_ms,
            has_room=self._has_room,
            tenant=entry.tenant,
            address=entry.source_ip,
        ):
            self.add(entry)
        else:
            self._wake.set()  # it is told at the end of the minute that there were more

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    def start(self, *, version: str = "") -> None:
        self.add(self._own(STARTED, {"version": version} if version else {}))
        self._task = asyncio.create_task(self._run(), name="audit writer")

    async def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Writes what is left; nothing more should be noted. Gives up after that time."""
        self._is_stopping = True
        self._room.set()
        if self._task is None:
            return
        self._tell_left_out(is_end=True)
        self.add(self._own(STOPPED, {}))
        _, late = await asyncio.wait((self._task,), timeout=seconds_max)
        for task in late:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            log_.error(
                "the end of the audit trail is lost",
                extra={"entries": len(self._queue), "reason": self.trouble},
            )

    def _own(self, action: str, params: Mapping[str, object]) -> AuditEntry:
        """What the node itself has to say."""
        return AuditEntry(
            at_ms=self._clock.wall_ms(),
            principal=f"node:{self._node}",
            action=action,
            params=params,
        )

    def _tell_left_out(self, *, is_end: bool = False) -> None:
        if not self._has_room:
            return  # it can wait
        now_ms = self._clock.wall_ms()
        counts = self._denials.left_out(now_ms=now_ms + MINUTE_MS if is_end else now_ms)
        for tenant, count in counts.items():
            whose = {"tenant": tenant} if tenant else {}
            self.add(self._own(DENIALS_LEFT_OUT, {"count": count, **whose}))

    # ── Writing ──────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while self._queue or not self._is_stopping:
            try:
                if self._link is None:
                    self._link = await self._find_link()
                if self._queue:
                    await self._write(self._link)
                else:
                    await self._rest()
            except Exception as error:  # of ours; noting goes on, and so does writing
                log_.error("audit trail not written", exc_info=error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, link: Link) -> None:
        if self._in_hand is None:
            facts: list[Fact] = []
            size = 0
            for entry in islice(self._queue, BATCH_MAX):
                value, link = append(link, entry, node=self._node)
                facts.append(Fact(self._node.encode(), value, (SCHEMA_HEADER,)))
                size += len(value)
                if size > BATCH_BYTES_MAX:
                    break
            self._log.offer(facts)
            self._in_hand = len(facts), link
        await self._log.settle()
        count, self._link = self._in_hand
        self._in_hand = None
        for _ in range(count):
            self._queue.popleft()
        self._room.set()

    async def _rest(self) -> None:
        """Until there is something to write."""
        self._wake.clear()
        wait_s = QUIET_SECONDS_MAX
        if self._denials.has_left_out:
            wait_s = (MINUTE_MS - self._clock.wall_ms() % MINUTE_MS) / 1_000
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            if wait_s == QUIET_SECONDS_MAX:
                self.add(self._own(RUNNING, {}))
        self._tell_left_out()

    async def _find_link(self) -> Link:
        """Where the chain goes on: behind the last record of this node that the log has."""
        while True:
            try:
                last = await self._log.newest(self._node.encode())
                self._trouble = None
                return Link() if last is None else link_of(last.value or b"")
            except (Damaged, AuditUnreadable) as error:
                log_.error("the audit trail begins anew", extra={"reason": str(error)})
                self._trouble = None
                self._queue.appendleft(self._own(CHAIN_BEGUN, {"reason": str(error)}))
                return Link()
            except PenstockError as error:
                if self._trouble is None:
                    log_.warning("the audit trail cannot be read", extra={"reason": str(error)})
                self._trouble = f"{TOPIC}: {error}"
            await asyncio.sleep(RETRY_SECONDS)

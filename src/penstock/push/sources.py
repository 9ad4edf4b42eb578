"""Where the messages of a subscription come from: a share of its topic, or a queue.

Results of deliveries are collected while the last ones are written to the log, so that many of them
cost one event. If the write fails, the leases end by themselves and the messages are sent again."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from penstock.model.calls import (
    Ack,
    BrokerCall,
    BrokerPort,
    CloseShare,
    Extend,
    Lease,
    OpenShare,
    ShareLag,
    ShareStart,
    Stats,
)
from penstock.model.errors import PenstockError
from penstock.model.limits import WINDOW_RECORDS_MAX
from penstock.model.message import AckReason, Claim, Delivery
from penstock.model.ports import EARLIEST, Clock, LeaseRequest, Subscriptions
from penstock.model.subscription import Replay, ReplayState, Subscription, share_group
from penstock.model.topic import Topic

ATTEMPTS_MAX: Final = 1_100  # of a share, above all policies: for a message that ends every node
COUNT_SECONDS: Final = 0.05  # between counts of messages, which may take 5 ms

log_ = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Source:
    def __init__(
        self,
        topic: Topic,
        replay: Replay | None,
        broker: BrokerPort,
        clock: Clock,
        spawn: Spawn,
        on_written: Callable[[], None],  # called when results are in the log
    ) -> None:
        self.topic = topic  # the share or queue
        self.replay = replay
        self.has_news = False  # a lease may return messages; set by the owner
        self.in_flight = 0  # requests; counted by the owner
        self.leased_at_ms = -1_000_000  # when a lease last returned messages
        self._broker, self._clock, self._spawn = broker, clock, spawn
        self._acks: dict[tuple[int, AckReason], list[Claim]] = {}  # by partition and reason
        self._extensions: dict[int, list[tuple[Claim, int]]] = {}
        self._retries: list[int] = []  # heap of the ends of extended leases
        self.unwritten = 0  # results that are not in the log yet
        self._on_written = on_written
        self._is_writing = False
        self._removes: list[Callable[[], None]] = []
        self._changed = asyncio.Event()

    async def listen(self, on_news: Callable[[], None]) -> None:
        """Call ``on_news`` when there are messages again after a lease that returned none."""

        def available() -> None:
            self._changed.set()
            if not self.has_news:
                on_news()

        for partition in range(self.topic.partition_count):
            await self._broker.call(ShareStart(self.topic, partition))  # opens the share there
            self._removes.append(self._broker.on_available(self.topic, partition, available))

    def close(self) -> None:
        for remove in self._removes:
            remove()
        self._removes.clear()

    async def fill(self, count: int, *, seconds_max: float) -> bool:
        """Wait until ``count`` messages can be leased, at most ``seconds_max``. Returns False at
        once if there are no messages."""
        count = min(count, WINDOW_RECORDS_MAX)  # a cursor reads and counts no more
        with suppress(TimeoutError, PenstockError):
            async with asyncio.timeout(seconds_max):
                while True:
                    self._changed.clear()
                    stats = await self._broker.call(Stats(self.topic, is_detailed=True))
                    if stats.obstacles is not None and stats.obstacles.available >= count:
                        break
                    if not stats.visible and not self._changed.is_set():
                        return False
                    await asyncio.sleep(COUNT_SECONDS)
                    await self._changed.wait()
        return True

    async def lease(self, count: int, lease_ms: int, *, group_max: int) -> Sequence[Delivery]:
        self.has_news = False
        request = LeaseRequest(count, lease_ms, group_max=group_max)
        found = await self._broker.call(Lease(self.topic, request))
        if found:
            self.leased_at_ms = self._clock.mono_ms()
        return found

    # ── Results ──────────────────────────────────────────────────────────────────────────────

    @property
    def retry_count(self) -> int:
        """Return how many messages wait for another attempt."""
        retries, now_ms = self._retries, self._clock.mono_ms()
        while retries and retries[0] <= now_ms:
            heappop(retries)
        return len(retries)

    def ack(self, delivery: Delivery, reason: AckReason = AckReason.ACKED) -> None:
        self._acks.setdefault((delivery.partition, reason), []).append(delivery.claim)
        self.unwritten += 1
        self._write()

    def extend(self, delivery: Delivery, lease_ms: int) -> None:
        """Let a message be delivered again after ``lease_ms``."""
        claims = self._extensions.setdefault(delivery.partition, [])
        claims.append((delivery.claim, lease_ms))
        heappush(self._retries, self._clock.mono_ms() + lease_ms)
        self.unwritten += 1
        self._write()

    async def ack_now(self, deliveries: Sequence[Delivery]) -> None:
        claims: dict[int, list[Claim]] = {}
        for delivery in deliveries:
            claims.setdefault(delivery.partition, []).append(delivery.claim)
        for partition, some in claims.items():
            await self._broker.call(Ack(self.topic, partition, some))

    def _write(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._spawn(self._write_results(), "write results of")

    async def _write_results(self) -> None:
        try:
            while self._acks or self._extensions:
                acks, self._acks = self._acks, {}
                extensions, self._extensions = self._extensions, {}
                count = self.unwritten
                calls: list[BrokerCall[Any]] = [
                    *(Ack(self.topic, at, claims, why) for (at, why), claims in acks.items()),
                    *(
                        Extend(self.topic, at, claims, is_strict=True)
                        for at, claims in extensions.items()
                    ),
                ]
                await asyncio.gather(*map(self._call, calls))
                self.unwritten -= count
                if self.replay is not None:
                    self.has_news = True  # it may have ended
                self._on_written()
        finally:
            self._is_writing = False

    async def _call(self, call: BrokerCall[Any]) -> None:
        try:
            await self._broker.call(call)
        except PenstockError as error:
            about = {"share": self.topic.name, "reason": str(error)}
            log_.warning("writing the results of deliveries failed", extra=about)


async def open_share(
    one: Subscription, topic: Topic, replay: Replay | None, broker: BrokerPort, *, is_ordered: bool
) -> Topic:
    """Return the share of a subscription, or of one of its replays. It has the partitions that the
    topic has now, which may be more than when the share or the replay was created."""
    until: tuple[int, ...] = ()
    if replay is not None:
        until = replay.until + (0,) * (topic.partition_count - len(replay.until))
    share = await broker.call(
        OpenShare(
            topic,
            0,
            share_group(one, 0 if replay is None else replay.number),
            EARLIEST,
            attempts_max=ATTEMPTS_MAX,
            is_ordered=is_ordered,
            until=until,
            starts=one.start_offsets if replay is None else replay.starts,
        )
    )
    return msgspec.structs.replace(share, partition_count=topic.partition_count)


async def end_replay(
    source: Source, one: Subscription, topic: Topic, broker: BrokerPort, stored: Subscriptions
) -> None:
    """End the replay of a source if all messages of its range are finished."""
    replay = source.replay
    assert replay is not None
    for partition in range(len(replay.until)):
        if await broker.call(ShareLag(source.topic, partition)):
            return
    done = msgspec.structs.replace(replay, state=ReplayState.COMPLETED)

    def completed(current: Subscription) -> Subscription:
        replays = tuple(done if each == replay else each for each in current.replays)
        return msgspec.structs.replace(current, replays=replays)

    await stored.change(one.id, completed)
    await broker.call(CloseShare(topic, share_group(one, replay.number)))

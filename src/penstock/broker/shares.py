"""Shares: ``model.ports.Shares`` for the partitions of this node.

A share is a named lease cursor over a topic. Its entry in the catalog says that it exists and how
it behaves; where it stands is in the log of each partition, as everything else is. So a share is
replicated, restored and deleted with no machinery of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from penstock.broker.leases import Leases
from penstock.broker.partitions import Partitions
from penstock.broker.queue import Queue
from penstock.broker.redrive import ATTEMPTS_CONFIG, Redriver
from penstock.broker.share_taking import ShareTaking
from penstock.broker.surroundings import Surroundings
from penstock.cursor.group.settings import SHARE_DEFAULT, ShareSettings
from penstock.cursor.outcome import Pick
from penstock.model.errors import InvalidRequest, PenstockError, TopicExists, TopicNotFound
from penstock.model.message import Claim, Delivery
from penstock.model.names import is_internal, share_name
from penstock.model.ports import (
    EARLIEST,
    NO_TAGS,
    SETTINGS_DEFAULT,
    Acquired,
    Shares,
)
from penstock.model.stream import settings_of
from penstock.model.topic import Kind, QueueSettings, Topic

RECEIPT_KEY_BYTES = 32
SHARES_PER_TOPIC_MAX = 100  # each is told of every append
NAME_CHARS_MAX = 512
TELL_SECONDS_MAX = 2.0  # a member waits for it when it joins


class ShareCalls:
    def __init__(
        self,
        surroundings: Surroundings,
        partitions: Partitions,
        redriver: Redriver,
        *,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._surroundings = surroundings
        self._catalog = surroundings.catalog
        self._partitions = partitions
        self._redriver = redriver
        self._entropy = entropy
        self.elsewhere: Shares | None = None  # those of all nodes; None on a node by itself
        # What is set for the group of a share; replaced by who knows the configs of groups.
        self.settings_of: Callable[[Topic], ShareSettings] = lambda _: SHARE_DEFAULT
        # By source and group. Whoever asks meanwhile waits for the same one: a share that was
        # begun a second time at the end of the log would lack what has come in between.
        self._opening: dict[tuple[str, str], asyncio.Task[Topic]] = {}

    # ── making and ending ────────────────────────────────────────────────────────────────────

    def find_share(self, source: Topic, group: str) -> Topic | None:
        name = share_name(source.name, group)
        share = self._catalog.find(source.account, source.region, name)
        return share if share is not None and share.source_id == source.topic_id else None

    async def open_share(
        self,
        source: Topic,
        group: str,
        *,
        start: int,
        settings: QueueSettings = SETTINGS_DEFAULT,
        tags: Mapping[str, str] = NO_TAGS,
        attempts_max: int | None = None,
    ) -> Topic:
        key = (source.topic_id, group)
        opening = self._opening.get(key)
        if opening is None:
            share = self.find_share(source, group)
            if share is not None:
                return share
            self._check(source, group)
            share = self._new_share(source, group, settings, tags, attempts_max)
            opening = asyncio.create_task(
                self._begin(source, group, share, start), name=f"open {share.name}"
            )
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    def _new_share(
        self,
        source: Topic,
        group: str,
        settings: QueueSettings,
        tags: Mapping[str, str],
        attempts_max: int | None,
    ) -> Topic:
        now_ms = self._surroundings.clock.wall_ms()
        return Topic(
            topic_id=self._entropy(16).hex(),
            account=source.account,
            region=source.region,
            name=share_name(source.name, group),
            kind=Kind.STANDARD,
            partition_count=source.partition_count,
            created_at_ms=now_ms,
            modified_at_ms=now_ms,
            receipt_key=self._entropy(RECEIPT_KEY_BYTES),
            settings=settings,
            tags=dict(tags),
            configs={} if attempts_max is None else {ATTEMPTS_CONFIG: str(attempts_max)},
            source_id=source.topic_id,
        )

    async def _begin(self, source: Topic, group: str, share: Topic, start: int) -> Topic:
        partitions = (await self._open(source)).partitions
        # The log first: an entry of the catalog without a beginning in the log would be taken
        # for one whose beginning was dropped with its segment.
        for partition in partitions.values():
            await partition.begin_share(share, start)
        try:
            share = await self._catalog.create(share)
        except TopicExists:
            for partition in partitions.values():
                partition.end_share(share.topic_id)
            found = self.find_share(source, group)  # somebody was faster
            if found is None:
                raise
            return found
        except BaseException:
            for partition in partitions.values():
                partition.end_share(share.topic_id)
            raise
        if self.elsewhere is not None:
            if start == EARLIEST:
                await self._tell_elsewhere(self.elsewhere, source, share)
            else:
                await self._begin_elsewhere(self.elsewhere, source, share, start)
        return share

    async def _tell_elsewhere(self, elsewhere: Shares, source: Topic, share: Topic) -> None:
        """Other nodes hear of a share by the catalog, and a member's first fetch may be faster.
        Whoever cannot be asked in time hears of it later."""
        with contextlib.suppress(TimeoutError, PenstockError):
            async with asyncio.timeout(TELL_SECONDS_MAX):
                for partition in range(1, source.partition_count):
                    await elsewhere.share_start(share, partition)

    async def _begin_elsewhere(
        self, elsewhere: Shares, source: Topic, share: Topic, start: int
    ) -> None:
        """Other nodes begin at the start of their partitions unless they are told: all of them, or
        there is no share."""
        try:
            for partition in range(1, source.partition_count):
                await elsewhere.restart_share(share, partition, start)
        except BaseException:
            now_ms = self._surroundings.clock.wall_ms()
            await self._catalog.delete(share.account, share.region, share.name, now_ms=now_ms)
            raise

    def _check(self, source: Topic, group: str) -> None:
        if not group or len(share_name(source.name, group)) > NAME_CHARS_MAX:
            raise InvalidRequest("A share needs the name of a group, and not too long a one.")
        if is_internal(source.name):
            raise InvalidRequest(f"{source.name} belongs to the server itself.")
        if source.is_share:
            raise InvalidRequest(f"{source.name} is a share itself: share the topic that it reads.")
        if source.is_fifo:
            raise InvalidRequest(f"{source.name} is a FIFO queue: shares keep no order.")
        if settings_of(source, self._surroundings.defaults).is_compacted:
            raise InvalidRequest(
                f"{source.name} is compacted: a share needs a topic that keeps its records."
            )
        if len(self._catalog.shares_of(source.topic_id)) >= SHARES_PER_TOPIC_MAX:
            raise InvalidRequest(f"{source.name} has its maximum of {SHARES_PER_TOPIC_MAX} shares.")

    async def close_share(self, source: Topic, group: str) -> bool:
        share = self.find_share(source, group)
        if share is None:
            return False
        now_ms = self._surroundings.clock.wall_ms()
        await self._catalog.delete(share.account, share.region, share.name, now_ms=now_ms)
        return True

    # ── leasing ──────────────────────────────────────────────────────────────────────────────

    async def acquire(
        self,
        share: Topic,
        partition: int,
        *,
        count: int,
        bytes_max: int,
        lease_ms: int,
        is_strict: bool = False,
    ) -> Acquired:
        queue = await self._open(share)
        leases = self._leases(queue, partition)
        taking = ShareTaking(
            queue.partitions[partition],
            leases,
            self._redriver,
            self.settings_of(share),
            in_flight_max=self._surroundings.in_flight_max,
            bytes_max=bytes_max,
            is_strict=is_strict,
        )
        try:
            await taking.take(count, lease_ms)
        except asyncio.CancelledError:
            # Nobody will hear of them.
            self._partitions.spawn(self._give_back(leases, taking.deliveries), "give back")
            raise
        return Acquired(
            leases.cursor.low_offset(),
            taking.batches(),
            sorted(
                (each.record.offset, each.lease_seq, each.attempt) for each in taking.deliveries
            ),
        )

    async def _give_back(self, leases: Leases, deliveries: Sequence[Delivery]) -> None:
        claims = [
            (Claim(each.partition, each.record.offset, each.lease_seq), 0) for each in deliveries
        ]
        await leases.extend(claims, is_strict=True)

    async def finish(
        self, share: Topic, partition: int, claims: Sequence[Claim], *, is_rejected: bool = False
    ) -> Sequence[Exception | None]:
        leases = self._leases(await self._open(share), partition)
        if not is_rejected or leases.topic.settings.redrive is None:
            return await leases.ack(claims, is_strict=True)
        # A short lease more, so that nobody gets them while they are being moved.
        results = await leases.extend([(claim, REJECT_MS) for claim in claims], is_strict=True)
        picks = [
            Pick(claim.offset, claim.lease_seq, leases.cursor.attempts_of(claim.offset), 0, None)
            for claim, result in zip(claims, results, strict=True)
            if result is None
        ]
        if picks:
            await self._redriver.move(leases, picks)
        return results

    async def prolong(
        self, share: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        leases = self._leases(await self._open(share), partition)
        return await leases.extend(claims, is_strict=True)

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        queue = self._partitions.find(share)
        if queue is None:
            raise TopicNotFound(share.name)
        return self._leases(queue, partition).on_available(listener)

    # ── where it stands ──────────────────────────────────────────────────────────────────────

    async def share_start(self, share: Topic, partition: int) -> int:
        return self._leases(await self._open(share), partition).cursor.low_offset()

    async def share_lag(self, share: Topic, partition: int) -> int:
        return sum(self._leases(await self._open(share), partition).counts())

    async def restart_share(self, share: Topic, partition: int, offset: int) -> None:
        queue = await self._open(share)
        leases = self._leases(queue, partition)
        await queue.partitions[partition].restart_share(leases, offset)

    async def _open(self, topic: Topic) -> Queue:
        return self._partitions.find(topic) or await self._partitions.open(topic)

    def _leases(self, queue: Queue, partition: int) -> Leases:
        leases = queue.leases.get(partition)
        if leases is not None:
            return leases
        source = self._catalog.find_id(queue.topic.source_id or "")
        if source is None or not 0 <= partition < source.partition_count:
            raise TopicNotFound(queue.topic.name)
        return queue.leases[partition]  # which says that another node leads it


REJECT_MS = 30_000  # to copy rejected records to the dead-letter queue

"""Handlers of calls to shares, for the partitions of this node. A share is a named lease cursor
over a topic. Its settings are in the catalog, its position is in the log of each partition."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from penstock.broker.context.context import BrokerContext
from penstock.broker.leases.leases import Leases
from penstock.broker.partition.partitions import Partitions
from penstock.broker.partition.queue import Queue
from penstock.broker.queues.acquisition import Acquisition
from penstock.broker.queues.redrive import ATTEMPTS_CONFIG, Redriver
from penstock.cursor.groups.settings import SHARE_DEFAULT, ShareSettings
from penstock.cursor.leases.events import Pick
from penstock.model import calls
from penstock.model.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    PenstockError,
    TopicExists,
    TopicNotFound,
)
from penstock.model.levels import PUSH
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import is_internal, share_name
from penstock.model.ports import EARLIEST, Acquired
from penstock.model.stream import settings_of
from penstock.model.subscription import SHARE_PREFIX
from penstock.model.topic import Kind, Topic

RECEIPT_KEY_BYTES = 32
REJECT_MS = 30_000  # time to copy rejected records to the dead-letter queue
SHARES_PER_TOPIC_MAX = 100  # every append updates each share
PUSHED_SHARES_MAX = 1_000  # shares of subscriptions and of their replays
NAME_CHARS_MAX = 512
OPEN_SECONDS_MAX = 2.0  # timeout of calls to other nodes; a joining member waits


class ShareCalls:
    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        redriver: Redriver,
        *,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._context = context
        self._catalog = context.catalog
        self._partitions = partitions
        self._redriver = redriver
        self._entropy = entropy
        self.all_brokers: calls.BrokerPort | None = None  # None without a cluster
        # Returns the settings of a share's group. Replaced by the node's GroupHost.
        self.settings_of: Callable[[Topic], ShareSettings] = lambda _: SHARE_DEFAULT
        # By source and group. Concurrent calls wait for the same task: a share that was started
        # twice at the end of the log would miss the messages in between.
        self._opening: dict[tuple[str, str], asyncio.Task[Topic]] = {}
        self.handlers: Mapping[type[calls.BrokerCall[Any]], Callable[[Any], Any]] = {
            calls.OpenShare: self._open_share,
            calls.CloseShare: self._close_share,
            calls.Acquire: self._acquire,
            calls.Finish: self._finish,
            calls.Prolong: self._prolong,
            calls.ShareStart: self._share_start,
            calls.ShareLag: self._share_lag,
            calls.RestartShare: self._restart_share,
        }

    def find_share(self, source: Topic, group: str) -> Topic | None:
        name = share_name(source.name, group)
        share = self._catalog.find(source.account, source.region, name)
        return share if share is not None and share.source_id == source.topic_id else None

    async def _open_share(self, call: calls.OpenShare) -> Topic:
        source, group = call.topic, call.group
        key = (source.topic_id, group)
        opening = self._opening.get(key)
        if opening is None:
            share = self.find_share(source, group)
            if share is not None:
                return _checked_order(share, call)
            self._check(call)
            share = self._new_share(call)
            opening = asyncio.create_task(
                self._begin(source, group, share, call), name=f"open {share.name}"
            )
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return _checked_order(await asyncio.shield(opening), call)

    def _new_share(self, call: calls.OpenShare) -> Topic:
        source, attempts_max = call.topic, call.attempts_max
        now_ms = self._context.clock.wall_ms()
        return Topic(
            topic_id=self._entropy(16).hex(),
            account=source.account,
            region=source.region,
            name=share_name(source.name, call.group),
            kind=Kind.FIFO if call.is_ordered else Kind.STANDARD,
            partition_count=source.partition_count,
            created_at_ms=now_ms,
            modified_at_ms=now_ms,
            receipt_key=self._entropy(RECEIPT_KEY_BYTES),
            settings=call.settings,
            tags=dict(call.tags),
            configs={} if attempts_max is None else {ATTEMPTS_CONFIG: str(attempts_max)},
            source_id=source.topic_id,
            until=tuple(call.until),
        )

    async def _begin(self, source: Topic, group: str, share: Topic, call: calls.OpenShare) -> Topic:
        partitions = dict((await self._partitions.open(source)).partitions)
        # The log first: the start of a share that is in the catalog but not in the log counts as
        # deleted with its segment.
        try:
            for index, partition in partitions.items():
                until, end = share.until_of(index), partition.log.end_offset
                if end < until < OFFSET_MAX:
                    raise OffsetOutOfRange(until, partition.start_offset, end)
                await partition.begin_share(share, _start_of(call, index))
            share = await self._catalog.create(share)
        except BaseException as error:
            for partition in partitions.values():
                partition.end_share(share.topic_id)
            # A concurrent call on another node may have created the share.
            found = self.find_share(source, group) if isinstance(error, TopicExists) else None
            if found is None:
                raise
            return found
        if self.all_brokers is not None:
            if call.start == EARLIEST and not call.starts:
                await self._open_remote(self.all_brokers, source, share)
            else:
                await self._begin_remote(self.all_brokers, share, call)
        return share

    async def _open_remote(self, brokers: calls.BrokerPort, source: Topic, share: Topic) -> None:
        """Open a new share on other nodes, which may not have seen it in the catalog yet."""
        with contextlib.suppress(TimeoutError, PenstockError):
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                for partition in range(1, source.partition_count):
                    await brokers.call(calls.ShareStart(share, partition))

    async def _begin_remote(
        self, brokers: calls.BrokerPort, share: Topic, call: calls.OpenShare
    ) -> None:
        """Set the start offset of a new share on other nodes. If one fails, delete the share."""
        try:
            for partition in range(1, share.partition_count):
                start = _start_of(call, partition)
                await brokers.call(calls.RestartShare(share, partition, start))
        except BaseException:
            await self._delete(share)
            raise

    async def _delete(self, share: Topic) -> None:
        now_ms = self._context.clock.wall_ms()
        await self._catalog.delete(share.account, share.region, share.name, now_ms=now_ms)

    def _check(self, call: calls.OpenShare) -> None:
        source, group = call.topic, call.group
        if call.is_ordered or call.until or call.starts:
            self._context.check_level(PUSH, "Ordered shares and shares of a range")
        if call.until and (len(call.until) != source.partition_count or min(call.until) < 0):
            raise InvalidRequest("A share of a range needs an end offset for each partition.")
        if call.starts and min(call.starts) < 0:
            raise InvalidRequest("The start offsets of a share cannot be negative.")
        if not group or len(share_name(source.name, group)) > NAME_CHARS_MAX:
            raise InvalidRequest(
                f"A share needs a group name; topic and group may have at most {NAME_CHARS_MAX}"
                " characters together."
            )
        if is_internal(source.name):
            raise InvalidRequest(f"{source.name} is an internal topic; it cannot be shared.")
        if source.is_share:
            text = "is a share; share the topic that it reads instead."
            raise InvalidRequest(f"{source.name} {text}")
        if source.is_fifo and not call.is_ordered:
            raise InvalidRequest(f"{source.name} is FIFO; only ordered shares can read it.")
        if settings_of(source, self._context.defaults).is_compacted:
            raise InvalidRequest(f"{source.name} is a compacted topic, which cannot be shared.")
        shares = self._catalog.shares_of(source.topic_id)
        is_pushed = group.startswith(SHARE_PREFIX)
        prefix = share_name(source.name, SHARE_PREFIX)
        count = sum(each.name.startswith(prefix) is is_pushed for each in shares)
        if count >= (PUSHED_SHARES_MAX if is_pushed else SHARES_PER_TOPIC_MAX):
            raise InvalidRequest(f"{source.name} has the maximum of {count} shares.")

    async def _close_share(self, call: calls.CloseShare) -> bool:
        share = self.find_share(call.topic, call.group)
        if share is None:
            return False
        await self._delete(share)
        return True

    async def _acquire(self, call: calls.Acquire) -> Acquired:
        queue, leases = await self._find(call)
        acquisition = Acquisition(
            queue.partitions[call.partition],
            leases,
            self._redriver,
            self.settings_of(call.topic),
            call,
            in_flight_max=self._context.in_flight_max,
        )
        try:
            await acquisition.lease()
        except asyncio.CancelledError:
            # The client is gone: release the records.
            claims = [(each.claim, 0) for each in acquisition.deliveries]
            self._partitions.spawn(leases.extend(claims, is_strict=True), "release")
            raise
        found = acquisition.deliveries
        picks = sorted((each.record.offset, each.lease_seq, each.attempt) for each in found)
        return Acquired(leases.cursor.low_offset(), acquisition.batches(), picks)

    async def _finish(self, call: calls.Finish) -> calls.Results:
        _, leases = await self._find(call)
        claims = call.claims
        if not call.is_rejected or leases.topic.settings.redrive is None:
            return await leases.ack(claims, is_strict=True)
        # Another short lease, so that no consumer gets the records while they are moved.
        results = await leases.extend([(claim, REJECT_MS) for claim in claims], is_strict=True)
        picks = [
            Pick(claim.offset, claim.lease_seq, leases.cursor.attempts_of(claim.offset), 0, None)
            for claim, result in zip(claims, results, strict=True)
            if result is None
        ]
        if picks:
            await self._redriver.move(leases, picks)
        return results

    async def _prolong(self, call: calls.Prolong) -> calls.Results:
        _, leases = await self._find(call)
        return await leases.extend(call.claims, is_strict=True)

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        queue = self._partitions.find(share)
        if queue is None:
            raise TopicNotFound(share.name)
        return self._leases(queue, partition).on_available(listener)

    async def _share_start(self, call: calls.ShareStart) -> int:
        _, leases = await self._find(call)
        return leases.cursor.low_offset()

    async def _share_lag(self, call: calls.ShareLag) -> int:
        _, leases = await self._find(call)
        return sum(leases.counts())

    async def _restart_share(self, call: calls.RestartShare) -> None:
        queue, leases = await self._find(call)
        await queue.partitions[call.partition].restart_share(leases, call.offset)

    async def _find(self, call: calls.PartitionCall[calls.R]) -> tuple[Queue, Leases]:
        queue = await self._partitions.open(call.topic)
        return queue, self._leases(queue, call.partition)

    def _leases(self, queue: Queue, partition: int) -> Leases:
        leases = queue.leases.get(partition)
        if leases is not None:
            return leases
        source = self._catalog.find_id(queue.topic.source_id or "")
        if source is None or not 0 <= partition < source.partition_count:
            raise TopicNotFound(queue.topic.name)
        return queue.leases[partition]  # raises NotLeader


def _start_of(call: calls.OpenShare, partition: int) -> int:
    """Return where a new share begins. A partition that was added since begins at its start."""
    if not call.starts:
        return call.start
    return call.starts[partition] if partition < len(call.starts) else EARLIEST


def _checked_order(share: Topic, call: calls.OpenShare) -> Topic:
    if call.is_ordered and not share.is_fifo:
        raise InvalidRequest(f"{share.name} exists already, as a share without order.")
    return share

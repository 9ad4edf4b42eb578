"""Calls out for readers by offset, producers of batches and shares: as in ``dispatch.py``."""

from collections.abc import Mapping, Sequence

from penstock.frontend.bulkhead import Bulkhead
from penstock.frontend.callees import Callees
from penstock.frontend.dispatch import CHANGES, NodeOf
from penstock.frontend.quotas import TenantQuotas
from penstock.model.message import Claim
from penstock.model.ports import (
    NO_TAGS,
    SETTINGS_DEFAULT,
    Acquired,
    BatchAppended,
    Fetched,
    Marker,
    ProducerSeen,
    Shares,
    StreamEnds,
    Streams,
)
from penstock.model.topic import QueueSettings, Topic


class DispatchedStreams:
    """Implements ``model.ports.Streams`` over another one."""

    def __init__(
        self, streams: Streams, callees: Callees, quotas: TenantQuotas, *, node_of: NodeOf
    ) -> None:
        self._streams = streams
        self._callees = callees
        self._quotas = quotas
        self._rooms = quotas.rooms
        self._node_of = node_of
        self.on_advance = streams.on_advance  # waits for nothing

    def _of(self, topic: Topic, partition: int) -> Bulkhead:
        return self._callees.backend(self._node_of(topic, partition))

    async def append_batches(
        self, topic: Topic, partition: int, batches: Sequence[bytes | memoryview], *, acks: int
    ) -> BatchAppended:
        if topic.account in self._rooms:
            self._quotas.take_room(topic.account, sum(map(len, batches)))
        bulkhead = self._callees.backend(self._node_of(topic, partition))
        place = bulkhead.enter(topic, partition)
        try:
            appended = await self._streams.append_batches(topic, partition, batches, acks=acks)
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return appended

    async def fetch(
        self,
        topic: Topic,
        partition: int,
        *,
        offset: int,
        bytes_max: int,
        is_committed: bool,
        as_slices: bool = False,
    ) -> Fetched:
        bulkhead = self._callees.backend(self._node_of(topic, partition))
        place = bulkhead.enter(topic, partition)
        try:
            fetched = await self._streams.fetch(
                topic,
                partition,
                offset=offset,
                bytes_max=bytes_max,
                is_committed=is_committed,
                as_slices=as_slices,
            )
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return fetched

    async def append_marker(self, topic: Topic, partition: int, marker: Marker) -> None:
        await self._of(topic, partition).call(
            lambda: self._streams.append_marker(topic, partition, marker),
            topic,
            partition,
        )

    async def is_in_transaction(
        self, topic: Topic, partition: int, producer_id: int, producer_epoch: int
    ) -> bool:
        return await self._of(topic, partition).read(
            lambda: self._streams.is_in_transaction(topic, partition, producer_id, producer_epoch),
            topic,
            partition,
        )

    async def producers(self, topic: Topic, partition: int) -> Sequence[ProducerSeen]:
        return await self._of(topic, partition).read(
            lambda: self._streams.producers(topic, partition),
            topic,
            partition,
        )

    async def ends(self, topic: Topic, partition: int) -> StreamEnds:
        return await self._of(topic, partition).read(
            lambda: self._streams.ends(topic, partition), topic, partition
        )

    async def find_time(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int]:
        return await self._of(topic, partition).read(
            lambda: self._streams.find_time(topic, partition, timestamp_ms),
            topic,
            partition,
        )

    async def max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int]:
        return await self._of(topic, partition).read(
            lambda: self._streams.max_timestamp(topic, partition),
            topic,
            partition,
        )

    async def delete_records(self, topic: Topic, partition: int, before: int) -> int:
        return await self._of(topic, partition).call(
            lambda: self._streams.delete_records(topic, partition, before),
            topic,
            partition,
        )

    async def log_bytes(self, topic: Topic, partition: int) -> int:
        return await self._of(topic, partition).read(
            lambda: self._streams.log_bytes(topic, partition),
            topic,
            partition,
        )


class DispatchedShares:
    """Implements ``model.ports.Shares`` over another one."""

    def __init__(
        self, shares: Shares, callees: Callees, quotas: TenantQuotas, *, node_of: NodeOf
    ) -> None:
        self._shares = shares
        self._callees = callees
        self._quotas = quotas
        self._node_of = node_of
        self.find_share = shares.find_share  # from memory
        self.on_available = shares.on_available

    def _of(self, share: Topic, partition: int) -> Bulkhead:
        return self._callees.backend(self._node_of(share, partition))

    # What is made or forgotten is an entry of the metadata.

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
        known = self._shares.find_share(source, group)
        if known is not None:
            return known
        metadata = self._callees.metadata
        with (
            metadata.shares.holding(source.account, CHANGES),
            self._quotas.adding(source.account, topics=1),
        ):
            return await metadata.call(
                lambda: self._shares.open_share(
                    source,
                    group,
                    start=start,
                    settings=settings,
                    tags=tags,
                    attempts_max=attempts_max,
                )
            )

    async def close_share(self, source: Topic, group: str) -> bool:
        metadata = self._callees.metadata
        with metadata.shares.holding(source.account, CHANGES):
            return await metadata.call(lambda: self._shares.close_share(source, group))

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
        return await self._of(share, partition).call(
            lambda: self._shares.acquire(
                share,
                partition,
                count=count,
                bytes_max=bytes_max,
                lease_ms=lease_ms,
                is_strict=is_strict,
            ),
            share,
            partition,
        )

    async def finish(
        self, share: Topic, partition: int, claims: Sequence[Claim], *, is_rejected: bool = False
    ) -> Sequence[Exception | None]:
        return await self._of(share, partition).call(
            lambda: self._shares.finish(share, partition, claims, is_rejected=is_rejected),
            share,
            partition,
        )

    async def prolong(
        self, share: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        return await self._of(share, partition).call(
            lambda: self._shares.prolong(share, partition, claims),
            share,
            partition,
        )

    async def share_start(self, share: Topic, partition: int) -> int:
        return await self._of(share, partition).read(
            lambda: self._shares.share_start(share, partition),
            share,
            partition,
        )

    async def share_lag(self, share: Topic, partition: int) -> int:
        return await self._of(share, partition).read(
            lambda: self._shares.share_lag(share, partition),
            share,
            partition,
        )

    async def restart_share(self, share: Topic, partition: int, offset: int) -> None:
        await self._of(share, partition).call(
            lambda: self._shares.restart_share(share, partition, offset),
            share,
            partition,
        )

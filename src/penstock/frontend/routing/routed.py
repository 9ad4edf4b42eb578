"""The ports over the brokers of all nodes: whoever calls does not know who leads what.

What is led here is done here, by the plain object, with nothing in between but a look at who leads.
Everything else goes to its leader. A message to a standard queue may go to any partition: rather to
one that is led here, and one whose leader is away is passed over. What concerns a whole queue is
asked of every node that leads a part of it, at the same time.

Move tasks run where the first partition of their source is led; which there are is known here, for
they are kept in the store. So are shares: making one begins at the leader of the source's first
partition, which also enters it in the catalog and tells the other leaders where it begins.
"""

from collections.abc import Callable, Mapping, Sequence

from penstock.frontend.bulkhead import Bulkhead
from penstock.frontend.routing.appending import Appending
from penstock.frontend.routing.changes import Changes
from penstock.frontend.routing.following import Following
from penstock.frontend.routing.leaders import (
    RETRY_SECONDS_MAX,
    BrokerCalls,
    Leaders,
    Routes,
)
from penstock.frontend.routing.leasing import Leasing
from penstock.model.errors import NotLeader, PenstockError, PurgeInProgress, TopicNotFound
from penstock.model.message import Claim
from penstock.model.ports import (
    LATEST,
    NO_TAGS,
    SETTINGS_DEFAULT,
    Acquired,
    BatchAppended,
    Fetched,
    Marker,
    MoveTask,
    Peeked,
    ProducerSeen,
    StreamEnds,
)
from penstock.model.topic import Obstacles, QueueSettings, QueueStats, Topic, join_obstacles
from penstock.record.batch import parse_header


class Routed:
    """Implements ``model.ports`` Backend, Streams and Shares over those of all nodes."""

    def __init__(
        self,
        local: BrokerCalls,
        *,
        own_node: int,
        routes: Routes,
        remote: Callable[[int], BrokerCalls],
        bulkhead: Callable[[int], Bulkhead],
        find_arn: Callable[[str], Topic | None],
        retry_seconds_max: float = RETRY_SECONDS_MAX,
    ) -> None:
        """``remote``: the broker of another node; may raise Unreachable. ``bulkhead``: of another
        node, the same each time, which takes Unreachable and DeadlineExceeded for failures.
        ``find_arn``: the catalog's, for move tasks. ``retry_seconds_max``: for so long a leader is
        looked for."""
        self._local = local
        self._own = own_node
        self._leader = routes.leader
        self._routes = routes
        self._find_arn = find_arn
        self._leaders = Leaders(
            local,
            own_node=own_node,
            routes=routes,
            remote=remote,
            bulkhead=bulkhead,
            retry_seconds_max=retry_seconds_max,
        )
        self._changes = Changes(routes)
        self._leasing = Leasing(self._leaders, self._changes)
        self.append = Appending(self._leaders).append
        self.lease = self._leasing.lease
        # From memory, which is the same on every node.
        self.moves = local.moves
        self.find_share = local.find_share

    def end_waits(self) -> None:
        """Answer every receive that is parked on several nodes with nothing: this one is draining.
        Those that are parked on its own partitions alone are the broker's to end."""
        self._leasing.end_waits()

    async def close(self) -> None:
        """What was taken for nobody is given back first."""
        await self._leasing.close()
        await self._leaders.close()
        await self._changes.close()

    # ── model.ports.Backend ──────────────────────────────────────────────────────────────────

    async def ack(
        self, topic: Topic, partition: int, claims: Sequence[Claim]
    ) -> Sequence[Exception | None]:
        led = self._leader(topic, partition)
        if led is not None and led[0] == self._own:
            try:
                return await self._local.ack(topic, partition, claims)
            except NotLeader as error:
                self._leaders.note(error)
        return await self._leaders.ask(
            topic, partition, lambda at: at.ack(topic, partition, claims), is_harmless=True
        )

    async def extend(
        self,
        topic: Topic,
        partition: int,
        claims: Sequence[tuple[Claim, int]],
        *,
        is_strict: bool = False,
    ) -> Sequence[Exception | None]:
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.extend(topic, partition, claims, is_strict=is_strict),
            is_harmless=True,
        )

    async def purge(self, topic: Topic) -> None:
        begun: set[int] = set()

        async def purge(at: BrokerCalls) -> None:
            is_again = id(at) in begun
            begun.add(id(at))
            try:
                await at.purge(topic)
            except PurgeInProgress:
                if not is_again:
                    raise  # else it was this call, whose answer was lost
            await self._check_own(at, topic)

        answers = await self._leaders.ask_all(topic, purge, is_harmless=True)
        refusals = [each for each in answers if isinstance(each, PenstockError)]
        for error in refusals:
            # One that failed half way is repeated, and meets nodes that have done their part.
            if not isinstance(error, PurgeInProgress) or len(refusals) == len(answers):
                raise error

    async def stats(self, topic: Topic, *, is_detailed: bool = False) -> QueueStats:
        parts: list[QueueStats] = []

        async def ask(at: BrokerCalls) -> QueueStats:
            await self._check_own(at, topic)
            return await at.stats(topic, is_detailed=is_detailed)

        answers = await self._leaders.ask_all(topic, ask, is_harmless=True)
        for answer in answers:
            if isinstance(answer, PenstockError):
                raise answer
            parts.append(answer)
        return parts[0] if len(parts) == 1 else _sum(parts)

    async def _check_own(self, at: BrokerCalls, topic: Topic) -> None:
        """A broker answers for what it leads, be that nothing; others are told what is counted on.
        Raises NotLeader when this node's has less than it is believed to have."""
        if at is self._local:
            for partition, node in self._routes.leaders(topic).items():
                if node == self._own:
                    await self._local.log_bytes(topic, partition)

    async def peek(
        self, topic: Topic, *, partition: int, start: int, count: int
    ) -> tuple[Sequence[Peeked], int]:
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.peek(topic, partition=partition, start=start, count=count),
            is_harmless=True,
        )

    async def start_move(self, task: MoveTask) -> None:
        source = self._find_arn(task.source_arn)
        if source is None:
            raise TopicNotFound(task.source_arn)
        await self._leaders.ask(source, 0, lambda at: at.start_move(task))

    async def cancel_move(self, task_id: str) -> MoveTask | None:
        """It may run on any node: the leader may have moved since it began."""
        error: PenstockError | None = None
        for node in sorted(self._routes.nodes(), key=lambda node: node != self._own):
            try:
                task = await self._leaders.at(node, lambda at: at.cancel_move(task_id))
            except PenstockError as failed:
                error = failed
                continue
            if task is not None:
                return task
        if error is not None:
            raise error  # perhaps it runs where nobody answers
        return None

    # ── model.ports.Streams ──────────────────────────────────────────────────────────────────

    async def append_batches(
        self, topic: Topic, partition: int, batches: Sequence[bytes | memoryview], *, acks: int
    ) -> BatchAppended:
        led = self._leader(topic, partition)
        if led is not None and led[0] == self._own:
            try:
                return await self._local.append_batches(topic, partition, batches, acks=acks)
            except NotLeader as error:
                self._leaders.note(error)
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.append_batches(topic, partition, batches, acks=acks),
            is_harmless=all(parse_header(batch).producer_id >= 0 for batch in batches),
        )

    async def append_marker(self, topic: Topic, partition: int, marker: Marker) -> None:
        await self._leaders.ask(
            topic,
            partition,
            lambda at: at.append_marker(topic, partition, marker),
            is_harmless=True,
        )

    async def is_in_transaction(
        self, topic: Topic, partition: int, producer_id: int, producer_epoch: int
    ) -> bool:
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.is_in_transaction(topic, partition, producer_id, producer_epoch),
            is_harmless=True,
        )

    async def producers(self, topic: Topic, partition: int) -> Sequence[ProducerSeen]:
        return await self._leaders.ask(
            topic, partition, lambda at: at.producers(topic, partition), is_harmless=True
        )

    async def ends(self, topic: Topic, partition: int) -> StreamEnds:
        return await self._leaders.ask(
            topic, partition, lambda at: at.ends(topic, partition), is_harmless=True
        )

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
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.fetch(
                topic,
                partition,
                offset=offset,
                bytes_max=bytes_max,
                is_committed=is_committed,
                as_slices=as_slices,
            ),
            is_harmless=True,
        )

    async def find_time(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int]:
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.find_time(topic, partition, timestamp_ms),
            is_harmless=True,
        )

    async def max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int]:
        return await self._leaders.ask(
            topic, partition, lambda at: at.max_timestamp(topic, partition), is_harmless=True
        )

    async def delete_records(self, topic: Topic, partition: int, before: int) -> int:
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.delete_records(topic, partition, before),
            is_harmless=before >= 0,  # and not: what is there by then
        )

    async def log_bytes(self, topic: Topic, partition: int) -> int:
        return await self._leaders.ask(
            topic, partition, lambda at: at.log_bytes(topic, partition), is_harmless=True
        )

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return Following(
            self._leaders,
            self._changes,
            topic,
            partition,
            listener,
            lambda at, told: at.on_advance(topic, partition, told),
        ).end

    # ── model.ports.Shares ───────────────────────────────────────────────────────────────────

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
        known = self.find_share(source, group)
        if known is not None:
            return known
        return await self._leaders.ask(
            source,
            0,
            lambda at: at.open_share(
                source,
                group,
                start=start,
                settings=settings,
                tags=tags,
                attempts_max=attempts_max,
            ),
            is_harmless=True,
        )

    async def close_share(self, source: Topic, group: str) -> bool:
        return await self._local.close_share(source, group)  # an entry of the catalog, no more

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
        return await self._leaders.ask(
            share,
            partition,
            lambda at: at.acquire(
                share,
                partition,
                count=count,
                bytes_max=bytes_max,
                lease_ms=lease_ms,
                is_strict=is_strict,
            ),
        )

    async def finish(
        self, share: Topic, partition: int, claims: Sequence[Claim], *, is_rejected: bool = False
    ) -> Sequence[Exception | None]:
        return await self._leaders.ask(
            share,
            partition,
            lambda at: at.finish(share, partition, claims, is_rejected=is_rejected),
        )

    async def prolong(
        self, share: Topic, partition: int, claims: Sequence[tuple[Claim, int]]
    ) -> Sequence[Exception | None]:
        return await self._leaders.ask(
            share,
            partition,
            lambda at: at.prolong(share, partition, claims),
            is_harmless=all(lease_ms > 0 for _, lease_ms in claims),
        )

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return Following(
            self._leaders,
            self._changes,
            share,
            partition,
            listener,
            lambda at, told: at.on_available(share, partition, told),
        ).end

    async def share_start(self, share: Topic, partition: int) -> int:
        return await self._leaders.ask(
            share, partition, lambda at: at.share_start(share, partition), is_harmless=True
        )

    async def share_lag(self, share: Topic, partition: int) -> int:
        return await self._leaders.ask(
            share, partition, lambda at: at.share_lag(share, partition), is_harmless=True
        )

    async def restart_share(self, share: Topic, partition: int, offset: int) -> None:
        await self._leaders.ask(
            share,
            partition,
            lambda at: at.restart_share(share, partition, offset),
            is_harmless=offset != LATEST,
        )


def _sum(parts: Sequence[QueueStats]) -> QueueStats:
    oldest = [each.oldest_sent_at_ms for each in parts if each.oldest_sent_at_ms is not None]
    return QueueStats(
        visible=sum(each.visible for each in parts),
        in_flight=sum(each.in_flight for each in parts),
        delayed=sum(each.delayed for each in parts),
        oldest_sent_at_ms=min(oldest, default=None),
        log_bytes=sum(each.log_bytes for each in parts),
        sent=sum(each.sent for each in parts),
        received=sum(each.received for each in parts),
        acked=sum(each.acked for each in parts),
        dead_lettered=sum(each.dead_lettered for each in parts),
        expired=sum(each.expired for each in parts),
        # One long poll is parked at all of them.
        waits=max(each.waits for each in parts),
        obstacles=_join(parts),
    )


def _join(parts: Sequence[QueueStats]) -> Obstacles | None:
    """None: not asked for, or a node is of an older version."""
    found = [each.obstacles for each in parts if each.obstacles is not None]
    return join_obstacles(found) if len(found) == len(parts) else None

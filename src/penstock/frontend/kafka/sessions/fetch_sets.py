"""The partitions of one fetch or fetch session: what was requested for each, what a fetch has
found, and what the last reply contained. ``records/fetch.py`` reads and waits, and
``fetch_sessions.py`` keeps the sets of sessions.

In a session, a partition without new records is only watched:

                     no new records
          ┌─────┐ ────────────────────────────► ┌─────────┐
          │ due │                               │ watched │   not read, not in the reply
          └─────┘ ◄──────────────────────────── └─────────┘
             ▲       has new records
             └── requested again, replied with records or an error, or no room for it

A fetch reads only partitions that are due. Partitions that were in a reply with records go to the
end of the queue, so that every partition is read eventually, even if replies are small."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import field

from penstock.frontend.kafka.sessions.by_identity import ByIdentity
from penstock.model.file_slice import Piece
from penstock.model.ports import Fetched, StreamEnds
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchPartitionResponse,
    FetchTopic,
    ForgottenTopic,
)

TopicKey = str | bytes  # name or id, whichever the request contains
Find = Callable[[TopicKey], Topic | ErrorCode]
NOT_SENT = -1  # no watermark or start offset has been sent
ADDED_AT_ONCE_MAX = 1_000  # topics and partitions together: about 3 ms


def is_large(topics: Sequence[FetchTopic]) -> bool:
    """Return whether a request has too many partitions to add them at once."""
    count = len(topics)
    for each in topics:
        count += len(each.partitions)
    return count > ADDED_AT_ONCE_MAX


def in_parts(topics: Sequence[FetchTopic]) -> list[list[FetchTopic]]:
    """Split the partitions of a request, in order, into parts that can each be added at once."""
    parts: list[list[FetchTopic]] = [[]]
    room = ADDED_AT_ONCE_MAX
    for each in topics:
        if room < 2:
            parts.append([])
            room = ADDED_AT_ONCE_MAX
        left = each
        while len(left.partitions) >= room:
            some, others = left.partitions[: room - 1], left.partitions[room - 1 :]
            parts[-1].append(FetchTopic(each.name, each.topic_id, some))
            parts.append([])
            room = ADDED_AT_ONCE_MAX
            left = FetchTopic(each.name, each.topic_id, others)
        parts[-1].append(left)
        room -= 1 + len(left.partitions)
    return parts


class TopicFetch(ByIdentity):
    set: "FetchSet"
    key: TopicKey
    found: Topic | ErrorCode
    partitions: "dict[int, PartitionFetch]" = field(default_factory=dict)


class PartitionFetch(ByIdentity):
    of: TopicFetch
    requested: FetchPartition
    next_offset: int  # of the next read
    unwatch: Callable[[], None] | None = None
    is_open: bool = False  # the broker has opened the partition, so it can be watched
    sent_watermark: int = NOT_SENT
    sent_start: int = NOT_SENT
    # What the current fetch has found:
    code: ErrorCode = ErrorCode.NONE
    ends: StreamEnds | None = None
    buffers: Sequence[Piece] = ()  # whole batches
    size: int = 0
    record_count: int = 0
    aborted: dict[tuple[int, int], None] | None = None
    is_left: bool = False  # records were left out because the reply had no room

    def forget_found(self) -> None:
        self.code = ErrorCode.NONE
        self.ends = None
        self.buffers = ()
        self.size = self.record_count = 0
        self.next_offset = self.requested.offset
        self.aborted = None
        self.is_left = False

    def take(self, fetched: Fetched, room: int | None) -> int:
        """Add all fetched batches, or none if they exceed ``room``. Return the bytes added."""
        self.ends = fetched.ends
        size = sum(map(len, fetched.buffers))
        if not size:
            return 0
        if room is not None and size > room:
            self.is_left = True
            return 0
        self.buffers = [*self.buffers, *fetched.buffers] if self.buffers else fetched.buffers
        self.size += size
        self.record_count += fetched.record_count
        self.next_offset = fetched.next_offset
        if fetched.aborted:
            self.aborted = {**(self.aborted or {}), **dict.fromkeys(fetched.aborted)}
        return size

    @property
    def is_news(self) -> bool:
        """Return whether a reply in a session must contain the partition."""
        ends = self.ends
        if self.size > 0 or self.code != ErrorCode.NONE:
            return True
        return ends is not None and (
            ends.high_watermark != self.sent_watermark or ends.start_offset != self.sent_start
        )

    def reply(self, *, is_committed: bool) -> FetchPartitionResponse:
        ends = self.ends
        if self.code or ends is None:
            # After an error the next reply must contain the partition in any case.
            self.sent_watermark = self.sent_start = NOT_SENT
            return FetchPartitionResponse(self.requested.index, self.code)
        self.sent_watermark = ends.high_watermark
        self.sent_start = ends.start_offset
        return FetchPartitionResponse(
            self.requested.index,
            high_watermark=ends.high_watermark,
            last_stable_offset=ends.last_stable_offset,
            log_start_offset=ends.start_offset,
            records=self.buffers,
            aborted=[AbortedTransaction(*each) for each in self.aborted or ()]
            if is_committed
            else None,
        )

    def advanced(self) -> None:
        """Mark the partition as due, because it may have new records. This ends the watch, so that
        a busy partition causes no work for a reader that sends no further request."""
        self.stop_watching()
        of = self.of.set
        of.due[self] = None
        if of.wake is not None:
            of.wake()

    def stop_watching(self) -> None:
        if self.unwatch is not None:
            self.unwatch()
            self.unwatch = None


class FetchSet(ByIdentity):
    topics: dict[TopicKey, TopicFetch] = field(default_factory=dict)
    count: int = 0
    due: dict[PartitionFetch, None] = field(default_factory=dict)  # in the order of reading
    looked: dict[PartitionFetch, None] = field(default_factory=dict)  # by the current fetch
    is_busy: bool = False  # a fetch uses the set
    wake: Callable[[], None] | None = None  # of the current fetch, if it waits
    is_committed: bool = False

    def __iter__(self) -> Iterator[PartitionFetch]:
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def want(self, topics: Sequence[FetchTopic], find: Find, *, is_by_id: bool) -> None:
        for each in topics:
            if not each.partitions:
                continue
            key: TopicKey = each.topic_id if is_by_id else each.name
            topic = self.topics.get(key)
            if topic is None:
                topic = self.topics[key] = TopicFetch(self, key, find(key))
            partitions = topic.partitions
            for requested in each.partitions:
                one = partitions.get(requested.index)
                if one is None:
                    one = partitions[requested.index] = PartitionFetch(
                        topic, requested, requested.offset
                    )
                    self.count += 1
                else:
                    one.stop_watching()
                    one.requested = requested
                    one.next_offset = requested.offset
                self.due[one] = None

    def forget(self, topics: Sequence[ForgottenTopic], *, is_by_id: bool) -> None:
        for each in topics:
            key: TopicKey = each.topic_id if is_by_id else each.name
            topic = self.topics.get(key)
            if topic is None:
                continue
            for index in each.partitions:
                one = topic.partitions.pop(index, None)
                if one is not None:
                    one.stop_watching()
                    self.due.pop(one, None)
                    self.count -= 1
            if not topic.partitions:
                del self.topics[key]

    def read_as(self, *, is_committed: bool) -> None:
        """Set the isolation level. If the level changes, all partitions must be read again."""
        if is_committed != self.is_committed:
            self.is_committed = is_committed
            self.look_again(self)

    def reading_as(self, *, is_committed: bool) -> Iterator[None]:
        """Do the same as ``read_as`` in steps, and yield after each. The level changes last."""
        if is_committed != self.is_committed:
            for some in portions(list(self)):
                self.look_again(some)
                yield
            self.is_committed = is_committed

    def find_again(self, find: Find) -> None:
        """Look up all topics again, after a change of topics or access rights."""
        for topic in self.topics.values():
            before, topic.found = topic.found, find(topic.key)
            if not _is_same(before, topic.found):
                for one in topic.partitions.values():
                    one.is_open = False
                self.look_again(topic.partitions.values())

    def look_again(self, some: Iterable[PartitionFetch]) -> None:
        for one in some:
            one.stop_watching()
            self.due[one] = None

    def refuse_forbidden(self) -> None:
        """Drop records of topics that the caller may no longer read. Report an error instead."""
        for one in self.looked:
            found = one.of.found
            if isinstance(found, ErrorCode):
                one.forget_found()
                one.code = found

    def settle(self) -> None:
        """End a fetch: forget what it found, and mark the partitions that the next fetch must read.
        Partitions with records in this reply are read last."""
        self._settle(self.looked)
        self.looked.clear()
        self.wake = None
        self.is_busy = False

    def settling(self) -> Iterator[None]:
        """Do the same as ``settle`` in steps, and yield after each of them."""
        for some in portions(sorted(self.looked, key=lambda one: one.size > 0)):
            self._settle(some)
            for one in some:
                del self.looked[one]
            yield
        self.settle()

    def _settle(self, some: Iterable[PartitionFetch]) -> None:
        given = []
        for one in some:
            if one.size:
                given.append(one)
            elif one.unwatch is None or one.code or one.is_left or one.is_news:
                one.stop_watching()
                self.due[one] = None
            one.forget_found()
        for one in given:
            one.stop_watching()
            self.due.pop(one, None)
            self.due[one] = None

    def release(self) -> None:
        """Release all partitions. The set must not be used afterwards."""
        self._release(self.topics.values())
        self.looked.clear()
        self.due.clear()
        self.topics.clear()
        self.count = 0

    def releasing(self) -> Iterator[None]:
        self.looked.clear()
        self.due.clear()
        for some in portions(list(self.topics.values())):
            self._release(some)
            for topic in some:
                del self.topics[topic.key]
            yield
        self.release()

    def _release(self, some: Iterable[TopicFetch]) -> None:
        """Break reference cycles, so that memory is freed at once. Replies can have megabytes, and
        the garbage collector would let many of them pile up."""
        for topic in some:
            for one in topic.partitions.values():
                one.stop_watching()
            topic.partitions.clear()


def _is_same(before: Topic | ErrorCode, now: Topic | ErrorCode) -> bool:
    """Return whether a topic is unchanged, so that its partitions can be watched as before."""
    if isinstance(before, Topic) and isinstance(now, Topic):
        return before.topic_id == now.topic_id and before.partition_count == now.partition_count
    return before is now

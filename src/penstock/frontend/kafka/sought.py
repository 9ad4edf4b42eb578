"""The partitions that one reader wants: what was asked for each, what a fetch has found, and what
the reader was last told. Pure: ``fetch.py`` reads and waits, ``fetch_sessions.py`` keeps the sets
that outlive a request.

The point of a set that is kept is that a partition of which nothing new is known costs nothing:

                     looked at, has nothing
          ┌─────┐ ────────────────────────────► ┌─────────┐
          │ due │                               │ watched │   not looked at, not answered
          └─────┘ ◄──────────────────────────── └─────────┘
             ▲       it has advanced
             └── asked for anew, records or an error given out, or no room left for it

A fetch looks at what is due and at nothing else. Those that were given records go to the end of the
line, so that however little fits into an answer, each has its turn."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.frontend.slices import portions
from penstock.model.file_slice import Piece
from penstock.model.ports import Fetched, StreamEnds
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import AbortedTransaction, FetchPartition, FetchPartitionResponse
from penstock.wire.kafka.fetch_request import FetchTopic, ForgottenTopic

Place = str | bytes  # a topic's name, or its id where requests name it by that
Find = Callable[[Place], Topic | ErrorCode]
NOTHING_TOLD = -1  # no watermark and no start is that low
WANTED_AT_ONCE_MAX = 1_000  # topics and partitions together: about 3 ms


def is_large(topics: Sequence[FetchTopic]) -> bool:
    """Whether a request has too many partitions to take them up in one turn."""
    count = len(topics)
    for each in topics:
        count += len(each.partitions)
    return count > WANTED_AT_ONCE_MAX


def in_parts(topics: Sequence[FetchTopic]) -> list[list[FetchTopic]]:
    """The partitions of a request in order, in parts that can each be taken up in one turn. A topic
    with many partitions is in several of them."""
    parts: list[list[FetchTopic]] = [[]]
    room = WANTED_AT_ONCE_MAX
    for each in topics:
        if room < 2:
            parts.append([])
            room = WANTED_AT_ONCE_MAX
        left = each
        while len(left.partitions) >= room:
            some, others = left.partitions[: room - 1], left.partitions[room - 1 :]
            parts[-1].append(FetchTopic(each.name, each.topic_id, some))
            parts.append([])
            room = WANTED_AT_ONCE_MAX
            left = FetchTopic(each.name, each.topic_id, others)
        parts[-1].append(left)
        room -= 1 + len(left.partitions)
    return parts


class SoughtTopic:
    """One place, and the topic that it stands for or why there is none."""

    __slots__ = ("found", "partitions", "place", "set")

    def __init__(self, of: "SoughtSet", place: Place, found: Topic | ErrorCode) -> None:
        self.set = of
        self.place = place
        self.found = found
        self.partitions: dict[int, Sought] = {}


class Sought:
    """One partition."""

    __slots__ = (
        "aborted",
        "asked",
        "buffers",
        "code",
        "ends",
        "is_left",
        "is_open",
        "next_offset",
        "of",
        "record_count",
        "size",
        "told_start",
        "told_watermark",
        "unwatch",
    )

    def __init__(self, of: SoughtTopic, asked: FetchPartition) -> None:
        self.of = of
        self.asked = asked
        self.unwatch: Callable[[], None] | None = None
        self.is_open = False  # the broker has been asked for it: it can be watched
        self.told_watermark = self.told_start = NOTHING_TOLD
        self.forget_found()

    # ── The fetch under way ──────────────────────────────────────────────────────────────────

    def forget_found(self) -> None:
        self.code = ErrorCode.NONE
        self.ends: StreamEnds | None = None
        self.buffers: Sequence[Piece] = ()  # whole batches
        self.size = 0
        self.record_count = 0
        self.next_offset = self.asked.offset  # where to go on: what is held is not read again
        self.aborted: dict[tuple[int, int], None] | None = None
        self.is_left = False  # there may be more than had room

    def take(self, fetched: Fetched, room: int | None) -> int:
        """All of it, or nothing if it does not fit. None: whatever its size. Returns the size of
        what was taken."""
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

    # ── What the reader knows ────────────────────────────────────────────────────────────────

    @property
    def is_news(self) -> bool:
        """Whether an answer must name it to one who knows what was told before."""
        ends = self.ends
        return (
            self.size > 0
            or self.code != ErrorCode.NONE
            or (
                ends is not None
                and (
                    ends.high_watermark != self.told_watermark
                    or ends.start_offset != self.told_start
                )
            )
        )

    def answer(self, *, is_committed: bool) -> FetchPartitionResponse:
        ends = self.ends
        if self.code or ends is None:
            # Once the error is gone, the partition is news again whatever its ends are.
            self.told_watermark = self.told_start = NOTHING_TOLD
            return FetchPartitionResponse(self.asked.index, self.code)
        self.told_watermark = ends.high_watermark
        self.told_start = ends.start_offset
        return FetchPartitionResponse(
            self.asked.index,
            high_watermark=ends.high_watermark,
            last_stable_offset=ends.last_stable_offset,
            log_start_offset=ends.start_offset,
            records=self.buffers,
            aborted=self._aborted() if is_committed else None,
        )

    def _aborted(self) -> Sequence[AbortedTransaction]:
        return [AbortedTransaction(*each) for each in self.aborted or ()]

    # ── Watching ─────────────────────────────────────────────────────────────────────────────

    def advanced(self) -> None:
        """There may be more to read. Told once: a reader that does not come back costs a busy
        partition no more than that."""
        self.stop_watching()
        of = self.of.set
        of.due[self] = None
        if of.wake is not None:
            of.wake()

    def stop_watching(self) -> None:
        if self.unwatch is not None:
            self.unwatch()
            self.unwatch = None


class SoughtSet:
    """All that one request or one session wants."""

    __slots__ = ("_is_committed", "count", "due", "is_busy", "looked", "topics", "wake")

    def __init__(self) -> None:
        self.topics: dict[Place, SoughtTopic] = {}
        self.count = 0
        self.due: dict[Sought, None] = {}  # in the order in which to look
        self.looked: dict[Sought, None] = {}  # by the fetch under way
        self.is_busy = False  # with a fetch
        self.wake: Callable[[], None] | None = None  # of the fetch under way, if it waits
        self._is_committed = False

    def __iter__(self) -> Iterator[Sought]:
        for topic in self.topics.values():
            yield from topic.partitions.values()

    # ── What is wanted ───────────────────────────────────────────────────────────────────────

    def want(self, topics: Sequence[FetchTopic], find: Find, *, is_by_id: bool) -> None:
        for each in topics:
            if not each.partitions:
                continue
            place: Place = each.topic_id if is_by_id else each.name
            topic = self.topics.get(place)
            if topic is None:
                topic = self.topics[place] = SoughtTopic(self, place, find(place))
            partitions = topic.partitions
            for asked in each.partitions:
                one = partitions.get(asked.index)
                if one is None:
                    one = partitions[asked.index] = Sought(topic, asked)
                    self.count += 1
                else:
                    one.stop_watching()
                    one.asked = asked
                    one.next_offset = asked.offset
                self.due[one] = None

    def forget(self, topics: Sequence[ForgottenTopic], *, is_by_id: bool) -> None:
        for each in topics:
            place: Place = each.topic_id if is_by_id else each.name
            topic = self.topics.get(place)
            if topic is None:
                continue
            for index in each.partitions:
                one = topic.partitions.pop(index, None)
                if one is not None:
                    one.stop_watching()
                    self.due.pop(one, None)
                    self.count -= 1
            if not topic.partitions:
                del self.topics[place]

    def read_as(self, *, is_committed: bool) -> None:
        """A reader that changes its mind about open transactions may read where it had to stop."""
        if is_committed != self._is_committed:
            self._is_committed = is_committed
            self.look_again(self)

    def reading_as(self, *, is_committed: bool) -> Iterator[None]:
        """As ``read_as``, in several steps. All of them are repeated if not all are taken."""
        if is_committed != self._is_committed:
            for some in portions(list(self)):
                self.look_again(some)
                yield
            self._is_committed = is_committed

    def find_again(self, find: Find) -> None:
        """The catalog has changed: what does each place stand for now?"""
        for topic in self.topics.values():
            before, topic.found = topic.found, find(topic.place)
            if not _is_same(before, topic.found):
                for one in topic.partitions.values():
                    one.is_open = False
                self.look_again(topic.partitions.values())

    def look_again(self, some: Iterable[Sought]) -> None:
        for one in some:
            one.stop_watching()
            self.due[one] = None

    # ── One fetch ────────────────────────────────────────────────────────────────────────────

    def refuse_forbidden(self) -> None:
        """Nothing is given out of what a place no longer stands for."""
        for one in self.looked:
            found = one.of.found
            if isinstance(found, ErrorCode):
                one.forget_found()
                one.code = found

    def settle(self) -> None:
        """A fetch is over, answered or not: forget what it found, and say what is due for the
        next one. Whoever was given nothing comes before those that were."""
        self._settle(self.looked)
        self.looked.clear()
        self.wake = None
        self.is_busy = False

    def settling(self) -> Iterator[None]:
        """As ``settle``, in several steps, after each of which a later request may settle the
        rest."""
        for some in portions(sorted(self.looked, key=lambda one: one.size > 0)):
            self._settle(some)
            for one in some:
                del self.looked[one]
            yield
        self.settle()

    def _settle(self, some: Iterable[Sought]) -> None:
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

    def let_go(self) -> None:
        """Nobody will come back for it."""
        self._let_go(self.topics.values())
        self.looked.clear()
        self.due.clear()
        self.topics.clear()
        self.count = 0

    def letting_go(self) -> Iterator[None]:
        """As ``let_go``, in several steps."""
        self.looked.clear()
        self.due.clear()
        for some in portions(list(self.topics.values())):
            self._let_go(some)
            for topic in some:
                del self.topics[topic.place]
            yield
        self.let_go()

    def _let_go(self, some: Iterable[SoughtTopic]) -> None:
        """Untie what refers to each other: what was found is megabytes, and the cycle collector,
        which counts objects, would let a second's worth of answers pile up before it comes by."""
        for topic in some:
            for one in topic.partitions.values():
                one.stop_watching()
            topic.partitions.clear()


def _is_same(before: Topic | ErrorCode, now: Topic | ErrorCode) -> bool:
    """Whether partitions can be watched and read as before: the same log, and as many of them.
    Other settings do not matter to a reader."""
    if isinstance(before, Topic) and isinstance(now, Topic):
        return before.topic_id == now.topic_id and before.partition_count == now.partition_count
    return before is now
